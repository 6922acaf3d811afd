"""JSON files that hold one table, from strangers: read whole, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from archwright.spec import files
from archwright.spec.errors import UserError

Table = dict[str, Any]

MOST_BYTES = 1 << 28
"""Of a file that is read."""


def read_table(path: Path, most: int = MOST_BYTES) -> Table:
    """Return the table in a JSON file of at most `most` bytes.

    Raises:
        UserError: there is none, or it is damaged, of another kind, or says two things by one key.
    """
    return parse_table(read_text(path, most), path)


def parse_table(text: str, path: Path) -> Table:
    """Return the table in the text of a file, whose path errors name.

    Raises:
        UserError: as `read_table` says.
    """
    try:
        found = json.loads(text, object_pairs_hook=_table, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: found {type(found).__name__}; expected a JSON object")
    return found


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a plain file.

    Raises:
        UserError: there is none, it is longer than such files are, or not UTF-8.
    """
    try:
        return files.read_text(path, most, "a JSON file")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def first_line(error: Exception) -> str:
    """Return the first line of a library's complaint."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _table(pairs: list[tuple[str, Any]]) -> Table:
    table: Table = {}
    for key, value in pairs:
        if key in table and table[key] != value:
            raise ValueError(f'"{key[:80]}" stands there twice, with different values')
        table[key] = value
    return table
