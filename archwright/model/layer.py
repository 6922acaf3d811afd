"""One layer: branches wired by a residual choice."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.attention import KVCache
from archwright.parts.linear import Linear
from archwright.parts.masks import AttentionMask
from archwright.parts.positions import Rotation
from archwright.spec.errors import UserError


class Layer(nn.Module):
    """A layer of attention, a feed-forward, or both; its residual part says how they join the
    stream.

    Args:
        mask: name of the mask the attention sees through, among those of the decoder.
        rotary: name of the rotary encoding, among those of the decoder.
        takes: what an attention from outside the package is called with; None: it is of the package.
    """

    def __init__(
        self,
        residual: nn.Module,
        attention: nn.Module | None,
        feedforward: nn.Module | None,
        *,
        mask: str = "",
        rotary: str = "",
        takes: Collection[str] | None = None,
    ) -> None:
        super().__init__()
        self.residual, self.attention, self.feedforward = residual, attention, feedforward
        self.mask, self.rotary, self.takes = mask, rotary, takes

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        view: AttentionMask | None = None,
        rotation: Rotation | None = None,
        memory: KVCache | None = None,
        *,
        attention_mask: Tensor | None = None,
        batch: Mapping[str, Tensor | None] | None = None,
    ) -> Float[Tensor, "batch length dim"]:
        """Return the stream behind the layer.

        A model gives `view`, `rotation` and `memory`. Alone, each row is a text that begins at position 0;
        `attention_mask` says which keys a query may see, in place of the spec's mask, as
        `SoftmaxAttention.forward` takes it. An attention from outside the package gets what it takes of `batch`.

        Raises:
            UserError: an attention from outside would ignore something.
        """
        branches: dict[str, _Branch] = {}
        if self.attention is not None and self.takes is not None:
            given = {**(batch or {}), "attention_mask": attention_mask}
            branches["attention"] = _Branch(self.attention, self._taken(given))
        elif self.attention is not None:
            seen: dict[str, Any] = {"view": view, "rotation": rotation}
            if memory is not None:
                seen["memory"] = memory
            if attention_mask is not None:
                seen["attention_mask"] = attention_mask
            branches["attention"] = _Branch(self.attention, seen)
        if self.feedforward is not None:
            branches["feedforward"] = _Branch(self.feedforward, {})
        out: Tensor = self.residual(x, branches)
        return out

    def _taken(self, given: Mapping[str, Tensor | None]) -> dict[str, Any]:
        """Return what an attention from outside takes; refuse what it would ignore."""
        assert self.takes is not None
        for name, value in given.items():
            if value is not None and name not in self.takes and name != "position_ids":
                raise UserError(
                    f"attention: {type(self.attention).__name__} takes no {name}; expected a batch without, or "
                    f"{name} in takes of its spec"
                )
        return {name: given.get(name) for name in self.takes}


class _Branch:
    """A branch with what it needs besides x."""

    def __init__(self, module: nn.Module, given: dict[str, Any]) -> None:
        self.module, self.given = module, given

    @property
    def inputs(self) -> Sequence[Linear]:
        """Its maps that read x; one from outside may not tell."""
        inputs: Sequence[Linear] = getattr(self.module, "inputs", ())
        return inputs

    def __call__(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        given = self.given if projected is None else {**self.given, "projected": projected}
        out: Tensor = self.module(x, **given)
        return out
