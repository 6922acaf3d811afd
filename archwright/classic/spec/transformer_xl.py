"""Transformer-XL's relative positions."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.positions import Position


class TransformerXL(Position):
    """Scores q (k + r) + u k + v r, with r a linear map of the distance's sinusoidal vector and u, v learned per head
    (Dai et al., 2019, section 3.3; Gopher)."""

    kind: Literal["transformer_xl"] = "transformer_xl"
    spelling: ClassVar[str] = "relative (XL)"
    scores: ClassVar[bool] = True
    theta: float = Field(10_000.0, gt=1)
    """Base of the wavelengths of the distance's vector."""

    def num_parameters(self, dim: int, num_heads: int, head_dim: int) -> int:
        return (dim + 2) * num_heads * head_dim
