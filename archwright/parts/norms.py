"""Normalisation layers, computed in float32 or wider; the result has the dtype of the input."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archwright.parts.registry import Registry
from archwright.spec import norms as spec


class NoNorm(nn.Identity):
    """y = x."""

    def __init__(self, spec: spec.NoNorm, dim: int, heads: int | None = None) -> None:
        super().__init__()


class _Weighted(nn.Module):
    """Base of norms: weight w or 1 + w and bias, shared by all heads or per head."""

    scale_in_input_dtype: bool = False
    """True if both factors are cast to the dtype of x before their product."""

    def __init__(
        self, spec: spec.LayerNorm | spec.RMSNorm, dim: int, heads: int | None, *, bias: bool
    ) -> None:
        super().__init__()
        self.spec, self.eps, self.dim = spec, spec.eps, dim
        self.shape = (dim,) if heads is None else (heads, dim)
        self.weight = None if spec.weight == "none" else nn.Parameter(torch.empty(self.shape))
        self.bias = nn.Parameter(torch.empty(self.shape)) if bias else None
        self.reset_parameters()

    def factor(self, dtype: torch.dtype) -> Tensor | None:
        """Return the factor of normalised values, computed in `dtype`: w, 1 + w or None."""
        if self.weight is None:
            return None
        weight = self.weight.to(dtype)
        return 1 + weight if self.spec.weight == "unit_offset" else weight

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, self.spec.weight == "plain")
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{' x '.join(map(str, self.shape))}, {self.spec.weight} weight"


class LayerNorm(_Weighted):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last axis, with the biased variance.

    Shapes: x and y [..., dim]; weight and bias [dim]. With heads: x and y [..., heads, dim]; weight and bias [heads,
    dim]. `weight="unit_offset"` uses 1 + weight, computed in float32; `"none"` omits the weight.
    Ba et al., 2016, Layer Normalization, eq. 4.
    """

    def __init__(self, spec: spec.LayerNorm, dim: int, heads: int | None = None) -> None:
        super().__init__(spec, dim, heads, bias=spec.bias)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        x32 = upcast(x)
        weight = self.factor(x32.dtype)
        bias = None if self.bias is None else self.bias.to(x32.dtype)
        if len(self.shape) == 1:
            # The fused kernel takes weights of the normalised axis only.
            return F.layer_norm(x32, self.shape, weight, bias, self.eps).to(x.dtype)
        # [..., heads, dim], times a weight [heads, dim]
        y = F.layer_norm(x32, (self.dim,), eps=self.eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)


class RMSNorm(_Weighted):
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last axis.

    Shapes: x and y [..., dim]; weight [dim]. With heads: x and y [..., heads, dim]; weight [heads, dim].
    `weight="unit_offset"` uses 1 + weight, computed in float32; `"none"` omits the weight. The product with the weight
    is computed in float32 and then cast to the dtype of x. `scale_in="input_dtype"` casts both factors first.
    Zhang and Sennrich, 2019, Root Mean Square Layer Normalization, eq. 4.
    """

    def __init__(self, spec: spec.RMSNorm, dim: int, heads: int | None = None) -> None:
        super().__init__(spec, dim, heads, bias=False)
        self.scale_in_input_dtype = spec.scale_in == "input_dtype"

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        x32 = upcast(x)
        weight = self.factor(x32.dtype)
        casts_first = self.scale_in_input_dtype and x.dtype != x32.dtype
        if weight is None or (len(self.shape) == 1 and not casts_first):
            return self._normed(x32, weight).to(x.dtype)
        y = self._normed(x32, None)
        if casts_first:
            return y.to(x.dtype) * weight.to(x.dtype)
        return (y * weight).to(x.dtype)

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        # Without gradients, the operations of published models, for the same rounding.
        if not torch.is_grad_enabled():
            plain = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
            return plain if weight is None else plain.mul_(weight)
        y: Tensor = _RMSNorm.apply(x, weight, self.eps)  # type: ignore[no-untyped-call]
        return y


class DynamicTanh(nn.Module):
    """y = weight * tanh(alpha x) + bias, with one learned number alpha.

    Shapes: x and y [..., dim]; weight and bias [dim]. With heads: x and y [..., heads, dim]; weight and
    bias [heads, dim], and one alpha for all heads.
    Zhu et al., 2025, Transformers without Normalization, section 4.
    """

    def __init__(self, spec: spec.DynamicTanh, dim: int, heads: int | None = None) -> None:
        super().__init__()
        self.spec, self.dim = spec, dim
        self.shape = (dim,) if heads is None else (heads, dim)
        self.alpha = nn.Parameter(torch.empty(()))
        self.weight = nn.Parameter(torch.empty(self.shape))
        self.bias = nn.Parameter(torch.empty(self.shape)) if spec.bias else None
        self.reset_parameters()

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        x32 = upcast(x)
        y = torch.tanh(x32 * self.alpha.to(x32.dtype)) * self.weight.to(x32.dtype)
        return (y if self.bias is None else y + self.bias.to(x32.dtype)).to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.spec.alpha)
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return f"{' x '.join(map(str, self.shape))}, alpha {self.spec.alpha:g} at first"


class _RMSNorm(torch.autograd.Function):
    """y = x s w with s = 1 / sqrt(mean(x^2) + eps), in few passes over memory.

    Let g be the gradient of y. The gradient of w is the sum over rows of g x s; the gradient of x is
    s (g w - x s^2 mean(g w x)). A missing w is 1.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        # s [..., 1], in place of |x|
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return x * scale if weight is None else (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        grad, grad_weight = grads[0], None
        with without_autocast(x.device.type):
            # g x [rows, dim]
            by_row = (grad * x).reshape(-1, x.shape[-1])
            if weight is None:
                along = by_row.sum(-1).view_as(scale)
            else:
                # sum of g x s [dim]
                grad_weight = by_row.t().mv(scale.flatten())
                along = by_row.mv(weight).view_as(scale)
        # -s^3 mean(g w x) [..., 1], the factor of x in its gradient
        pull = along.mul_(scale.pow(3)).div_(-x.shape[-1])
        grad = grad * scale if weight is None else (grad * weight).mul_(scale)
        return grad.addcmul_(x, pull), grad_weight, None


def upcast(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Disable autocast, if the device supports it (the meta device does not)."""
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


NORMS = Registry(
    spec.Norm,
    "(spec, dim) or, where each head has a norm of its own, (spec, dim, heads=number)",
    nn.Module,
    {
        spec.NoNorm: NoNorm,
        spec.LayerNorm: LayerNorm,
        spec.RMSNorm: RMSNorm,
        spec.DynamicTanh: DynamicTanh,
    },
)
"""Modules: y = norm(x), over the last axis, in the dtype of x."""
