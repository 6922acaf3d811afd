"""Lenses of models of two stacks."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from archwright.hf.lenses import Config, Get, Lens, Table
from archwright.spec.model_spec import LayerSpec

ENCODER_AXES = frozenset(LayerSpec.model_fields) - {"cross_attention"}
"""Axes of the encoder's layers."""


@dataclass(frozen=True)
class InBoth:
    """What a lens says of the layers of the decoder, said of those of the encoder too. What a model has that differs
    there, a config cannot say."""

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
