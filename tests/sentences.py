"""Exact sentences that users read, kept in `sentences.toml` and renewed by `pytest --renew-sentences`."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

FILE = Path(__file__).with_suffix(".toml")


def lines_of(section: str) -> dict[str, list[str]]:
    """Return the lines of a section of the file, such as `mistakes.texts`, by command or rule."""
    found: dict[str, list[str]] = _table(tomllib.loads(FILE.read_text("utf-8")), section)
    return found


def keys(section: str) -> list[tuple[str, str]]:
    """Return (section, key) of all lines below a section that has sections."""
    table = _table(tomllib.loads(FILE.read_text("utf-8")), section)
    return [(f"{section}.{name}", key) for name, part in table.items() for key in part]


class Sentences:
    """Compares what was answered with the file; with `renew`, the file takes the answer."""

    def __init__(self, renew: bool) -> None:
        self.renew = renew

    def check(
        self, section: str, key: str, found: Sequence[str], places: Mapping[str, str] | None = None
    ) -> None:
        """Assert that `found` stands in the file, where `{NAME}` is a value of `places`."""
        before = lines_of(section)[key]
        expected = [filled(line, places) for line in before]
        if self.renew and list(found) != expected:
            _write(section, key, [_emptied(line, before, places) for line in found])
        else:
            assert list(found) == expected


def filled(text: str, places: Mapping[str, str] | None) -> str:
    """Return a text with each `{NAME}` replaced by its value."""
    for name, value in (places or {}).items():
        text = text.replace("{" + name + "}", value)
    return text


def _emptied(line: str, before: Sequence[str], places: Mapping[str, str] | None) -> str:
    """Put back the names of values that the lines had before."""
    for name, value in (places or {}).items():
        if any("{" + name + "}" in old for old in before):
            line = line.replace(value, "{" + name + "}")
    return line


def _write(section: str, key: str, lines: list[str]) -> None:
    text = FILE.read_text("utf-8")
    values = tomllib.loads(text)
    _table(values, section)[key] = lines
    head = text[: text.index("\n\n") + 2]
    new = FILE.with_suffix(".new")
    new.write_text(head + tomli_w.dumps(values), "utf-8")
    new.replace(FILE)


def _table(values: dict[str, Any], section: str) -> dict[str, Any]:
    for name in section.split("."):
        values = values[name]
    return values
