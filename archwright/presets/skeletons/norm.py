"""A norm of your own: a class of options, a module that computes it, and a line that joins the two.

archwright check my_norm.py
archwright train demo model.norm.kind=my_norm budget=60s --parts my_norm.py
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

import archwright
from archwright.spec.norms import Norm


# 1. What it is called and which options it has: `kind` is what you type behind norm.kind=, and each field is an
# option, here model.norm.eps=1e-6. The docstrings are what `archwright list choices my_norm` shows.
class MyNorm(Norm):
    """Divide by the mean size: y = x / (mean(|x|) + eps) * weight (your paper, year)."""

    kind: Literal["my_norm"] = "my_norm"
    eps: float = Field(1e-5, gt=0)
    """Added to the mean size, so that zeros stay finite."""


# 2. What computes it: a module that is called with the options and the width. With `heads`, each head has a norm of
# its own (attention.qk_norm_over=per_head); leave the argument out if you do not need that.
class MyNormModule(nn.Module):
    """y = x / (mean(|x|) + eps) * weight, over the last axis. Shapes: x and y [..., dim]; weight [dim], or
    [heads, dim] where x is [..., heads, dim]."""

    def __init__(self, spec: MyNorm, dim: int, heads: int | None = None) -> None:
        super().__init__()
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.empty((dim,) if heads is None else (heads, dim)))
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        # Means are taken in float32 or wider, and the result has the dtype of x.
        x32 = x if x.dtype == torch.float64 else x.float()
        y = x32 / (x32.abs().mean(-1, keepdim=True) + self.eps) * self.weight
        return y.to(x.dtype)

    # First values. Whatever has parameters has this method; draw with nn.init, which is seeded here.
    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


# 3. The line that joins them.
archwright.register(MyNorm, MyNormModule)
