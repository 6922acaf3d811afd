"""One layer: branches wired by a residual choice."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.masks import View
from archwright.parts.positions import Rotation


class Layer(nn.Module):
    """A layer of attention, a feed-forward, or both; its residual part says how they join the
    stream.

    Args:
        mask: name of the mask the attention sees through, among those of the decoder.
        rotary: name of the rotary encoding, among those of the decoder.
    """

    def __init__(
        self,
        residual: nn.Module,
        attention: nn.Module | None,
        feedforward: nn.Module | None,
        *,
        mask: str = "",
        rotary: str = "",
    ) -> None:
        super().__init__()
        self.residual, self.attention, self.feedforward = residual, attention, feedforward
        self.mask, self.rotary = mask, rotary

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        view: View | None,
        rotation: Rotation | None,
    ) -> Float[Tensor, "batch length dim"]:
        branches: dict[str, Callable[[Tensor], Tensor]] = {}
        if self.attention is not None:
            branches["attention"] = partial(self.attention, view=view, rotation=rotation)
        if self.feedforward is not None:
            branches["feedforward"] = self.feedforward
        out: Tensor = self.residual(x, branches)
        return out
