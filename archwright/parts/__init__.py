"""How each choice is computed: one file per axis, each ending in a table from spec to module."""

from typing import Any

from archwright.parts.attention import ATTENTIONS
from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.init import INITS
from archwright.parts.masks import MASKS
from archwright.parts.norms import NORMS
from archwright.parts.positions import ABSOLUTE_POSITIONS, ROTARY_POSITIONS
from archwright.parts.residuals import RESIDUALS
from archwright.spec.choice import Choice

TABLES: dict[str, list[dict[Any, Any]]] = {
    "norm": [NORMS],
    "residual": [RESIDUALS],
    "position": [ABSOLUTE_POSITIONS, ROTARY_POSITIONS],
    "mask": [MASKS],
    "attention": [ATTENTIONS],
    "feedforward": [FEEDFORWARDS],
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
    absolute = getattr(choice, "absolute", True)
    table = tables[0] if absolute else tables[-1]
    if table.get(choice, part) is not part:
        raise ValueError(f"{choice.__name__}: has its part {table[choice].__name__} already")
    table[choice] = part
