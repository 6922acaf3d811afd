"""Output of `archwright list choices`: all kinds, or details of one."""

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from archwright.cli.parser import print_table, terminal_width
from archwright.spec.errors import UserError, nearest
from archwright.spec.other_names import CHOICES, KEYS

INDENT = "    "

Section = dict[str, Any]
"""An axis or a table, from the listing of choices."""


def print_choices(sections: Sequence[Section]) -> None:
    """Print every kind of every axis."""
    rows = [["axis", "kind", "what it is"]]
    rows += [[s["name"], kind["name"], kind["about"]] for s in sections for kind in s["kinds"]]
    print_table(rows)
    print("archwright list choices NAME prints the details of one.")


def print_choices_of(name: str, sections: Sequence[Section], parts: Sequence[str] = ()) -> None:
    """Print an axis, table or kind, with `parts` in its commands.

    Raises:
        UserError: unknown name.
    """
    for section, kinds in _matches(name, sections):
        for line in _lines(section, kinds, parts):
            print(line)


def _matches(name: str, sections: Sequence[Section]) -> list[tuple[Section, list[str]]]:
    """Return (section, names of kinds) for each section called `name`, or else for the kinds called `name`."""
    _, axes, kinds = named(name, sections)
    matches = [(s, _kinds(s)) for s in axes] or [(s, [kind["name"]]) for s, kind in kinds]
    if not matches and plain(name) in OTHER_NAMES:  # an option's name elsewhere
        raise UserError(
            f'list choices "{name}": an option, not a kind; see archwright explain {shlex.quote(name)}'
        )
    if not matches:
        names = [n for s in sections for n in (*names_of(s), *_kinds(s))]
        names += [f"{s['name']}.{kind}" for s in sections for kind in _kinds(s)]
        raise UserError(
            f'list choices "{name}": expected an axis, a table or a kind, such as mask, head or '
            f"rope; archwright list choices has all of them.{nearest(name.lower(), names)}"
        )
    return matches


def plain(word: str) -> str:
    """Return a word in lower case, without hyphens, underscores and blanks."""
    return re.sub("[-_ ]", "", word.strip().lower())


OTHER_NAMES = {
    plain(name): path.removesuffix(".kind") for name, path in {**KEYS, **CHOICES}.items()
}


def named(
    word: str, sections: Sequence[Section]
) -> tuple[str, list[Section], list[tuple[Section, dict[str, Any]]]]:
    """Return a word's path, and the axes and kinds of that name."""
    wanted = plain(word).replace("=", ".").removesuffix(".kind").replace(".kind.", ".")
    names = [(s, [plain(name) for name in names_of(s)]) for s in sections]
    is_axis = any(wanted in aliases for _, aliases in names)
    path = wanted if is_axis else plain(OTHER_NAMES.get(wanted, wanted))
    path = path.removeprefix("model.")
    axis, _, name = path.rpartition(".")
    kinds = [(s, k) for s, aliases in names for k in s["kinds"] if not axis or axis in aliases]
    axes = [s for s, aliases in names if path in aliases]
    return path, axes, [(s, kind) for s, kind in kinds if plain(kind["name"]) == name]


def with_parts(command: str, parts: Sequence[str]) -> str:
    """Append `--parts FILE` to a command for each file."""
    return " ".join([command, *(f"--parts {shlex.quote(file)}" for file in parts)])


def names_of(section: Section) -> list[str]:
    """Return the name and the paths of a section."""
    paths = [*filter(None, section["paths"])]  # the path of a run is empty
    return [section["name"], *(path.removeprefix("model.") for path in paths), *paths]


def _kinds(section: Section) -> list[str]:
    return [kind["name"] for kind in section["kinds"]]


def _lines(section: Section, kinds: list[str], parts: Sequence[str]) -> Iterator[str]:
    yield section["name"]
    for text in section["about"]:
        yield from wrapped(text, INDENT)
    yield from _options(section["options"])
    for family in section["families"]:
        if shown := [kind for kind in family["kinds"] if kind in kinds]:
            yield from ("", *wrapped(f"{', '.join(shown)}: {family['about']}", INDENT))
            yield from _options(family["options"])
    yield ""
    for kind in section["kinds"]:
        if kind["name"] not in kinds:
            continue
        yield f"{section['name']}: {kind['name']}"
        for text in (kind["about"], *kind["users"]):
            yield from wrapped(text, INDENT)
        if kind["refusal"]:
            yield from wrapped(f"not yet: {kind['refusal']}", INDENT)
        else:
            yield INDENT + with_parts(kind["command"], parts)
        yield from _options(kind["options"])
        yield ""


def _options(options: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the assignment and the description of each option."""
    for assignment, about in options:
        yield f"{2 * INDENT}{assignment}"
        yield from wrapped(about, 3 * INDENT)


def wrapped(text: str, indent: str = "") -> list[str]:
    """Wrap a paragraph to the width of the terminal."""
    width = max(40, terminal_width())
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
