"""The lecture's table of architectures, what its sources contradict, and the claims of its slides, as data."""

import csv
import tomllib
from typing import Annotated, Any, Literal

from pydantic import Field

from archwright import presets
from archwright.spec.choice import Spec

FOLDER = presets.FOLDER / "lecture"

Cells = dict[str, str]
Texts = Annotated[tuple[str, ...], Field(strict=False)]
Verdict = Literal["right", "mostly right", "conditional", "overstated", "contested", "wrong"]

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
"""Whether a wiring is parallel, and whether it is pre-norm, as the lecture has it."""

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
"""Stability tricks of the lecture that are terms of the loss, in no preset of a model."""


class Row(Spec):
    """A row of the lecture's table."""

    name: str
    year: str
    cells: Cells
    """By column, without the name; empty where the lecture is silent."""
    preset: str
    """The model of the row; empty: there is none."""
    also: str
    """Another model that the row is said to hold for."""

    @property
    def statements(self) -> Cells:
        """What the row states. An empty cell states nothing, except that there is no stability trick."""
        stated = {c: text for c, text in self.cells.items() if text or c == "stability"}
        return stated | {"stability": alphabetical(stated["stability"].split(", "))}


class Correction(Spec):
    """A cell of the table that its sources contradict."""

    name: str
    year: str
    column: str
    corrected: str
    """Empty: what the cell states is not published."""
    reason: str
    evidence: str
    """A paper and its section, a config.json, or published code."""
    code: str = ""
    """A file below transformers/models that shows it."""
    lines: Texts = ()
    """What stands in that file."""


class Remark(Spec):
    """What a row leaves out that an implementer must know."""

    name: str
    year: str
    remark: str
    command: str


class Claim(Spec):
    """A claim of one or more slides, how it stands in the literature, and what shows it."""

    slides: Annotated[tuple[int, int], Field(strict=False)]
    """First and last."""
    claim: str
    verdict: Verdict
    remark: str
    commands: Texts = Field(min_length=1)


class Topic(Spec):
    """Claims on one thing."""

    title: str
    claims: Annotated[tuple[Claim, ...], Field(strict=False)]


class Corrections(Spec):
    """Cells that are wrong, and rows that say too little."""

    corrections: Annotated[tuple[Correction, ...], Field(strict=False)]
    remarks: Annotated[tuple[Remark, ...], Field(strict=False)]


class Claims(Spec):
    """The slides."""

    without_claims: Annotated[tuple[int, ...], Field(strict=False)]
    """Slides that claim nothing: titles, summaries, references."""
    topics: Annotated[tuple[Topic, ...], Field(strict=False)]


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
    """Return what the table has wrong, and what it leaves out."""
    return Corrections.model_validate(_toml("corrections.toml"))


def claims() -> Claims:
    """Return what the slides claim."""
    return Claims.model_validate(_toml("claims.toml"))


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
    """Return stability tricks in one order, without those of training."""
    return ", ".join(sorted({*tricks} - IN_TRAINING))


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
