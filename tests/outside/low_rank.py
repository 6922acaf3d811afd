"""A feed-forward of two factors, y = (x A) B, whose matrices are no `Linear`: it says itself what it costs."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

import archwright
from archwright.parts.branch import Branch
from archwright.spec.choice import ScaleDown, Width
from archwright.spec.feedforward import FeedForward


class LowRank(FeedForward):
    """y = (x A) B, with A [dim, rank] and B [rank, dim]."""

    kind: Literal["low_rank"] = "low_rank"
    rank: Width = 256
    """The width between the factors."""

    def num_parameters(self, dim: int) -> int:
        return 2 * dim * self.rank

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return {"rank": to.width(self.rank)}


class Factors(Branch):
    """y = (x A) B. Shapes: x and y [..., dim]."""

    def __init__(self, spec: LowRank, dim: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(dim, spec.rank))
        self.second = nn.Parameter(torch.empty(spec.rank, dim))
        self.roles = {"first": "matrix", "second": "matrix"}

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.first.to(x.dtype) @ self.second.to(x.dtype)

    def reset_parameters(self) -> None:
        for factor in self.parameters():
            nn.init.normal_(factor, std=0.02)


archwright.register(LowRank, Factors)
