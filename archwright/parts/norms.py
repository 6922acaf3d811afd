"""Norms. Means and squares are taken in float32 or wider; the result has the input's dtype."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
        wide = x if x.dtype == torch.float64 else x.float()
        weight = self.weight.to(wide.dtype)
        bias = None if self.bias is None else self.bias.to(wide.dtype)
        return F.layer_norm(wide, weight.shape, weight, bias, self.eps).to(x.dtype)

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
        weight = self.weight.to(wide.dtype)
        y: Tensor = _RMSNorm.apply(wide, weight, self.eps)  # type: ignore[no-untyped-call]
        return y.to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class _RMSNorm(torch.autograd.Function):
    """y = x s w with s = 1 / sqrt(mean(x^2) + eps), in as few passes over memory as torch allows.

    With g the gradient of y: that of w is the sum over rows of g x s, and that of x is
    s (g w - x s^2 mean(g w x)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        grad = grads[0]
        with torch.autocast(x.device.type, enabled=False):
            by_row = (grad * x).reshape(-1, x.shape[-1])
            grad_weight = by_row.t().mv(scale.flatten())
            along = by_row.mv(weight).view_as(scale)
        pull = along.mul_(scale.pow(3)).div_(-x.shape[-1])
        return (grad * weight).mul_(scale).addcmul_(x, pull), grad_weight, None


NORMS: dict[type[spec.Norm], Any] = {
    spec.NoNorm: NoNorm,
    spec.LayerNorm: LayerNorm,
    spec.RMSNorm: RMSNorm,
}
