"""A norm from outside the package: it subtracts the mean and nothing else.

`archwright train modern --parts centered_norm.py model.norm.kind=centered`
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import archwright as aw
from archwright.spec.norms import Norm


class CenteredNorm(Norm):
    """y = (x - mean(x)) * scale * weight."""

    kind: Literal["centered"] = "centered"
    scale: float = 1.0
    """A fixed factor beside the learned one."""
    learned: ClassVar[int] = 1


class Centered(nn.Module):
    def __init__(self, spec: CenteredNorm, dim: int) -> None:
        super().__init__()
        self.scale = spec.scale
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return ((wide - wide.mean(-1, keepdim=True)) * self.scale * self.weight).to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


def join() -> Any:
    aw.register(CenteredNorm, Centered)


join()
