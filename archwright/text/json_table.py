"""JSON files with a single object, from untrusted sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from archwright.spec import files
from archwright.spec.errors import UserError

Table = dict[str, Any]

MOST_BYTES = 1 << 28
"""Default limit on the bytes of a file."""


def read_table(path: Path, most: int = MOST_BYTES) -> Table:
    """Return the object in a JSON file of at most `most` bytes.

    Raises:
        UserError: The file is missing, too long, damaged, not an object, or has two values for a key.
    """
    return parse_table(read_text(path, most), path)


def parse_table(text: str, path: Path) -> Table:
    """Return the object in JSON text; errors name `path`.

    Raises:
        UserError: As in `read_table`.
    """
    try:
        content = json.loads(text, object_pairs_hook=_table, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: found {type(content).__name__}; expected a JSON object")
    return content


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a regular file.

    Raises:
        UserError: The file is missing, longer than `most` bytes, or not UTF-8.
    """
    try:
        return files.read_text(path, most, "a JSON file")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def first_line(error: Exception) -> str:
    """Return the first line of a library's error message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _constant(name: str) -> Any:
    """Return infinity as `transformers` writes it since version 5; a key that expects a number refuses it."""
    if name == "Infinity":
        return {"__float__": name}
    raise ValueError(f"{name} is not a JSON number")


def _table(pairs: list[tuple[str, Any]]) -> Table:
    table: Table = {}
    for key, value in pairs:
        if key in table and table[key] != value:
            raise ValueError(f'"{key[:80]}" appears twice, with different values')
        table[key] = value
    return table
