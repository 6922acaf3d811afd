"""Feed-forward branches: plain and gated, with their activations."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Linear, narrow
from archwright.spec import feedforward as spec


class Plain(nn.Module):
    """down(f(up(x))), with f of the spec. Shapes: x [..., dim], hidden [..., hidden_dim].

    Vaswani et al., 2017, section 3.3.
    """

    def __init__(self, spec: spec.Plain, dim: int) -> None:
        super().__init__()
        assert spec.hidden_dim != "auto"
        self.spec, self.activation = spec, activation(spec)
        self.up = Linear(dim, spec.hidden_dim, bias=spec.bias.up)
        self.down = Linear(spec.hidden_dim, dim, bias=spec.bias.down, ends_branch=True)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        hidden = self.activation(self.up(x))
        down: Tensor = self.down(F.dropout(hidden, self.spec.dropout, self.training))
        return down

    def extra_repr(self) -> str:
        return self.spec.kind


class Gated(nn.Module):
    """down(f(gate(x)) * up(x)), with f of the spec. Shapes: x [..., dim], hidden [..., hidden_dim].

    Shazeer, 2020, GLU Variants Improve Transformer, eq. 5 and 6.
    """

    def __init__(self, spec: spec.Gated, dim: int) -> None:
        super().__init__()
        assert spec.hidden_dim != "auto"
        self.spec, self.activation = spec, activation(spec)
        self.gate = Linear(dim, spec.hidden_dim, bias=spec.bias.up)
        self.up = Linear(dim, spec.hidden_dim, bias=spec.bias.up)
        self.down = Linear(spec.hidden_dim, dim, bias=spec.bias.down, ends_branch=True)

    def forward(self, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        x = narrow(x)
        hidden = self.activation(self.gate(x)) * self.up(x)
        down: Tensor = self.down(F.dropout(hidden, self.spec.dropout, self.training))
        return down

    def extra_repr(self) -> str:
        return self.spec.kind


def activation(feedforward: spec.FeedForward) -> Callable[[Tensor], Tensor]:
    """Return the function a feed-forward applies to its hidden values."""
    match feedforward:
        case spec.GELU(approximate=approximate) | spec.GeGLU(approximate=approximate):
            return lambda x: F.gelu(x, approximate=approximate)
        case spec.SiLU() | spec.SwiGLU():
            return F.silu
        case spec.SquaredReLU():
            return lambda x: F.relu(x).square()
        case _:
            return F.relu


FEEDFORWARDS: dict[type[spec.FeedForward], Any] = {
    spec.ReLU: Plain,
    spec.GELU: Plain,
    spec.SiLU: Plain,
    spec.SquaredReLU: Plain,
    spec.SwiGLU: Gated,
    spec.GeGLU: Gated,
    spec.ReGLU: Gated,
}
