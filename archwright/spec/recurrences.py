"""Recurrences: branches with a state of fixed size that each token updates."""

from typing import ClassVar, Literal

from archwright.spec.choice import Count
from archwright.spec.mixers import Recurrence

IN_ROWS = frozenset({"segment_ids", "padding_mask"})
"""Inputs of a batch that recurrences respect: documents and padding."""


class ShortConvolution(Recurrence):
    """y = W_out (c * conv(b * x)) with b, c, x = W_in u: gates around a short convolution of each channel
    (Liquid AI, 2025, LFM2 Technical Report). Its state is the last width - 1 tokens of b * x."""

    kind: Literal["short_conv"] = "short_conv"
    takes: ClassVar[frozenset[str]] = IN_ROWS
    width: Count = 3
    """Tokens that the convolution reads, the token itself included."""
    bias: bool = False
    """Biases of both projections and of the convolution."""

    @property
    def one_line(self) -> str:
        return f"gated convolution over {self.width} tokens"

    def num_parameters(self, dim: int) -> int:
        return (4 * dim + self.width + 5 * self.bias) * dim
