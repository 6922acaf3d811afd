"""What reading a large file once has found, kept for each machine until the file is touched or the machine restarts."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archwright.files import machine_file, state_of, write_machine_file
from archwright.spec.errors import UserError
from archwright.text.cache import cache_folder, mark_used, only_one

FORMAT = 2
"""Of these files; raised also where reading the same file would find something else."""
LARGE = 1 << 26
"""Bytes of a file that is worth it."""
Bytes = Annotated[int, Field(ge=0, le=1 << 62)]


class Found(BaseModel):
    """Contents of a file: bytes, or those of its texts, their hash, the split's sides, and a hash of each document."""

    model_config = ConfigDict(strict=True, extra="forbid")

    size: Bytes
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kept_bytes: Bytes
    held_out_bytes: Bytes
    contents: Annotated[str, Field(pattern=r"^([0-9a-f]{16})*$")]


class _Kept(BaseModel):
    """Contents of a file."""

    model_config = ConfigDict(strict=True)

    state: dict[str, Any]
    found: Found
    seal: str
    """Hash of the other values."""


def kept_or_surveyed(
    path: Path, question: Mapping[str, str], survey: Callable[[], Found | None]
) -> Found | None:
    """Return what `survey` finds in a file; of a large one that was not touched since, what it found then.

    Of the processes of a machine one at a time reads a large file.

    Args:
        question: all beside the file's content that it depends on.
        survey: reads the file; returns None, or raises, where there is nothing to keep.
    """
    try:
        before = state_of({"file": path})
    except OSError:
        return survey()  # which says why
    if before["files"]["file"][0] < LARGE:
        return survey()
    asked = {"format": FORMAT, "path": str(path.resolve()), **question}
    digest = hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()
    place = machine_file(cache_folder("surveys"), digest, before)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UserError):  # where no lock can be made, each process reads it
            stack.enter_context(only_one(place))
        if (kept := _read(place, before)) is not None:
            return kept
        found = survey()
        if found is not None and state_of({"file": path}) == before:
            with contextlib.suppress(OSError, UserError):  # then the next command reads it again
                values = {
                    "state": before,
                    "found": found.model_dump(),
                    "seal": _seal(before, found),
                }
                write_machine_file(place, values, digest)
        return found


def _read(place: Path, state: Mapping[str, Any]) -> Found | None:
    """Return what was kept of a file in this state."""
    try:
        kept = _Kept.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None
    if kept.state != state or kept.seal != _seal(state, kept.found):
        return None
    mark_used(place)
    return kept.found


def _seal(state: Mapping[str, Any], found: Found) -> str:
    content = json.dumps([state, found.model_dump()], sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
