"""Lenses of encoder-decoder models."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from archwright.hf.layer_types import Layers
from archwright.hf.lenses import Config, Get, Lens, Table, nested, read_all, write_all
from archwright.spec.model_spec import LayerSpec, ModelSpec

ENCODER_AXES = frozenset(LayerSpec.model_fields) - {"cross_attention"}
"""Axes of encoder layers."""


@dataclass(frozen=True)
class InBoth:
    """A lens with the same values for encoder and decoder layers."""

    lens: Lens

    @property
    def key(self) -> str | None:
        """Config key of the lens; None if it has no single key."""
        return getattr(self.lens, "key", None)

    def read(self, config: Config) -> Table:
        table = self.lens.read(config)
        shared = {axis: value for axis, value in table.items() if axis in ENCODER_AXES}
        return {**table, "encoder": deepcopy(shared)}

    def write(self, get: Get) -> dict[str, Any]:
        return self.lens.write(get)


def in_both(*lenses: Lens) -> tuple[Lens, ...]:
    """Apply lenses to both stacks."""
    return tuple(InBoth(lens) for lens in lenses)


@dataclass(frozen=True)
class InPart:
    """Lenses of one stack, in configs with a table per stack.

    Args:
        part: Config key of the stack's table.
        lenses: Lenses within the table.
        at: Key of the stack in the spec; empty: the decoder, at the top level.
    """

    part: str
    lenses: Sequence[Lens]
    at: str = ""

    def read(self, config: Config) -> Table:
        table = read_all(self.lenses, config[self.part])
        return nested(self.at, table) if self.at else table

    def write(self, get: Get) -> dict[str, Any]:
        within = f"{self.at}." if self.at else ""
        return {self.part: write_all(self.lenses, lambda path: get(within + path))}


@dataclass(frozen=True)
class LayersInPart(Layers):
    """Layer types of one stack, in configs with a table per stack."""

    part: str

    def names(self, config: Config, num_layers: int) -> list[str]:
        return super().names(config[self.part], num_layers)

    def of(self, role: str, config: Config) -> Table:
        return super().of(role, config[self.part])

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        return {self.part: super().write(spec)}
