"""Metric of a run: the last match in a log, JSON-lines or CSV file."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from archwright.spec.errors import UserError, nearest

FORMS = "stdout:REGEX, jsonl:FILE:KEY or csv:FILE:COLUMN"


class Reading(NamedTuple):
    """Value of a metric at one step."""

    step: int | None
    tokens: int | None
    value: float


@dataclass(frozen=True)
class Metric:
    """Place of a metric: the log, or a file in the run folder."""

    kind: str
    file: str = ""
    """File or glob in {out}; the newest match counts."""
    key: str = ""
    """Regular expression, JSON key or column."""

    @property
    def name(self) -> str:
        """Name of the metric, empty for a regular expression."""
        return "" if self.kind == "stdout" else self.key

    def readings(self, log: str, out: Path) -> list[Reading]:
        """Return all values in order, without values that a restart repeats.

        Raises:
            UserError: The file or the metric is missing.
        """
        rows = (
            (m.groupdict() | {"": m["value"] if "value" in m.groupdict() else m[1]})
            for m in re.finditer(self.key, log, re.MULTILINE)
        )
        found: list[Reading] = []
        for row in rows if self.kind == "stdout" else self._rows(out):
            value = _number(row[""])
            step, tokens = (_number(row.get(name)) for name in ("step", "tokens"))
            if value is None:
                raise UserError(f'--metric: found "{row[""]}"; expected a number')
            step = None if step is None else int(step)
            while (
                step is not None and found and found[-1].step is not None and found[-1].step >= step
            ):
                found.pop()
            found.append(Reading(step, None if tokens is None else int(tokens), value))
        if not found and self.kind == "stdout":
            raise UserError(f"--metric: no line of the log matches {self.key}")
        if not found:
            raise UserError(f"--metric: no line of {self.file} has a value of {self.key}")
        return found

    def _rows(self, out: Path) -> Iterator[Mapping[str, object]]:
        """Yield the lines with the metric, with its value under the key ""."""
        files = sorted(out.glob(self.file), key=lambda path: path.stat().st_mtime)
        if not files:
            raise UserError(f"--metric: {out} has no file {self.file}")
        with files[-1].open(encoding="utf-8", errors="replace", newline="") as file:
            names: set[str] = set()
            for row in map(_object, file) if self.kind == "jsonl" else csv.DictReader(file):
                names.update(filter(None, row))
                if row.get(self.key) not in (None, ""):
                    yield {**row, "": row[self.key]}
            if self.key not in names:
                listed = ", ".join(sorted(names)) or "nothing"
                raise UserError(
                    f"--metric: {files[-1]} has no {self.key}; found {listed}.{nearest(self.key, names)}"
                )


def metric_of(text: str) -> Metric:
    """Return the metric of `stdout:REGEX`, `jsonl:FILE:KEY` or `csv:FILE:COLUMN`.

    Raises:
        UserError: Another form, an invalid regular expression, or a file outside {out}.
    """
    kind, _, rest = text.partition(":")
    if kind == "stdout" and rest:
        try:
            pattern = re.compile(rest, re.MULTILINE)
        except re.error as error:
            raise UserError(f"--metric: {rest}: {error}") from None
        if not pattern.groups:
            raise UserError(
                f'--metric: found no group in {rest}; expected one around the number, such as "loss (\\S+)"'
            )
        return Metric(kind, "", rest)
    file, _, key = rest.partition(":")
    if kind not in ("jsonl", "csv") or not (file and key):
        hint = nearest(kind, ("stdout", "jsonl", "csv"))
        raise UserError(f'--metric: found "{text}"; expected {FORMS}.{hint}')
    file = file.removeprefix("{out}/")
    if PurePath(file).is_absolute() or ".." in PurePath(file).parts:
        raise UserError(f"--metric: found {file}; expected a path inside {{out}}")
    return Metric(kind, file, key)


def _object(line: str) -> dict[str, object]:
    """Return the object of a line; lines of other kinds are empty objects."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
