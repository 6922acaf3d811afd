"""Position encodings: added to the embedding (absolute) or turning queries and keys (rotary)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archwright.parts.linear import Embedding
from archwright.parts.places import Places
from archwright.spec import positions as spec


class Sinusoidal(nn.Module):
    """P[p, 2i] = sin(p theta^(-2i/dim)), P[p, 2i+1] = cos(p theta^(-2i/dim)), added to the
    embedding.

    Shapes: [rows, length, dim] for positions [rows, length]. Vaswani et al., 2017, section 3.5.
    """

    def __init__(self, spec: spec.Sinusoidal, dim: int, context_length: int) -> None:
        super().__init__()
        self.dim, self.theta = dim, spec.theta

    def forward(self, places: Places) -> Float[Tensor, "rows length dim"]:
        positions = places.positions_or_range()
        pairs = torch.arange(0, self.dim, 2, device=positions.device, dtype=torch.float64)
        angles = positions[..., None] * self.theta ** (-pairs / self.dim)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return table[..., : self.dim].float()


class Learned(nn.Module):
    """P[p] = weight[p], a trained table of shape [context_length, dim], added to the embedding.

    Raises:
        ValueError: the text is longer than the table.
    """

    def __init__(self, spec: spec.Learned, dim: int, context_length: int) -> None:
        super().__init__()
        self.table = Embedding(context_length, dim)

    def forward(self, places: Places) -> Float[Tensor, "rows length dim"]:
        rows = self.table.weight.shape[0]
        if places.length > rows:
            raise ValueError(
                f"found {places.length} tokens; expected at most context_length = {rows}, "
                "as learned positions end there"
            )
        rows_of: Tensor = self.table(places.positions_or_range())
        return rows_of


class Rotation(NamedTuple):
    """Cosines and sines of the angles, each of shape [rows, length, 1, pairs]."""

    cos: Tensor
    sin: Tensor


class Rotary(nn.Module):
    """Turn each pair of coordinates by the angle position * theta^(-2i/r), i = 0 .. r/2 - 1.

    (a, b) -> (a cos - b sin, a sin + b cos), over the first r = fraction * head_dim coordinates;
    pairs are (i, i + r/2) or (2i, 2i + 1). Angles are float32 or wider. One instance serves all
    layers; `forward` is called once a pass and its result goes to `rotate` in each of them.

    Su et al., 2021, RoFormer, section 3.4.2.
    """

    def __init__(self, spec: spec.RoPE, head_dim: int) -> None:
        super().__init__()
        self.spec, self.head_dim = spec, head_dim
        self.num_rotary = int(head_dim * spec.fraction)
        self.frequencies: Tensor
        self.register_buffer("frequencies", self._frequencies(), persistent=False)

    def forward(self, positions: Int[Tensor, "rows length"]) -> Rotation:
        """Return the rotation at given positions."""
        angles = positions[..., None, None].to(self.frequencies.dtype) * self.frequencies
        return Rotation(angles.cos(), angles.sin())

    def rotate(
        self, x: Float[Tensor, "batch length heads head_dim"], rotation: Rotation
    ) -> Float[Tensor, "batch length heads head_dim"]:
        """Turn queries or keys."""
        cos, sin = rotation.cos.to(x.dtype), rotation.sin.to(x.dtype)
        turned: Tensor = _Rotate.apply(  # type: ignore[no-untyped-call]
            x, cos, sin, self.num_rotary, self.spec.pairing == "half"
        )
        return turned

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.frequencies.copy_(self._frequencies())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        """Follow the model to its device, but never to a narrower dtype, which cannot hold angles."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.frequencies.dtype in (torch.float16, torch.bfloat16):
            self.frequencies = self._frequencies().to(self.frequencies.device)
        return self

    def _frequencies(self) -> Tensor:
        exponents = torch.arange(0, self.num_rotary, 2, dtype=torch.float32) / self.num_rotary
        return 1.0 / self.spec.theta**exponents

    def extra_repr(self) -> str:
        return f"theta {self.spec.theta:g}, {self.num_rotary} coordinates, {self.spec.pairing}"


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the rotation back, so nothing but the angles is kept for it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, num_rotary: int, half: bool
    ) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.layout = (num_rotary, half)
        turned = torch.empty_like(x)
        a, b = _pairs(x, num_rotary, half)
        out_a, out_b = _pairs(turned, num_rotary, half)
        torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=out_b).addcmul_(a, sin)
        turned[..., num_rotary:] = x[..., num_rotary:]
        return turned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        turned = _Rotate.apply(grads[0], cos, -sin, *ctx.layout)  # type: ignore[no-untyped-call]
        return turned, None, None, None, None


def _pairs(x: Tensor, num_rotary: int, half: bool) -> tuple[Tensor, Tensor]:
    """Return views of the first and second members of all pairs."""
    if half:
        middle = num_rotary // 2
        return x[..., :middle], x[..., middle:num_rotary]
    return x[..., 0:num_rotary:2], x[..., 1:num_rotary:2]


ABSOLUTE_POSITIONS: dict[type[spec.Position], Any] = {
    spec.Sinusoidal: Sinusoidal,
    spec.Learned: Learned,
}
"""Added to the embedding: constructed with (spec, dim, context_length), called with the places."""

ROTARY_POSITIONS: dict[type[spec.Position], Any] = {spec.RoPE: Rotary}
"""Turning queries and keys: constructed with (spec, head_dim)."""
