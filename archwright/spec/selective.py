"""Recurrences with a state for each channel: Mamba's selective scan and Griffin's RG-LRU."""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.attention import given_or_auto
from archwright.spec.choice import AutoCount, AutoWidth, Count, ModelSizes, ScaleDown, Width
from archwright.spec.mixers import Recurrence
from archwright.spec.norms import Norm


class SelectiveScan(Recurrence):
    """S = exp(dt A) S + dt x B^T, y = S C + D x in each channel, times silu(z) (Gu and Dao, 2023, Mamba, algorithm 2).

    x and the gate z are projections of the input, x after a short convolution and SiLU. dt, B and C are projections of
    x. A and D are learned.
    """

    kind: Literal["selective"] = "selective"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    inner_dim: AutoWidth = Field("auto", examples=[1536])
    """Number of channels; auto: 2 dim."""
    state_dim: Width = 16
    """Entries of a channel's state."""
    step_rank: AutoWidth = Field("auto", examples=[48])
    """Rank of the projection to dt; auto: dim / 16, rounded up."""
    conv_width: Count = 4
    """Tokens that the convolution of x reads."""
    conv_bias: bool = True
    """Add a bias to the convolution."""
    bias: bool = False
    """Add biases to the projections of the input and of the output."""
    scan_norm: Norm = Field(Norm.none(), examples=[{"kind": "rms"}])
    """Norm of B, of C and of the low-rank input of dt (Jamba; Falcon-Mamba without weights)."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {
            "inner_dim": given_or_auto(self.inner_dim, 2 * sizes.dim),
            "step_rank": given_or_auto(self.step_rank, math.ceil(sizes.dim / 16)),
        }

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if self.state_dim == 1 and not self.scan_norm.is_none:
            yield f'state_dim: found 1 with scan_norm.kind = "{self.scan_norm.kind}"; expected at least 2'

    def num_parameters(self, dim: int) -> int:
        inner, rank, entries = int(self.inner_dim), int(self.step_rank), self.state_dim
        ends = 3 * dim * inner + self.bias * (2 * inner + dim)
        steps = (rank + 2 * entries) * inner + (rank + 1) * inner
        norms = self.scan_norm.num_parameters(rank) + 2 * self.scan_norm.num_parameters(entries)
        return (
            ends
            + inner * (self.conv_width + self.conv_bias)
            + steps
            + norms
            + inner * (entries + 1)
        )

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Widths keep their share of the model's width."""
        changes = super().scaled_down(to)
        if self.inner_dim != "auto":
            changes["inner_dim"] = to.width(self.inner_dim)
        if self.step_rank != "auto":
            changes["step_rank"] = max(1, round(self.step_rank * to.dim / to.old.dim))
        return changes


class RGLRU(Recurrence):
    """h = a h + sqrt(1 - a^2) (i x), a = exp(-8 softplus(L) r) and out(h gelu(y)) (De et al., 2024, Griffin).

    x and y are projections of the input, x after a short convolution. The gates r = sigmoid(W_r x) and
    i = sigmoid(W_i x) mix the channels of one head. L is learned. The factor sqrt(1 - a^2) is 1 at the first token of a
    text.
    """

    kind: Literal["rg_lru"] = "rg_lru"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})
    num_heads: AutoCount = Field("auto", examples=[10])
    """Blocks of the gates' matrices; auto: one for 256 channels."""
    head_dim: AutoWidth = Field("auto", examples=[128])
    """Channels of a head; auto: dim / num_heads."""
    conv_width: Count = 4
    """Tokens that the convolution of x reads."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        least = 256 if self.head_dim == "auto" else self.head_dim
        heads = given_or_auto(self.num_heads, max(1, sizes.dim // least))
        head_dim = given_or_auto(self.head_dim, max(1, sizes.dim // heads))
        return {"num_heads": heads, "head_dim": head_dim}

    def num_parameters(self, dim: int) -> int:
        heads, width = int(self.num_heads), int(self.head_dim)
        inner = heads * width
        ends, gates = 3 * dim * inner + 2 * inner + dim, 2 * inner * (width + 1)
        return ends + gates + inner * (self.conv_width + 2)
