"""Measurements of this machine, kept for a week: what one run has measured, the next ones need not."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AwareDatetime, BaseModel, Field

from archwright.files import atomic_write, sweep
from archwright.machine.disturbance import Watch
from archwright.text.cache import cache_folder

FORMAT = 1
"""Number of the layout of these files; raised also where the same question is measured in another way."""

KEPT = timedelta(days=7)
"""How long a measurement holds: a neighbour's noise should not stay for ever."""

KEPT_DISTURBED = timedelta(hours=1)
"""How long one holds that was made beside other work: long enough for what is typed in a row, and no longer."""
BESIDE = "beside other work"

REMEASURE = "ARCHWRIGHT_REMEASURE"
"""Variable of the environment that asks for measuring again; what is found takes the place of what was kept."""


class Measurement(NamedTuple):
    """Numbers by name, and their age as a reason ends with it: nothing where they are new."""

    values: Mapping[str, float]
    age: str = ""


class _Kept(BaseModel):
    """Contents of a file. The question is there for people: the file's name is its hash."""

    question: dict[str, Any]
    values: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    time: AwareDatetime
    disturbed: bool = False
    """Whether other work took cores away meanwhile."""
    digest: str = ""
    """Hash of the other values; files of the first releases have none."""

    def sealed(self) -> "_Kept":
        """Return the same with its hash."""
        content = self.model_dump_json(exclude={"digest"}).encode()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return self.model_copy(update={"digest": digest})


def measured(
    question: Mapping[str, Any], names: tuple[str, ...], measure: Callable[[], Mapping[str, float]]
) -> Measurement:
    """Return what was measured for `question` within the last week, or measure it now and keep it: for an hour where
    other work disturbs it.

    Args:
        question: all that the numbers depend on.
        names: of the numbers; where `measure` returns fewer, they are not kept.
    """
    question = {"format": FORMAT, "names": names, **question}
    asked = json.dumps(question, sort_keys=True).encode()
    digest = hashlib.blake2b(asked, digest_size=16).hexdigest()
    file = cache_folder("measured", f"{digest}.json")
    kept = None if os.environ.get(REMEASURE) else _read(file, names)
    if kept is not None:
        beside = f" {BESIDE}" if kept.disturbed else ""
        return Measurement(
            kept.values, f", as measured on {kept.time.astimezone():%Y-%m-%d}{beside}"
        )
    watch = Watch()
    values = measure()
    disturbed = watch.disturbed()
    if set(values) == set(names):
        with contextlib.suppress(ValueError):  # then the next run measures again
            now = _Kept(
                question=question,
                values=dict(values),
                time=datetime.now(UTC),
                disturbed=disturbed,
            )
            sweep(file.parent, r"[0-9a-f]{32}\.json")
            atomic_write(file, now.sealed().model_dump_json(indent=2))
    return Measurement(values, f", measured {BESIDE}" if disturbed else "")


def _read(file: Path, names: tuple[str, ...]) -> _Kept | None:
    """Return what a file holds, if that is whole, still holds, and is of these names."""
    try:
        kept = _Kept.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None
    if kept.digest and kept != kept.sealed():
        return None
    age = datetime.now(UTC) - kept.time
    holds = KEPT_DISTURBED if kept.disturbed else KEPT
    return kept if timedelta() <= age < holds and set(kept.values) == set(names) else None
