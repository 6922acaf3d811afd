"""Sums with learned weights."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class WeightedSum(nn.Module):
    """y = a x + b z, with learned scalars a and b. Shapes: x, z and y alike; y has the dtype of x.

    Args:
        first: initial value of a.
        second: initial value of b.
    """

    def __init__(self, first: float, second: float) -> None:
        super().__init__()
        self.start = first, second
        self.first = nn.Parameter(torch.empty(()))
        self.second = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def forward(self, x: Float[Tensor, "*shape"], z: Float[Tensor, "*shape"]) -> Tensor:
        return x * self.first.to(x.dtype) + z.to(x.dtype) * self.second.to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.first, self.start[0])
        nn.init.constant_(self.second, self.start[1])
