"""Crash-safe files of records, one JSON object per line."""

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
    """Return the records in a file, oldest first; empty if there is no file.

    An unfinished last line is skipped. Any other line without a valid record of its kind is skipped with
    a warning.
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
    """Append a record as a line of strict JSON (see `plain`).

    A crash leaves at most an unfinished last line. Readers skip it and the next call removes it.

    Raises:
        UserError: writing fails, for example on a full disk; the file is unchanged.
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
    """Remove records after `step` and damaged lines, atomically."""
    content = b""
    for line in _whole_lines(path):
        record = read_record(line)
        if record is not None and record["step"] <= step:
            content += line
    if path.exists() and content != path.read_bytes():
        atomic_write(path, content)


def plain(value: object) -> Any:
    """Convert a value for strict JSON: NumPy and torch scalars to numbers, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if not isinstance(value, str | bool | int | float | None):
        value = value.item() if hasattr(value, "item") else str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _whole_lines(path: Path) -> list[bytes]:
    """Return the finished lines, with their line ends."""
    content = path.read_bytes() if path.exists() else b""
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


def _cut_torn_line(file: IO[bytes]) -> int:
    """Remove an unfinished last line of an open file; return the new size."""
    size: int = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        size = file.read().rfind(b"\n") + 1
        file.truncate(size)
    return size
