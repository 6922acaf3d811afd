"""`python -m docs._make.lecture` writes docs/lecture.md: slides and their statements in docs/course, each row of the
lecture's table, its preset and its errors."""

import csv
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from archwright.catalogue.table import row_of
from archwright.format import percent
from archwright.spec.choice import Spec
from archwright.spec.read import load
from archwright.spec.unpublished import unpublished

FILE = Path(__file__).parents[1] / "lecture.md"
COURSE = FILE.parent / "course"
SLIDES = re.compile(r"^\*Slides? (\d+(?: (?:to|and) \d+)?)\b.*\*$", re.MULTILINE)
VERDICT = re.compile(
    r"^\*\*(Right|Mostly right|Conditional|Overstated|Contested|Wrong)\.\*\* ", re.MULTILINE
)

TITLES = {
    "year": "year",
    "norm": "norm",
    "parallel_layer": "layers",
    "pre_norm": "pre-norm",
    "position": "position",
    "activation": "activation",
    "stability": "stability",
}
"""Columns of the lecture's table, in the order of the page."""

ERAS = (("until 2020", 0, 2020), ("2021 to 2023", 2021, 2023), ("2024 and 2025", 2024, 2025))
GATED = ("SwiGLU", "GeGLU", "GEGELU")

HEAD = """\
# Lecture 3 in archwright

<!-- Written by `make docs` from docs/course, docs/_make/lecture_data and the presets. -->

For students of Stanford's CS336 (2025): lecture 3 on Transformer architectures, slide by slide. Each statement links to
its section in the [course](course/index.md): formula, derivation, a command with its output, the literature's figure
and a verdict. Statements and numbers are from public notes on the lecture, not from the slides.

## Slides

| slides | statement | verdict |
|---|---|---|
"""

TABLE = """\
## The table

The lecture's table, cell by cell. The model's sources contradict struck-out cells; numbers refer to the
[corrections](#corrections). Empty cells are empty in the lecture. `archwright show PRESET` draws a model, and
`--blame` adds the source of each value. [architectures.md](architectures.md) has further columns: heads, biases,
experts, masks.

z-loss is a term of the loss, not part of a model: set `z_loss=1e-4` in any run.
"""


FOLDER = Path(__file__).parent / "lecture_data"

Cells = dict[str, str]
Texts = Annotated[tuple[str, ...], Field(strict=False)]

WIRINGS = {
    "pre": ("Serial", "yes"),
    "pre+post": ("Serial", "yes"),
    "post": ("Serial", "no"),
    "output": ("Serial", "no"),
    "parallel": ("Parallel", "yes"),
    "parallel (2)": ("Parallel", "yes"),
    "serial": ("Serial", ""),
    "": ("", ""),
}
"""(is parallel, is pre-norm) for each wiring, as in the lecture."""

LECTURE_WORDS = {
    "GELU": "GeLU",
    "GEGLU": "GeGLU",
    "ReLU²": "SqReLu",
    "learned": "Absolute",
    "sinusoidal": "Sine",
    "ALiBi": "Alibi",
    "relative (T5)": "Relative",
    "relative (XL)": "Relative",
    "RoPE + NoPE": "Hybrid (RoPE+NoPE)",
    "RoPE 1/4": "RoPE",
    "RoPE 1/2": "RoPE",
    "pre+post norm": "Pre+post norm",
    "score cap 50": "Logit soft capping",
    "logit cap 30": "Logit soft capping",
}

IN_TRAINING = {"Z-loss"}
"""Stability tricks of the lecture that are terms of the loss; presets of models do not have them."""


class Row(Spec):
    """A row of the lecture's table."""

    name: str
    year: str
    cells: Cells
    """Text by column, without the name; empty if the lecture has none."""
    preset: str
    """Preset of the row; empty if there is none."""
    also: str
    """Another model with the same row, according to the lecture."""

    @property
    def statements(self) -> Cells:
        """Non-empty cells of the row. An empty cell of stability tricks means that there are none."""
        stated = {c: text for c, text in self.cells.items() if text or c == "stability"}
        return stated | {"stability": alphabetical(stated["stability"].split(", "))}


class Correction(Spec):
    """A cell of the table that the model's sources contradict."""

    name: str
    year: str
    column: str
    corrected: str
    """Correct value; empty if it is not published."""
    reason: str
    evidence: str
    """A paper and its section, a config.json, or published code."""
    code: str = ""
    """A file below transformers/models that shows it."""
    lines: Texts = ()
    """Text in that file."""


class Remark(Spec):
    """Information that a row omits but an implementer needs."""

    name: str
    year: str
    remark: str
    command: str


class Corrections(Spec):
    """Wrong cells, and incomplete rows."""

    corrections: Annotated[tuple[Correction, ...], Field(strict=False)]
    remarks: Annotated[tuple[Remark, ...], Field(strict=False)]


def table() -> list[Row]:
    """Return the lecture's table."""
    with (FOLDER / "table.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    rest = ("name", "preset", "also")
    return [
        Row(
            **{column: row[column] for column in (*rest, "year")},
            cells={column: text for column, text in row.items() if column not in rest},
        )
        for row in found
    ]


def corrections() -> Corrections:
    """Return the errors and omissions of the table."""
    return Corrections.model_validate(_toml("corrections.toml"))


def in_lecture_words(cells: Cells) -> Cells:
    """Return a row of `archwright list` with the lecture's columns."""
    parallel, pre_norm = WIRINGS[cells["wiring"]]
    tricks = [LECTURE_WORDS.get(word, word) for word in cells["stability"].split(", ")]
    return {
        "year": cells["year"],
        "norm": cells["norm"],
        "parallel_layer": parallel,
        "pre_norm": pre_norm,
        "position": LECTURE_WORDS.get(cells["position"], cells["position"]),
        "activation": LECTURE_WORDS.get(cells["activation"], cells["activation"]),
        "stability": alphabetical(tricks),
    }


def alphabetical(tricks: list[str]) -> str:
    """Return stability tricks in a fixed order, without terms of the loss."""
    return ", ".join(sorted({*tricks} - IN_TRAINING))


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def write() -> None:
    """Write the page into the checkout."""
    FILE.write_text(markdown(), encoding="utf-8")


def markdown() -> str:
    """Return the page."""
    rows = "\n".join(_slides())
    return (
        "\n".join([HEAD + rows, "", TABLE, *_table(), *_convergence(), *_rows_below()]).rstrip()
        + "\n"
    )


def _slides() -> Iterator[str]:
    """Yield a row for each statement of the course with slides, by slide."""
    found = []
    for page in sorted(COURSE.glob("*.md")):
        for statement in page.read_text("utf-8").split("\n### ")[1:]:
            title = statement.partition("\n")[0]
            source, verdict = SLIDES.search(statement), VERDICT.search(statement)
            if source and verdict:
                link = f"course/{page.name}#{anchor(title)}"
                first = int(source[1].split()[0])
                found.append((first, source[1], f"[{title}]({link})", verdict[1].lower()))
    for _, slides, link, said in sorted(found):
        yield f"| {slides} | {link} | {said} |"


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


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
    """Count the choices of the rows, by era."""
    yield "### Convergence, counted\n"
    yield "Counted from the presets of all rows that can be built:\n"
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
    yield "\n### A row without a model\n"
    yield (
        f'"{phantom.name}, {phantom.year}" was never published: its cells, {phantom.cells["norm"]}, '
        f"{phantom.cells['position'].lower()} positions and {phantom.cells['activation']}, match "
        "T5 v1.1, which has a separate row. GPT-2 dates from 2019 and has LayerNorm, learned positions and GELU.\n"
    )
    yield "```sh\narchwright diff gpt-2 t5-v1.1-xxl\n```\n"
    yield "### Unpublished systems\n"
    yield (
        "Three rows describe systems with unpublished architectures. `archwright list` shows the public facts. "
        "They cannot be built:\n"
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
