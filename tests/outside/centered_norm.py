"""A norm from outside the package: it subtracts the mean and nothing else.

archwright train modern --parts centered_norm.py model.norm.kind=centered
"""

from typing import Literal

import torch
from torch import Tensor, nn

import archwright as aw
from archwright.spec.norms import Norm


class CenteredNorm(Norm):
    """Centre only: y = (x - mean(x)) * gain * weight."""

    kind: Literal["centered"] = "centered"
    gain: float = 1.0
    """A fixed factor beside the learned one."""


class Centered(nn.Module):
    """y = (x - mean(x)) * gain * weight, over the last axis."""

    def __init__(self, spec: CenteredNorm, dim: int) -> None:
        super().__init__()
        self.gain = spec.gain
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return ((wide - wide.mean(-1, keepdim=True)) * self.gain * self.weight).to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


aw.register(CenteredNorm, Centered)
