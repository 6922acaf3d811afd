"""A custom position encoding: here a bias of attention scores that decreases with distance.

archwright check my_position.py
archwright train demo model.position.kind=my_position budget=60s --parts my_position.py
"""

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

import archwright
from archwright.parts.kernels.scores import ElementwiseBias
from archwright.parts.masks import AttentionMask
from archwright.spec.positions import Position


# 1. Name and options. There are three types of positions, with different arguments:
#   scores = True     a bias of scores, as here
#   absolute = True   an addition to the embedding: a module (spec, dim, context_length), called with the layout
#   neither           a rotation of queries and keys: a subclass of archwright.parts.positions.Rotary, with options in a
#                     subclass of archwright.spec.positions.RoPE
class MyPosition(Position):
    """score - a_h ln(1 + b_h |q - k|), with two learned numbers per head (Chi et al., 2022, KERPLE, section 4)."""

    kind: Literal["my_position"] = "my_position"
    scores: ClassVar[bool] = True
    slope: float = Field(1.0, gt=0)
    """Initial value of a and b."""


# 2. The module, built for each layer with attention. `two_way` is True if queries see later keys.
class MyPositionModule(nn.Module):
    """Return the queries unchanged, and the bias - a_h ln(1 + b_h |q - k|). Shapes: a and b [num_heads]."""

    def __init__(
        self, spec: MyPosition, dim: int, num_heads: int, head_dim: int, *, two_way: bool
    ) -> None:
        super().__init__()
        self.slope, self.num_heads = spec.slope, num_heads
        self.a = nn.Parameter(torch.empty(num_heads))
        self.b = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def forward(
        self, query: Tensor, view: AttentionMask, scale: float
    ) -> tuple[Tensor, ElementwiseBias]:
        a, b = F.softplus(self.a), F.softplus(self.b)  # both are positive

        # Arguments: indices of heads, and positions, with shapes that broadcast.
        def value(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return -a[head] * torch.log1p(b[head] * (q - k).abs())

        queries, keys = view.layout.position_ids_or_range(), view.keys_at.position_ids_or_range()
        bias = ElementwiseBias(value, self.num_heads, queries, keys, by_distance=True)
        return query, bias

    # Initial values. Each module with parameters has this method; functions of nn.init are seeded here.
    def reset_parameters(self) -> None:
        start = math.log(math.expm1(self.slope))  # softplus(start) = slope
        nn.init.constant_(self.a, start)
        nn.init.constant_(self.b, start)


# 3. The registration.
archwright.register(MyPosition, MyPositionModule)
