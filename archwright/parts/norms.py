"""Norms. Means and squares are taken in float32 or wider; the result has the input's dtype."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.spec import norms as spec


class NoNorm(nn.Identity):
    """y = x."""

    def __init__(self, spec: spec.NoNorm, dim: int) -> None:
        super().__init__()


class LayerNorm(nn.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last axis, var without
    Bessel's correction.

    Shapes: x and y [..., dim]; weight and bias [dim]. Ba et al., 2016, Layer Normalization, eq. 4.
    """

    def __init__(self, spec: spec.LayerNorm, dim: int) -> None:
        super().__init__()
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if spec.bias else None

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        with torch.autocast(x.device.type, enabled=False):
            wide = x if x.dtype == torch.float64 else x.float()
            weight = self.weight.to(wide.dtype)
            bias = None if self.bias is None else self.bias.to(wide.dtype)
            y = F.layer_norm(wide, weight.shape, weight, bias, self.eps)
        return y.to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last axis.

    Shapes: x and y [..., dim]; weight [dim].
    Zhang and Sennrich, 2019, Root Mean Square Layer Normalization, eq. 4.
    """

    def __init__(self, spec: spec.RMSNorm, dim: int) -> None:
        super().__init__()
        self.eps = spec.eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        wide = x if x.dtype == torch.float64 else x.float()
        y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return y.to(x.dtype) * self.weight.to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


NORMS: dict[type[spec.Norm], Any] = {
    spec.NoNorm: NoNorm,
    spec.LayerNorm: LayerNorm,
    spec.RMSNorm: RMSNorm,
}
