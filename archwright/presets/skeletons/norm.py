"""A custom norm: a class of options, a module, and their registration.

archwright check my_norm.py
archwright train demo model.norm.kind=my_norm budget=60s --parts my_norm.py
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

import archwright
from archwright.spec.norms import Norm


# 1. Name and options. `kind` is the value of norm.kind, and each field is an option, here model.norm.eps=1e-6.
# `archwright list choices my_norm` prints the docstrings.
class MyNorm(Norm):
    """Divide by the mean size: y = x / (mean(|x|) + eps) * weight (your paper, year)."""

    kind: Literal["my_norm"] = "my_norm"
    eps: float = Field(1e-5, gt=0)
    """Added to the mean size, so that the norm of zeros is finite."""


# 2. The module, built from the options and the width. With `heads`, each head has separate weights
# (attention.qk_norm_over=per_head); the argument is optional.
class MyNormModule(nn.Module):
    """y = x / (mean(|x|) + eps) * weight, over the last axis. Shapes: x and y [..., dim]; weight [dim], or
    [heads, dim] if x is [..., heads, dim]."""

    def __init__(self, spec: MyNorm, dim: int, heads: int | None = None) -> None:
        super().__init__()
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.empty((dim,) if heads is None else (heads, dim)))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        # Means are in float32 or wider, and the result has the dtype of x.
        x32 = x if x.dtype == torch.float64 else x.float()
        y = x32 / (x32.abs().mean(-1, keepdim=True) + self.eps) * self.weight
        return y.to(x.dtype)

    # Initial values. Each module with parameters has this method; functions of nn.init are seeded here.
    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


# 3. The registration.
archwright.register(MyNorm, MyNormModule)
