"""`python -m archwright.catalogue.lecture_page` writes docs/lecture.md: each claim and each row of the lecture, the
preset that it is about, what is wrong with it, and commands that show it."""

from collections.abc import Iterator
from pathlib import Path

from archwright.catalogue.lecture import (
    Claim,
    Correction,
    Row,
    claims,
    corrections,
    in_lecture_words,
    table,
)
from archwright.catalogue.table import row_of
from archwright.format import percent
from archwright.spec.read import load
from archwright.spec.unpublished import unpublished

FILE = Path(__file__).parents[2] / "docs" / "lecture.md"

TITLES = {
    "year": "year",
    "norm": "norm",
    "parallel_layer": "layers",
    "pre_norm": "pre-norm",
    "position": "position",
    "activation": "activation",
    "stability": "stability",
}
"""Columns of the lecture's table, as the page has them."""

ERAS = (("until 2020", 0, 2020), ("2021 to 2023", 2021, 2023), ("2024 and 2025", 2024, 2025))
GATED = ("SwiGLU", "GeGLU", "GEGELU")

HEAD = """\
# Lecture 3 in archwright

<!-- Written by `make docs` from archwright/presets/lecture and the presets. -->

Lecture 3 of Stanford's CS336 (2025) is on what became of the Transformer: which choices models made, and why. This
page goes through it, slide by slide and row by row, with commands for each claim. Claims and numbers of slides are
those of public notes on the lecture; the slides themselves were not seen.

A verdict says how a claim stands in the literature, not what your own run will show. That is what the commands are
for: `show`, `list` and `diff` answer at once, `plan` counts, `profile` measures for some seconds, `train` takes its
budget, and `compare` takes minutes to an hour and ends in a verdict of its own, with an interval (`--dry-run` says how
long, before anything is trained). That verdict speaks of its own size and budget.
"""

ROPE = """\
### RoPE and a text that moves

The same text at positions 0 to 31, and at 1000 to 1031: logits move with sinusoidal positions, and with RoPE only by
rounding.

```python
import torch

import archwright as aw

spec = aw.load("modern").override("dim=64", "num_layers=2", "vocab_size=256", "context_length=2048")
tokens = torch.arange(32)[None]
for kind in ("rope", "sinusoidal"):
    model = aw.build(spec.override(f"position.kind={kind}"), seed=0)
    here, there = (model(tokens, position_ids=torch.arange(32) + s).logits for s in (0, 1000))
    print(kind, (here - there).abs().max().item())
```
"""

TABLE = """\
## The table

The lecture's table, cell by cell. What is struck out is contradicted by the model's sources; the number is that of the
reason [below](#corrections). An empty cell is empty in the lecture, too. `archwright show PRESET` draws a model, with
`--blame` it names the source of each value, and [architectures.md](architectures.md) has the columns that the lecture's
table lacks: heads, biases, experts, masks.

z-loss is a term of the loss and no part of a model: `z_loss=1e-4` asks for it in any run.
"""


def write() -> None:
    """Write the page into the checkout."""
    FILE.write_text(markdown(), encoding="utf-8")


def markdown() -> str:
    """Return the page."""
    lines = [HEAD]
    for topic in claims().topics:
        lines.append(f"## {topic.title}\n")
        for claim in topic.claims:
            lines += _claim(claim)
        if topic.title == "Positions":
            lines.append(ROPE)
    return "\n".join([*lines, TABLE, *_table(), *_convergence(), *_rows_below()]).rstrip() + "\n"


def _claim(claim: Claim) -> Iterator[str]:
    first, last = claim.slides
    slides = f"Slide {first}" if first == last else f"Slides {first} to {last}"
    yield f"**{slides}. {claim.claim}**\n"
    yield f"*{claim.verdict.capitalize()}.* {claim.remark}".rstrip() + "\n"
    yield "```sh\n" + "\n".join(claim.commands) + "\n```\n"


def _table() -> Iterator[str]:
    found = corrections().corrections
    numbers = {(c.name, c.year, c.column): i for i, c in enumerate(found, 1)}
    yield f"| name | {' | '.join(TITLES.values())} | preset |"
    yield "|---" * (len(TITLES) + 2) + "|"
    for row in table():
        cells = [
            _cell(text, found[n - 1], n)
            if (n := numbers.get((row.name, row.year, column)))
            else text
            for column, text in row.cells.items()
        ]
        presets = ", ".join(f"`{name}`" for name in (row.preset, row.also) if name)
        yield f"| {row.name} | {' | '.join(cells)} | {presets or 'none: see below'} |"
    yield ""


def _cell(text: str, correction: Correction, number: int) -> str:
    struck = f"~~{text}~~ " if text else ""
    return f"{struck}{correction.corrected or 'unpublished'} ({number})"


def _convergence() -> Iterator[str]:
    """Count what the rows chose, era by era."""
    yield "### Convergence, counted\n"
    yield "Of the rows whose model can be built, as its preset has it:\n"
    yield "| years | models | pre-norm | RMSNorm | RoPE | gated feed-forward |\n|---|--:|--:|--:|--:|--:|"
    presets = [row.preset for row in table() if row.preset and row.preset not in unpublished()]
    models = [in_lecture_words(row_of(load(preset)).cells) for preset in presets]
    for era, first, last in ERAS:
        found = [cells for cells in models if first <= int(cells["year"]) <= last]
        shares = [
            sum(cells["pre_norm"] == "yes" for cells in found),
            sum(cells["norm"] == "RMSNorm" for cells in found),
            sum("RoPE" in cells["position"] for cells in found),
            sum(cells["activation"] in GATED for cells in found),
        ]
        counted = " | ".join(percent(share / len(found)) for share in shares)
        yield f"| {era} | {len(found)} | {counted} |"
    yield ""


def _rows_below() -> Iterator[str]:
    """Yield what is to be said of single rows."""
    found, by_row = corrections(), {(row.name, row.year): row for row in table()}
    yield "### Corrections\n"
    for number, correction in enumerate(found.corrections, 1):
        yield from _correction(number, correction, by_row[correction.name, correction.year])
    (phantom,) = (row for row in by_row.values() if not row.preset)
    yield "\n### A row of no model\n"
    yield (
        f'"{phantom.name}, {phantom.year}" is none that was published: its cells, {phantom.cells["norm"]}, '
        f"{phantom.cells['position'].lower()} positions and {phantom.cells['activation']}, are those of "
        "T5 v1.1, which has a row of its own. GPT-2 is of 2019, with LayerNorm, learned positions and GELU.\n"
    )
    yield "```sh\narchwright diff gpt-2 t5-v1.1-xxl\n```\n"
    yield "### Unpublished systems\n"
    yield (
        "Three rows are of systems whose architecture is not published. `archwright list` has what is public of "
        "them; they cannot be built:\n"
    )
    hidden = unpublished()
    for row in by_row.values():
        if row.preset in hidden:
            model = hidden[row.preset]
            yield f"- **{row.name}** (`{row.preset}`): {model.unpublished} ({model.source})."
    yield "\n### What rows leave out\n"
    for remark in found.remarks:
        yield f"- **{remark.name}, {remark.year}**: {remark.remark}. `{remark.command}`"


def _correction(number: int, correction: Correction, row: Row) -> Iterator[str]:
    before = (
        f'"{row.cells[correction.column]}"' if row.cells[correction.column] else "an empty cell"
    )
    after = f'"{correction.corrected}"' if correction.corrected else "unpublished"
    sources = [correction.evidence]
    if correction.code:
        sources.append(f"transformers, `models/{correction.code}`")
    show = "archwright list" if row.preset in unpublished() else f"archwright show {row.preset}"
    yield (
        f"{number}. **{row.name}, {row.year}: {TITLES[correction.column]} is {after}; the lecture has {before}.** "
        f"{correction.reason[0].upper()}{correction.reason[1:]} ({'; '.join(sources)}). `{show}`"
    )


if __name__ == "__main__":
    write()
