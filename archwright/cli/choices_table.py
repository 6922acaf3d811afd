"""What `archwright list choices` prints: all kinds of every axis in a line each, or all that is known of some."""

import textwrap
from collections.abc import Iterator

from archwright.cli.parser import print_table, terminal_width
from archwright.reporting.catalogue import named, used_by
from archwright.spec.catalogue import (
    Option,
    Section,
    axes,
    command,
    quoted,
    refusal,
    sections,
    sentence,
)
from archwright.spec.errors import UserError, nearest
from archwright.spec.usage import Usage

INDENT = "    "


def print_choices() -> None:
    """Print every kind of every axis."""
    rows = [["axis", "kind", "what it is"]]
    rows += [[a.axis, kind, sentence(c.__doc__)] for a in axes() for kind, c in a.kinds.items()]
    print_table(rows)
    print("archwright list choices NAME says more of one of them.")


def print_choices_of(name: str) -> None:
    """Print an axis, a table or a kind with options, users, and how to ask for it.

    Raises:
        UserError: no such name.
    """
    found = _found(name, sections())
    usage = Usage()
    for section, kinds in found:
        for line in _lines(section, kinds, usage):
            print(line)


def _found(name: str, known: list[Section]) -> list[tuple[Section, list[str]]]:
    """Return the sections of that name with all their kinds, or those that have a kind of that name."""
    words = name.strip().lower().removesuffix(".kind")
    whole = [s for s in known if words in _names(s)]
    if whole:
        return [(s, [kind.name for kind in s.kinds]) for s in whole]
    axis, _, kind = words.replace("=", ".").replace(".kind.", ".").rpartition(".")
    parts = [s for s in known if not axis or axis in _names(s)]
    found = [(s, [kind]) for s in parts if kind in [k.name for k in s.kinds]]
    if not found:
        names = [n for s in known for n in (*_names(s), *(k.name for k in s.kinds))]
        names += [f"{s.name}.{k.name}" for s in known for k in s.kinds]
        raise UserError(
            f'list choices "{name}": expected an axis, a table or a kind, such as mask, head or '
            f"rope; archwright list choices has all of them.{nearest(words, names)}"
        )
    return found


def _names(section: Section) -> list[str]:
    return [section.name, *(p.removeprefix("model.") for p in section.places), *section.places]


def _lines(section: Section, kinds: list[str], usage: Usage) -> Iterator[str]:
    yield section.name
    yield from _wrapped(section.meaning, INDENT)
    if section.path:
        default = f", by default {section.default}" if section.default else ""
        yield from _wrapped(f"asked for at {', '.join(section.places)}{default}", INDENT)
    yield from _options(section.options, INDENT, usage)
    for family in section.families:
        if shown := [kind for kind in family.kinds if kind in kinds]:
            yield from ("", *_wrapped(f"{', '.join(shown)}: {family.meaning}", INDENT))
            yield from _options(family.options, INDENT, usage)
    yield ""
    for kind in section.kinds:
        if kind.name not in kinds:
            continue
        yield f"{section.name}: {kind.name}"
        yield from _wrapped(kind.meaning, INDENT)
        yield from (
            line for said in used_by(section, kind, usage) for line in _wrapped(said, INDENT)
        )
        wrong = refusal(kind.asks)
        yield from _wrapped(f"not yet: {wrong}", INDENT) if wrong else [INDENT + command(kind.asks)]
        yield from _options(kind.options, INDENT, usage)
        yield ""


def _options(options: tuple[Option, ...], indent: str, usage: Usage) -> Iterator[str]:
    """Yield two lines or more for each option: how to ask for it, then what it is."""
    for option in options:
        yield f"{indent}{INDENT}{quoted(option.asks)}"
        default = f"; by default {option.default}" if option.default else ""
        presets = usage.of_option(option)
        used = f" Set by {named(presets)}." if presets else ""
        said = f"{option.meaning} Takes {option.values}{default}.{used}".strip()
        yield from _wrapped(said, indent + 2 * INDENT)


def _wrapped(text: str, indent: str) -> list[str]:
    width = max(40, terminal_width())
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
