"""Surveys of large files, cached per machine. A change of the file or a reboot invalidates them."""

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
"""Version of the cache files; incremented when their format or the results of surveys change."""
LARGE = 1 << 26
"""Minimum bytes of a file for a cached survey."""
Bytes = Annotated[int, Field(ge=0, le=1 << 62)]


class Survey(BaseModel):
    """Fields of `Surveyed` that depend on the file's content."""

    model_config = ConfigDict(strict=True, extra="forbid")

    size: Bytes
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    kept_bytes: Bytes
    held_out_bytes: Bytes
    contents: Annotated[str, Field(pattern=r"^([0-9a-f]{16})*$")]


class _Entry(BaseModel):
    """A cached survey."""

    model_config = ConfigDict(strict=True)

    state: dict[str, Any]
    survey: Survey = Field(alias="found")
    seal: str
    """Hash of the file's state (`state_of`) and the survey."""


def cached_survey(
    path: Path, options: Mapping[str, str], survey: Callable[[], Survey | None]
) -> Survey | None:
    """Return the survey of a file, cached if the file is large.

    One process per machine at a time reads a large file.

    Args:
        options: All inputs of the survey except the file's content.
        survey: Reads the file; returns None or raises an error if there is no result to cache.
    """
    try:
        before = state_of({"file": path})
    except OSError:
        return survey()  # it raises the reason
    if before["files"]["file"][0] < LARGE:
        return survey()
    key = {"format": FORMAT, "path": str(path.resolve()), **options}
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
    place = machine_file(cache_folder("surveys"), digest, before)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UserError):  # without a lock, each process reads the file
            stack.enter_context(only_one(place))
        if (entry := _read(place, before)) is not None:
            return entry
        result = survey()
        if result is not None and state_of({"file": path}) == before:
            with contextlib.suppress(OSError, UserError):  # then the next command reads it again
                values = {
                    "state": before,
                    "found": result.model_dump(),
                    "seal": _seal(before, result),
                }
                write_machine_file(place, values, digest)
        return result


def _read(place: Path, state: Mapping[str, Any]) -> Survey | None:
    """Return the cached survey of a file; None if it is missing or damaged, or if the file changed."""
    try:
        entry = _Entry.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None
    if entry.state != state or entry.seal != _seal(state, entry.survey):
        return None
    mark_used(place)
    return entry.survey


def _seal(state: Mapping[str, Any], survey: Survey) -> str:
    content = json.dumps([state, survey.model_dump()], sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
