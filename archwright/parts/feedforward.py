"""Feed-forward branches: plain and gated, with their activations."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Linear, narrow
from archwright.spec import feedforward as spec

Activation = Callable[[Tensor], Tensor]
Gate = Callable[[Tensor, Tensor], Tensor]


class Plain(nn.Module):
    """down(f(up(x))), with f of the spec. Shapes: x [..., dim], hidden [..., hidden_dim].

    Vaswani et al., 2017, section 3.3.
    """

    def __init__(self, spec: spec.Plain, dim: int) -> None:
        super().__init__()
        assert spec.hidden_dim != "auto"
        self.spec, self.activation = spec, ACTIVATIONS[type(spec)](spec)
        self.up = Linear(dim, spec.hidden_dim, bias=spec.bias.up)
        self.down = Linear(spec.hidden_dim, dim, bias=spec.bias.down, ends_branch=True)

    @property
    def inputs(self) -> list[Linear]:
        """The maps that read x."""
        return [self.up]

    def forward(
        self, x: Float[Tensor, "*batch dim"], projected: Sequence[Tensor] | None = None
    ) -> Float[Tensor, "*batch dim"]:
        """Return the branch's output; `projected` is what `inputs` make of x, where that is known."""
        (up,) = [self.up(x)] if projected is None else projected
        down: Tensor = self.down(F.dropout(self.activation(up), self.spec.dropout, self.training))
        return down

    def extra_repr(self) -> str:
        return self.spec.kind


class Gated(nn.Module):
    """down(f(gate(x), up(x))), f(g, u) most often act(g) * u, of the spec.

    Shapes: x [..., dim], hidden [..., hidden_dim].
    Shazeer, 2020, GLU Variants Improve Transformer, eq. 5 and 6.
    """

    def __init__(self, spec: spec.Gated, dim: int) -> None:
        super().__init__()
        assert spec.hidden_dim != "auto"
        self.spec, self.activation = spec, GATES[type(spec)](spec)
        self.gate = Linear(dim, spec.hidden_dim, bias=spec.bias.up)
        self.up = Linear(dim, spec.hidden_dim, bias=spec.bias.up)
        self.down = Linear(spec.hidden_dim, dim, bias=spec.bias.down, ends_branch=True)

    @property
    def inputs(self) -> list[Linear]:
        """The maps that read x."""
        return [self.gate, self.up]

    def forward(
        self, x: Float[Tensor, "*batch dim"], projected: Sequence[Tensor] | None = None
    ) -> Float[Tensor, "*batch dim"]:
        """Return the branch's output; `projected` is what `inputs` make of x, where that is known."""
        if projected is None:
            x = narrow(x)
            projected = [self.gate(x), self.up(x)]
        hidden = F.dropout(self.activation(*projected), self.spec.dropout, self.training)
        down: Tensor = self.down(hidden)
        return down

    def extra_repr(self) -> str:
        return self.spec.kind


class XIELU(nn.Module):
    """a_p x^2 + b x above 0, a_n (exp(x) - 1 - x) + b x below, a_p = softplus(positive) and
    a_n = b + softplus(negative).

    Shapes: positive and negative [1]. Computed in float32 or wider, as exp(x) - 1 - x is a small
    difference near 0. Huang and Schlag, 2025, Deriving Activation Functions Using Integration, eq. 14.
    """

    def __init__(self, spec: spec.XIELU) -> None:
        super().__init__()
        self.spec = spec
        self.positive = nn.Parameter(torch.empty(1))
        self.negative = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        above = F.softplus(self.positive) * wide.square()
        below = wide.clamp(max=0)  # exp overflows where it is not asked for
        bent = (self.spec.beta + F.softplus(self.negative)) * (below.expm1() - below)
        return (torch.where(wide > 0, above, bent) + self.spec.beta * wide).to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.positive, _softplus_inverse(self.spec.alpha_positive))
        negative = self.spec.alpha_negative - self.spec.beta
        nn.init.constant_(self.negative, _softplus_inverse(negative))


def _softplus_inverse(y: float) -> float:
    return y + math.log(-math.expm1(-y))


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)^2."""
    return F.relu(x).square()


def quick_gelu(x: Tensor, sharpness: float = 1.702) -> Tensor:
    """x sigmoid(sharpness x)."""
    return x * torch.sigmoid(sharpness * x)


def multiplied(activation: Activation) -> Gate:
    """f(g, u) = activation(g) * u."""
    return lambda gate, up: activation(gate) * up


def clamped(gate: Tensor, up: Tensor, *, limit: float, sharpness: float = 1.702) -> Tensor:
    """f(g, u) = quick_gelu(min(g, limit)) * (max(-limit, min(u, limit)) + 1)."""
    return quick_gelu(gate.clamp(max=limit), sharpness) * (up.clamp(-limit, limit) + 1)


ACTIVATIONS: dict[type[spec.Plain], Callable[[Any], Activation]] = {
    spec.ReLU: lambda s: F.relu,
    spec.GELU: lambda s: partial(F.gelu, approximate=s.approximate),
    spec.QuickGELU: lambda s: quick_gelu,
    spec.SiLU: lambda s: F.silu,
    spec.SquaredReLU: lambda s: squared_relu,
    spec.XIELU: XIELU,
}
"""What each plain feed-forward applies to its hidden values."""

GATES: dict[type[spec.Gated], Callable[[Any], Gate]] = {
    spec.GLU: lambda s: multiplied(torch.sigmoid),
    spec.Bilinear: lambda s: torch.mul,
    spec.ReGLU: lambda s: multiplied(F.relu),
    spec.GeGLU: lambda s: multiplied(partial(F.gelu, approximate=s.approximate)),
    spec.SwiGLU: lambda s: multiplied(F.silu),
    spec.ClampedSwiGLU: lambda s: partial(clamped, limit=s.limit, sharpness=s.sharpness),
    spec.GEGELU: lambda s: partial(clamped, limit=s.limit),
}
"""How each gated feed-forward joins gate and up."""

FEEDFORWARDS: dict[type[spec.FeedForward], Any] = {
    **dict.fromkeys(ACTIVATIONS, Plain),
    **dict.fromkeys(GATES, Gated),
}
