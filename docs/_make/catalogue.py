"""`python -m docs._make.catalogue` writes docs/catalogue.md: every choice with its formula, its source, its users and
its command."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from archwright.catalogue.axes import (
    BASE,
    TOP,
    Family,
    Kind,
    Option,
    Section,
    command,
    sections,
)
from archwright.catalogue.usage import Usage, named, used_by
from archwright.format import listed

FILE = Path(__file__).parents[1] / "catalogue.md"

LAYERS = (
    "model.layer_kinds.local.attention.mask.kind=window",
    "model.layer_kinds.local.attention.mask.size=64",
    'model.layers.cycle=["local","local","default"]',
)
"""An example of layers that differ."""

HEAD = f"""\
# Catalogue

<!-- Written by `make docs` from the tables of choices and the presets. -->

For users who change an architecture: every choice with its formula, source, options, the presets that use it, and a
command.

A choice belongs to an **axis**, has a name, its `kind`, and options. Both are dotted keys on the command line:

```sh
archwright train {BASE} model.attention.mask.kind=window model.attention.mask.size=64
```

In a file, they are tables. In Python, they are assignments without `model.`:

```toml
base = "{BASE}"

[attention.mask]
kind = "window"
size = 64
```

```python
spec = archwright.load("{BASE}").override("attention.mask.kind=window", "attention.mask.size=64")
```

Unset options have their defaults. Instead of `{BASE}`, use any preset or file. All layers are equal
unless you define layer kinds, here two layers with a window for each layer without:

```sh
{command(LAYERS)}
```

`archwright list choices NAME` prints any part of this page, including choices from `--parts FILE`. `archwright
train {BASE} --dry-run` prints the values of a run that are not choices: data, evaluation, checkpoints, machine.
"""


def write() -> None:
    """Write the page into the checkout."""
    FILE.write_text(markdown(), encoding="utf-8")


def markdown() -> str:
    """Return the page."""
    usage, found = Usage(), sections()
    lines = [HEAD, *_contents(found)]
    for section in found:
        lines += _section(section, usage)
    return "\n".join(lines).rstrip() + "\n"


def _contents(found: Sequence[Section]) -> Iterator[str]:
    """Yield a line per section with links to its kinds; nested sections are indented."""
    yield "## Contents\n"
    paths = {section.path for section in found}
    for section in found:
        above = section.path.rpartition(".")[0]
        indent = "  " if above in paths - {"model", ""} else ""
        links = ", ".join(f"[{kind.name}](#{section.name}-{kind.name})" for kind in section.kinds)
        yield f"{indent}- {_link(section.name)}{': ' if links else ''}{links}"
    yield ""


def _section(section: Section, usage: Usage) -> Iterator[str]:
    yield f"## {_title(section.name)}\n"
    yield section.meaning + "\n"
    if section.path not in TOP:
        where = listed([f"`{place}`" for place in section.places])
        default = f", by default `{section.default}`" if section.default else ""
        several = len(section.places) > 1 and section.default
        yield f"Set at {where}{f'; the first is{default[1:]}' if several else default}.\n"
    if section.kinds and section.options:
        yield "Options of all kinds:\n"
    yield from _options(section.options, usage)
    for family in section.families:
        yield f"{family.meaning} Kinds: {_which(family, section)}.\n"
        yield from _options(family.options, usage)
    for kind in section.kinds:
        yield from _kind(section, kind, usage)


def _which(family: Family, section: Section) -> str:
    """Name the kinds of a family, or the other kinds if these are much fewer."""
    others = [kind.name for kind in section.kinds if kind.name not in family.kinds]
    most = len(others) < len(family.kinds) / 2
    words = listed([f"`{name}`" for name in (others if most else family.kinds)])
    return f"all but {words}" if most and others else "all" if most else words


def _kind(section: Section, kind: Kind, usage: Usage) -> Iterator[str]:
    yield f"### {section.name}: {kind.name}\n"
    yield kind.meaning + "\n"
    if users := " ".join(used_by(section, kind, usage)):
        yield users + "\n"
    yield f"```sh\n{command(kind.asks)}\n```\n"
    yield from _options(kind.options, usage)


def _options(options: Sequence[Option], usage: Usage) -> Iterator[str]:
    if not options:
        return
    yield "| assignment | default | values | meaning |\n|---|---|---|---|"
    for option in options:
        asks = f"`{shlex.join(option.asks)}`"
        values = f"a {_link(option.opens, option.opens.replace('_', ' '))}"
        presets = usage.presets_with_option(option)
        used = f" Set by {named(presets)}." if presets else ""
        cells = (
            asks,
            f"`{option.default}`" if option.default else "none: give one",
            values if option.opens else option.values,
            option.meaning + used,
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _link(name: str, text: str = "") -> str:
    return f"[{text or _title(name)}](#{_title(name).lower().replace(' ', '-')})"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


if __name__ == "__main__":
    write()
