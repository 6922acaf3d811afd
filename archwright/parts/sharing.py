"""Modules that the layers of a model share: patterns of masks, rotary angles, and tables of distances."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from archwright.parts.linear import TokenTable
from archwright.parts.masks import MaskPattern, pattern_of
from archwright.parts.positions import POSITIONS
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask
from archwright.spec.positions import Position

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Shared(Generic[T]):
    """A reference to what several layers share. A module in it is registered by its owner, and not again here."""

    name: str
    """Key by which a compiled layer knows it: the same in every model of one shape. Empty: no other layer shares it."""
    value: T


@dataclass
class Sharing:
    """The patterns and position encodings of a model: one for each distinct choice."""

    patterns: dict[str, MaskPattern] = field(default_factory=dict)
    rotaries: dict[str, nn.Module] = field(default_factory=dict)
    relatives: dict[str, nn.Module] = field(default_factory=dict)
    _choices: dict[str, Any] = field(default_factory=dict)
    """The spec that each of them was made from."""

    def named(
        self, axis: str, made: dict[str, Any], choice: Any, new: Callable[[], Any]
    ) -> Shared[Any]:
        """Return what was made from an equal choice, or make it."""
        for name in made:
            if self._choices[name] == choice:
                return Shared(name, made[name])
        name = f"{axis}_{len(made)}"
        self._choices[name], made[name] = choice, new()
        return Shared(name, made[name])


@dataclass(frozen=True)
class LayerInfo:
    """Site of a mixer when it is made: which layer it stands in, its positions, and what layers share.

    Without arguments it is that of a mixer alone: in the first layer, without positions.
    """

    number: int = 1
    """The number of the layer, counted from 1."""
    position: Position = Position.none()
    """The layer's position encoding."""
    sharing: Sharing = field(default_factory=Sharing)
    vocab_size: int | None = None
    """Rows of the model's embedding; None where no model is known."""
    memory_dim: int | None = None
    """Width of the encoder's output; None where there is none."""

    def token_table(self, width: int, name: str) -> TokenTable:
        """Return a table with a row of this width for each token of the vocabulary, for the option `name`.

        Raises:
            UserError: no model, and so no vocabulary, is known.
        """
        if self.vocab_size is None:
            raise UserError(
                f'{name}.kind: needs a row for each token, and a part alone has no vocabulary; expected "none", or '
                "the whole model"
            )
        return TokenTable(self.vocab_size, width)

    def pattern(self, mask: Mask, num_heads: int) -> Shared[MaskPattern]:
        """Return the pattern of a mask, for this number of heads and this layer if they matter."""
        layer = self.number if mask.differs_by_layer else 1
        key = (mask, num_heads if mask.differs_by_head else 1, layer)
        patterns = self.sharing.patterns
        return self.sharing.named("mask", patterns, key, lambda: pattern_of(mask, num_heads, layer))

    def shared(self, axis: str, key: Any, new: Callable[[], nn.Module]) -> Shared[Any]:
        """Return a module with parameters that all layers share which give the same key."""
        return self.sharing.named(axis, self.sharing.relatives, (axis, key), new)

    def rotary(self, head_dim: int) -> Shared[Any] | None:
        """Return what rotates queries and keys of this width; None where positions do not."""
        if not self.position.rotates:
            return None

        def new() -> nn.Module:
            device = torch.get_default_device()
            # Tables are computed on the CPU: arithmetic on the meta device loads the compiler, which takes longer
            # than building the model.
            with torch.device("cpu"):
                made: nn.Module = POSITIONS.make(self.position, head_dim)
            return made.to(device)

        key = (self.position, head_dim)
        return self.sharing.named("rotary", self.sharing.rotaries, key, new)

    def relative(
        self, dim: int, num_heads: int, head_dim: int, *, two_way: bool
    ) -> Shared[Any] | None:
        """Return what adds a bias to the scores of heads; None where positions do not.

        One that layers do not share has no name: the mixer registers it.
        """
        sizes = (dim, num_heads, head_dim)
        if not self.position.scores:
            return None

        def new() -> nn.Module:
            module: nn.Module = POSITIONS.make(self.position, *sizes, two_way=two_way)
            return module

        if not self.position.is_shared:
            return Shared("", new())
        key = (self.position, *sizes, two_way)
        return self.sharing.named("relative", self.sharing.relatives, key, new)
