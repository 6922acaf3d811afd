"""A layer's place in its model, and modules that layers share: masks, rotary angles, tables of distances."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from archwright.parts.linear import TokenTable
from archwright.parts.masks import MaskPattern, pattern_of
from archwright.parts.norms import NORMS
from archwright.parts.positions import POSITIONS
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask
from archwright.spec.model_spec import LayerSpec
from archwright.spec.norms import Norm
from archwright.spec.positions import Position

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Shared(Generic[T]):
    """A reference to a value that layers share. Its owner registers it if it is a module."""

    name: str
    """Key in compiled layers, equal in all models of one shape; empty if no other layer shares the value."""
    value: T


@dataclass
class Sharing:
    """The patterns and position encodings of a model: one for each distinct choice."""

    patterns: dict[str, MaskPattern] = field(default_factory=dict)
    rotaries: dict[str, nn.Module] = field(default_factory=dict)
    relatives: dict[str, nn.Module] = field(default_factory=dict)
    _choices: dict[str, Any] = field(default_factory=dict)
    """Spec of each shared value, by name."""

    def named(
        self, axis: str, made: dict[str, Any], choice: Any, new: Callable[[], Any]
    ) -> Shared[Any]:
        """Return the value of an equal choice; make it the first time."""
        for name in made:
            if self._choices[name] == choice:
                return Shared(name, made[name])
        name = f"{axis}_{len(made)}"
        self._choices[name], made[name] = choice, new()
        return Shared(name, made[name])


@dataclass(frozen=True)
class LayerInfo:
    """Place of a part in its model: layer number, kinds of layers, positions, norm, and shared modules.

    The defaults describe a part on its own: the only layer, without positions.
    """

    number: int = 1
    """Number of the layer, from 1."""
    position: Position = Position.none()
    """Position encoding of the layer."""
    sharing: Sharing = field(default_factory=Sharing)
    vocab_size: int | None = None
    """Rows of the model's embedding; None without a model."""
    memory_dim: int | None = None
    """Width of the encoder's output; None without an encoder."""
    kinds: tuple[str, ...] = ()
    """Kind of every layer of the model, first to last; empty without a model."""
    norm: Norm = LayerSpec().norm
    """Norm of the layer's residual stream."""
    kv_sources: tuple[int, ...] = ()
    """Number of the layer whose keys and values each layer reads, often its own; empty without a model."""

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return len(self.kinds) or self.number

    @property
    def alike(self) -> tuple[int, ...]:
        """Numbers of the layers of the same kind, in order, this one included.

        The first layer of the kind is `alike[0]`, the rank of this one `alike.index(number)`.
        """
        if not self.kinds:
            return (self.number,)
        kind = self.kinds[self.number - 1]
        return tuple(i for i, other in enumerate(self.kinds, 1) if other == kind)

    @property
    def kv_source(self) -> int:
        """Number of the layer whose keys and values this layer reads."""
        return self.kv_sources[self.number - 1] if self.kv_sources else self.number

    def new_norm(self, dim: int) -> nn.Module:
        """Return a new norm of the layer's kind."""
        norm: nn.Module = NORMS.make(self.norm, dim)
        return norm

    def token_table(self, width: int, name: str) -> TokenTable:
        """Return a table with one row per token of the vocabulary.

        Args:
            width: Numbers per row.
            name: Option that requires the table, for the message.

        Raises:
            UserError: The part is on its own, without a vocabulary.
        """
        if self.vocab_size is None:
            raise UserError(
                f'{name}.kind: needs a row for each token, and a part alone has no vocabulary; expected "none", or '
                "the whole model"
            )
        return TokenTable(self.vocab_size, width)

    def pattern(self, mask: Mask, num_heads: int) -> Shared[MaskPattern]:
        """Return the pattern of a mask, which may depend on the heads and on the layer."""
        layer = self.number if mask.differs_by_layer else 1
        key = (mask, num_heads if mask.differs_by_head else 1, layer)
        patterns = self.sharing.patterns
        return self.sharing.named("mask", patterns, key, lambda: pattern_of(mask, num_heads, layer))

    def shared(self, axis: str, key: Any, new: Callable[[], nn.Module]) -> Shared[Any]:
        """Return a module that all layers with the same key share, parameters included."""
        return self.sharing.named(axis, self.sharing.relatives, (axis, key), new)

    def rotary(self, head_dim: int) -> Shared[Any] | None:
        """Return the rotation of queries and keys of a width; None if positions do not rotate."""
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
        """Return the bias of the scores of heads; None if positions add none.

        A bias of this layer alone has no name, and the mixer registers it.
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
