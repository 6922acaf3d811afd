"""plan.json: values of a study's plan outside its specs, with checksums of the plan's files."""

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import Field

from archwright.files import atomic_write
from archwright.lab.design.matching import Counts
from archwright.spec.choice import Spec
from archwright.spec.errors import UserError

PLAN = "plan.json"

FORMAT = 4
"""Number of the layout of a study's folder."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a run: its setup, each step, and each evaluated token."""

    setup: float
    step: float
    token: float
    counted: bool = False
    """True if computed from FLOPs instead of measured."""

    def run(self, steps: int, evaluated: int) -> float:
        """Return the seconds of a whole run."""
        return self.setup + steps * self.step + evaluated * self.token


class ArmRecord(Spec):
    """Record of a variant."""

    name: str
    words: tuple[str, ...]
    tokenizer: int = Field(ge=0)
    """Number of its tokenizer; the baseline's is 0."""
    counts: Counts
    cost: Cost


class PlanRecord(Spec):
    """Contents of plan.json."""

    format: int = FORMAT
    workers: int = Field(ge=1)
    horizons: tuple[float, ...]
    shorter_pairs: int = Field(ge=0)
    ends: tuple[int, ...]
    steps: int = Field(ge=1)
    evaluation_tokens: int = Field(ge=1)
    arms: tuple[ArmRecord, ...] = Field(min_length=1)
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the files of the plan."""
    checksum: str = ""
    """SHA-256 of all other values."""


def write(record: PlanRecord, folder: Path, files: Iterable[Path]) -> None:
    """Write plan.json, with checksums of `files` (paths relative to the folder)."""
    sealed = {file.as_posix(): _sha256((folder / file).read_bytes()) for file in files}
    values = record.model_copy(update={"files": sealed}).model_dump(mode="json")
    values["checksum"] = checksum(values)
    atomic_write(folder / PLAN, json.dumps(values, indent=2) + "\n")


def read(folder: Path) -> PlanRecord:
    """Return the plan in a study's folder.

    Raises:
        UserError: The plan or one of its files was changed, or its format is not supported.
    """
    file = folder / PLAN
    try:
        text = file.read_text(encoding="utf-8")
        values = json.loads(text)
        found = values["format"]
        if found == FORMAT and values["checksum"] == checksum(values):
            record = PlanRecord.model_validate_json(text)
            _check_files(folder, record)
            return record
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        found = FORMAT
    if found != FORMAT:
        raise UserError(
            f"{file}: found format {str(found)[:20]}, and this version reads {FORMAT}: go on with the version of "
            "archwright that planned the study, or give --out a new folder"
        )
    raise UserError(
        f"{file}: cut short or changed since it was written: bring it back as it was, or give --out a new "
        "folder: the study is planned again there and uses the runs that fit"
    )


def _check_files(folder: Path, record: PlanRecord) -> None:
    for name, sha256 in record.files.items():
        path = folder / name
        if not path.is_file() or _sha256(path.read_bytes()) != sha256:
            raise UserError(
                f"{path}: changed or gone since the study was planned: bring it back as it was, or give the study as "
                f"it is now a folder of its own: --out {shlex.quote(str(free_name(folder)))}"
            )


def free_name(folder: Path) -> Path:
    """Return the first unused path next to a folder, such as studies/x-2."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(path for path in names if not path.exists())


def checksum(values: dict[str, Any]) -> str:
    """Return the SHA-256 of a plan's values without their checksum."""
    rest = {key: value for key, value in values.items() if key != "checksum"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
