"""Short convolutions and shifts over time, which recurrent mixers apply to tokens or projections."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.tensor_parallel import TensorParallel
from archwright.parts.token_layout import TokenLayout, rows_at

Tap = Callable[[int], Tensor]
"""Function j -> the j-th real token before each one in the same document, or 0."""


class Taps:
    """Base of functions of a token and the real tokens less than `width` back in the same document."""

    width: int
    """Number of tokens, the token itself included."""

    @property
    def channels(self) -> int:
        """Width of x."""
        raise NotImplementedError

    def combine(self, x: Tensor, tap: Tap) -> Tensor:
        """Return y from x and `tap`, each [batch, length, channels]."""
        raise NotImplementedError

    def forward(
        self,
        x: Float[Tensor, "batch length channels"],
        layout: TokenLayout,
        tail: Float[Tensor, "batch taps channels"] | None = None,
    ) -> tuple[Float[Tensor, "batch length channels"], Float[Tensor, "batch taps channels"]]:
        """Return y, and the last width - 1 real tokens of x for the next piece of the text.

        Args:
            layout: Documents and padding of the tokens.
            tail: Last real tokens of the piece before; None: zeros.
        """
        batch, length, channels = x.shape
        back = self.width - 1
        real, index = layout.padding_mask, layout.index_or_range()
        if real is not None:  # first the real tokens, then padding, so that taps skip it
            order = (~real).long().argsort(dim=-1, stable=True)
            x, index = rows_at(x, order), index.expand(batch, -1).gather(1, order)
        tail = x.new_zeros(batch, back, channels) if tail is None else tail.to(x.dtype)
        joined = torch.cat((tail, x), 1)  # [batch, width - 1 + length, channels]

        def tap(j: int) -> Tensor:
            before = joined[:, back - j : back - j + length]
            if layout.segment_ids is not None:  # a tap must not reach into the document before
                before = before.masked_fill((index < j)[..., None], 0)
            return before

        y = self.combine(x, tap)
        if real is None:
            # A view would keep the memory of all tokens.
            return y.to(x.dtype), joined[:, length:].clone()
        last = real.sum(-1)[:, None] + torch.arange(back, device=x.device)
        place = (real.cumsum(-1) - 1).clamp(min=0)  # of each real token among the real ones
        return rows_at(y, place).to(x.dtype), rows_at(joined, last)


class ShortConv(Taps, nn.Conv1d):  # type: ignore[misc]  # forward has other arguments
    """y_t = sum_j w_j x_(t-j) + b in each channel, over the real tokens j < width back in the same document.

    Args:
        channels: Width of x.
        width: Number of taps, the token itself included.
        bias: Whether a bias is added.
        variance: Variance of initial weights times the width, with biases of 0; None: torch's initial values.
    """

    # A subclass of torch's convolution: optimizers and initial values then treat the weight as a filter.
    def __init__(
        self, channels: int, width: int = 4, *, bias: bool = False, variance: float | None = None
    ) -> None:
        self.variance = variance  # before torch's constructor, which draws initial values
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.width = width
        self.is_split = True
        """Whether a branch that is split by heads splits its channels."""

    @property
    def channels(self) -> int:
        return len(self.weight)

    @property
    def tensor_parallel(self) -> TensorParallel | None:
        """Split of the channels, for a branch that is split by heads."""
        if not self.is_split:
            return None
        per_head = {"weight": 0} if self.bias is None else {"weight": 0, "bias": 0}
        return TensorParallel({"out_channels": self.out_channels}, per_head)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.variance is not None:
            nn.init.normal_(self.weight, 0, (self.variance / self.weight.shape[-1]) ** 0.5)
            if self.bias is not None:
                nn.init.zeros_(self.bias)

    def combine(self, x: Tensor, tap: Tap) -> Tensor:
        back = self.width - 1
        y = self.weight[:, 0, back] * x
        for j in range(1, self.width):
            y = y + self.weight[:, 0, back - j] * tap(j)
        return y if self.bias is None else y + self.bias


class TokenShift(Taps, nn.Module):
    """y_t = x_(t-1), the real token before in the same document, or 0 (Peng et al., 2023, RWKV, section 3.1).

    Args:
        channels: Width of x.
    """

    width = 2

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dim = channels

    @property
    def channels(self) -> int:
        return self.dim

    def combine(self, x: Tensor, tap: Tap) -> Tensor:
        return tap(1)
