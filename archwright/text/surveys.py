"""What reading a large file once has found, kept until the file is touched or the machine starts again."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archwright.files import atomic_write, state_of, sweep
from archwright.spec.errors import UserError
from archwright.text.cache import SETTING, cache_folder, mark_used

FORMAT = 1
"""Of these files; raised also where reading the same file would find something else."""
LARGE = 1 << 26
"""Bytes of a file that is worth it."""
Bytes = Annotated[int, Field(ge=0, le=1 << 62)]


class Found(BaseModel):
    """What a file has: its bytes, or those of its texts, their hash, and how many are on either side of the split."""

    model_config = ConfigDict(strict=True, extra="forbid")

    size: Bytes
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kept_bytes: Bytes
    held_out_bytes: Bytes


class _Kept(BaseModel):
    """Contents of a file. The question is there for people: the file's name is its hash."""

    model_config = ConfigDict(strict=True, extra="forbid")

    question: dict[str, Any]
    state: dict[str, Any]
    found: Found
    digest: str = ""
    """Hash of the other values."""

    def sealed(self) -> "_Kept":
        content = self.model_dump_json(exclude={"digest"}).encode()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return self.model_copy(update={"digest": digest})


def kept_or_surveyed(
    path: Path, question: Mapping[str, str], survey: Callable[[], Found | None]
) -> Found | None:
    """Return what `survey` finds in a file; of a large one that was not touched since, what it found then.

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
    place = cache_folder("surveys", f"{digest}.json")
    kept = _read(place)
    if kept is not None and kept.state == before:
        mark_used(place)
        return kept.found
    found = survey()
    if found is not None and state_of({"file": path}) == before:
        with contextlib.suppress(UserError):  # then the next command reads it again
            sweep(place.parent, r"[0-9a-f]{32}\.json")
            now = _Kept(question=asked, state=before, found=found).sealed()
            atomic_write(place, now.model_dump_json(indent=2), setting=SETTING)
    return found


def _read(place: Path) -> _Kept | None:
    """Return what is kept, if it is whole."""
    try:
        kept = _Kept.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None
    return kept if kept == kept.sealed() else None
