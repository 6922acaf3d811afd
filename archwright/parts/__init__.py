"""How each choice is computed: one file per axis, each ending in a table from spec to module."""

from typing import Any

from archwright.parts.attention import ATTENTIONS
from archwright.parts.embeddings import TRANSFORMS
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.init import INITS
from archwright.parts.masks import MASKS
from archwright.parts.norms import NORMS
from archwright.parts.positions import ABSOLUTE_POSITIONS, ROTARY_POSITIONS, SCORE_POSITIONS
from archwright.parts.residuals import RESIDUALS
from archwright.spec.choice import Choice

TABLES: dict[str, list[dict[Any, Any]]] = {
    "norm": [NORMS],
    "residual": [RESIDUALS],
    "position": [ABSOLUTE_POSITIONS, SCORE_POSITIONS, ROTARY_POSITIONS],
    "mask": [MASKS],
    "attention": [ATTENTIONS],
    "feedforward": [FEEDFORWARDS],
    "transform": [TRANSFORMS],
    "init": [INITS],
}
"""The tables of each axis."""


def register(choice: type[Choice], part: type) -> None:
    """Let a choice from outside the package join its axis: models may name it from now on.

    `part` is constructed as the parts of its axis are; a norm, say, with (spec, dim).

    Raises:
        ValueError: the choice is no choice of a known axis, or has its part already.
    """
    tables = TABLES.get(getattr(choice, "axis", ""))
    if tables is None or choice.is_axis():
        raise ValueError(
            f"{choice.__name__}: expected a subclass of one of the axes {', '.join(TABLES)}"
        )
    table = _table_of_position(choice) if choice.axis == "position" else tables[0]
    if table.get(choice, part) is not part:
        raise ValueError(f"{choice.__name__}: has its part {table[choice].__name__} already")
    table[choice] = part


def _table_of_position(choice: type[Choice]) -> dict[Any, Any]:
    """Return the table of a position encoding, which depends on where it acts."""
    if getattr(choice, "absolute", False):
        return ABSOLUTE_POSITIONS
    return SCORE_POSITIONS if getattr(choice, "scores", False) else ROTARY_POSITIONS
