"""Positions added to the embedding."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Embedding
from archwright.parts.token_layout import TokenLayout
from archwright.spec import positions as spec


class Sinusoidal(nn.Module):
    """P[p, 2i] = sin(p theta^(-2i/dim)), P[p, 2i+1] = cos(p theta^(-2i/dim)), or all sines before all
    cosines; p counts from the offset. fairseq spaces the exponents as i / (dim/2 - 1).

    Shapes: [rows, length, dim] for positions [rows, length]. Vaswani et al., 2017, section 3.5.
    """

    def __init__(self, spec: spec.Sinusoidal, dim: int, context_length: int) -> None:
        super().__init__()
        self.spec, self.dim = spec, dim

    def forward(self, layout: TokenLayout) -> Float[Tensor, "rows length dim"]:
        s, positions = self.spec, layout.position_ids_or_range() + self.spec.offset
        # max: a single pair has exponent 0 for any period.
        period = max(self.dim - 2, 1) if s.spacing == "fairseq" else self.dim
        return sines(positions, self.dim, s.theta, s.layout == "interleaved", period)


def sines(
    positions: Tensor, dim: int, theta: float, interleaved: bool, period: int | None = None
) -> Float[Tensor, "*batch dim"]:
    """Return sin and cos of position * theta^(-2i/period), interleaved or in two halves."""
    pairs = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float64)
    angles = positions[..., None] * theta ** (-pairs / (period or dim))
    if interleaved:
        # [..., dim / 2, 2] -> [..., dim]
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[..., :dim].float()
    return torch.cat((angles.sin(), angles.cos()[..., : dim // 2]), dim=-1).float()


class Learned(nn.Module):
    """P[p] = weight[p + offset], a trained table of shape [context_length + offset, dim].

    Raises:
        ValueError: the text has more tokens than the table has rows.
    """

    def __init__(self, spec: spec.Learned, dim: int, context_length: int) -> None:
        super().__init__()
        self.offset = spec.offset
        self.table = Embedding(context_length + spec.offset, dim)

    def forward(self, layout: TokenLayout) -> Float[Tensor, "rows length dim"]:
        rows = self.table.weight.shape[0] - self.offset
        length = end_of(layout)
        if length > rows:
            raise ValueError(
                f"found {length} tokens; expected at most context_length = {rows}, "
                "as learned positions end there"
            )
        rows_of: Tensor = self.table(layout.position_ids_or_range() + self.offset)
        return rows_of


def end_of(layout: TokenLayout) -> int:
    """Return the last position of the text plus 1; `position_ids` on the meta device are ignored."""
    if layout.position_ids is None or layout.position_ids.is_meta:
        return layout.start + layout.length
    return int(layout.position_ids.max()) + 1
