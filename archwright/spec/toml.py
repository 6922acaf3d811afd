"""Safe reading of TOML files of any origin, with clear errors."""

import re
import tomllib
from pathlib import Path
from typing import Any

from archwright.spec.errors import UserError
from archwright.spec.files import read_text

MOST_BYTES = 1 << 20
"""Most bytes of a spec's file; usual files have some thousands."""
MOST_DEPTH = 32
"""Deepest nesting of tables and lists; usual specs have less than ten."""
MOST_DIGITS = 4300
"""Most digits of an integer; Python refuses to parse longer ones, which take quadratic time."""

TOO_DEEP = f"found tables or lists more than {MOST_DEPTH} deep in one another"
LONG_KEY = re.compile(
    rf"""(?:^|[\[{{,])[ \t]*+(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{2 * MOST_DEPTH}}}""", re.MULTILINE
)
"""A dotted key that takes quadratic time to parse."""
LONG_INTEGER = re.compile(rf"[0-9_]{{{MOST_DIGITS + 1},}}")


class Unreadable(ValueError):  # noqa: N818
    """TOML that cannot be read."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a file.

    Raises:
        UserError: The file is missing, is not text, or is not TOML.
    """
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder; expected a TOML file")
        return parse_toml(read_text(path, MOST_BYTES, "a TOML file").removeprefix("\ufeff"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    except Unreadable as error:
        raise UserError(f"{path}: {error}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a text.

    Raises:
        ValueError: A tomllib.TOMLDecodeError, or Unreadable for values nested too deep or integers too long.
    """
    if LONG_KEY.search(text):
        raise Unreadable(TOO_DEEP)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    except ValueError:  # int() refuses long integers
        raise Unreadable(_where_too_long(text)) from None
    _check_bounds(found, text)
    return found


def _check_bounds(table: dict[str, Any], text: str) -> None:
    """Refuse nesting and integers beyond the limits of recursion and printing."""
    values, depth = [*table.values()], 1
    while values:
        if depth > MOST_DEPTH:
            raise Unreadable(TOO_DEEP)
        if any(isinstance(v, int) and v.bit_length() > 3 * MOST_DIGITS for v in values):
            raise Unreadable(_where_too_long(text))
        nested = [
            v.values() if isinstance(v, dict) else v for v in values if isinstance(v, (dict, list))
        ]
        values, depth = [value for inner in nested for value in inner], depth + 1


def _where_too_long(text: str) -> str:
    """Return an error for an integer that is too long, with its line if found."""
    found = LONG_INTEGER.search(text)
    line = f" (at line {text.count(chr(10), 0, found.start()) + 1})" if found else ""
    return f"found an integer of more than {MOST_DIGITS:,} digits{line}"
