"""Residual wirings, each written once: how a layer's branches join the stream.

The stream keeps its dtype, float32 under autocast; a branch's narrower result is widened first, as torch's
sum of two dtypes is slow.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.spec import residuals as spec

Stream = Float[Tensor, "batch length dim"]
Branches = Mapping[str, Callable[[Tensor], Tensor]]
NewNorm = Callable[[], nn.Module]


class PostNorm(nn.Module):
    """x = norm(x + f(x)) for each branch f in turn (Vaswani et al., 2017, section 3.1)."""

    def __init__(self, spec: spec.PostNorm, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__()
        self.dropout = spec.dropout
        self.norms = nn.ModuleDict({name: new_norm() for name in branches})

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            out = F.dropout(branch(x), self.dropout, self.training)
            x = self.norms[name](x + out.to(x.dtype))
        return x


class PreNorm(nn.Module):
    """x = x + f(norm(x)) for each branch f in turn (Xiong et al., 2020, figure 1b)."""

    def __init__(self, spec: spec.PreNorm, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__()
        self.dropout = spec.dropout
        self.norms = nn.ModuleDict({name: new_norm() for name in branches})

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            out = F.dropout(branch(self.norms[name](x)), self.dropout, self.training)
            x = x + out.to(x.dtype)
        return x


class SandwichNorm(nn.Module):
    """x = x + norm_out(f(norm_in(x))) for each branch f in turn (Ding et al., 2021, section 2.4)."""

    def __init__(self, spec: spec.SandwichNorm, branches: list[str], new_norm: NewNorm) -> None:
        super().__init__()
        self.dropout = spec.dropout
        self.norms = nn.ModuleDict({name: new_norm() for name in branches})
        self.out_norms = nn.ModuleDict({name: new_norm() for name in branches})

    def forward(self, x: Stream, branches: Branches) -> Stream:
        for name, branch in branches.items():
            out = self.out_norms[name](branch(self.norms[name](x)))
            x = x + F.dropout(out, self.dropout, self.training).to(x.dtype)
        return x


RESIDUALS: dict[type[spec.Residual], Any] = {
    spec.PostNorm: PostNorm,
    spec.PreNorm: PreNorm,
    spec.SandwichNorm: SandwichNorm,
}
