"""Lenses of models of two stacks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from archwright.hf.layer_types import Layers
from archwright.hf.lenses import Config, Get, Lens, Table, nested, read_all, write_all
from archwright.spec.model_spec import LayerSpec, ModelSpec

ENCODER_AXES = frozenset(LayerSpec.model_fields) - {"cross_attention"}
"""Axes of the encoder's layers."""


@dataclass(frozen=True)
class InBoth:
    """A lens whose values hold for the layers of both stacks; a config cannot say otherwise."""

    lens: Lens

    @property
    def key(self) -> str | None:
        """The key of a config that the lens is of, if it is of one."""
        return getattr(self.lens, "key", None)

    def read(self, config: Config) -> Table:
        table = self.lens.read(config)
        shared = {axis: value for axis, value in table.items() if axis in ENCODER_AXES}
        return {**table, "encoder": deepcopy(shared)}

    def write(self, get: Get) -> dict[str, Any]:
        return self.lens.write(get)


def in_both(*lenses: Lens) -> tuple[Lens, ...]:
    """Return lenses that speak of both stacks."""
    return tuple(InBoth(lens) for lens in lenses)


@dataclass(frozen=True)
class InPart:
    """What lenses say of one stack, in configs with a table for each.

    Args:
        part: the key of the stack's table in the config.
        lenses: what is read and written within it.
        at: the key of the stack in the spec; empty: the decoder, which is the spec itself.
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
    """A group of types of layers of one stack, in configs with a table for each."""

    part: str

    def names(self, config: Config, num_layers: int) -> list[str]:
        return super().names(config[self.part], num_layers)

    def of(self, role: str, config: Config) -> Table:
        return super().of(role, config[self.part])

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        return {self.part: super().write(spec)}
