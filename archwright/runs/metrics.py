"""Records as lines of JSON, in a file that survives its writer's death at any instant."""

import errno
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from archwright.files import atomic_write, clear_errors, open_to_append
from archwright.runs.records import Record, read_record


def read_records(path: Path) -> list[Record]:
    """Return the records in the file at `path`, oldest first; none when there is no file.

    A last line that its writer did not finish is left out, as is, with a warning, any other line
    that is no record or lacks what its kind needs.
    """
    records, damaged = [], []
    for number, line in enumerate(_whole_lines(path), start=1):
        if (record := read_record(line)) is not None:
            records.append(record)
        else:
            damaged.append(number)
    if damaged:
        lines = f"line {damaged[0]} is" if len(damaged) == 1 else f"{len(damaged)} lines are"
        first = "" if len(damaged) == 1 else f", the first is line {damaged[0]}"
        warnings.warn(f"{path}: {lines} damaged and left out{first}.", stacklevel=3)
    return records


def append_record(path: Path, record: Mapping[str, object]) -> None:
    """Add `record` as one line; nan and inf become null, numbers of numpy and torch plain ones.

    Dying in here leaves at most a torn last line, which readers ignore and the next call cuts.

    Raises:
        UserError: the disk is full; the file is then as it was.
    """
    line = (json.dumps(plain(record), allow_nan=False) + "\n").encode()
    with clear_errors(path), open_to_append(path, "a+b", buffering=0) as file:
        size = _cut_torn_line(file)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            raise


def cut_records(path: Path, step: int) -> None:
    """Drop the records of later steps than `step`, and damaged lines, all at once or not at all."""
    kept = b""
    for line in _whole_lines(path):
        record = read_record(line)
        if record is not None and record["step"] <= step:
            kept += line
    if path.exists() and kept != path.read_bytes():
        atomic_write(path, kept)


def plain(value: object) -> Any:
    """Return `value` as strict JSON has it: nan and inf are None, scalars of any kind numbers."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if not isinstance(value, str | bool | int | float | None):
        value = value.item() if hasattr(value, "item") else str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines that end, each with its end."""
    content = path.read_bytes() if path.exists() else b""
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def _cut_torn_line(file: IO[bytes]) -> int:
    """Truncate an open file to its last whole line; return its size."""
    size: int = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        size = file.read().rfind(b"\n") + 1
        file.truncate(size)
    return size
