"""Position encodings: added to the embedding, turning queries and keys, or added to scores."""

from typing import Any

from archwright.parts.positions.absolute import Learned as Learned
from archwright.parts.positions.absolute import Sinusoidal as Sinusoidal
from archwright.parts.positions.relative import ALiBi, T5Bias, TransformerXL
from archwright.parts.positions.rotary import Rotary as Rotary
from archwright.parts.positions.rotary import Rotation as Rotation
from archwright.parts.positions.rotary import follows_length as follows_length
from archwright.parts.positions.rotary import rotation as rotation
from archwright.spec import positions as spec

ABSOLUTE_POSITIONS: dict[type[spec.Position], Any] = {
    spec.Sinusoidal: Sinusoidal,
    spec.Learned: Learned,
}
"""Added to the embedding: constructed with (spec, dim, context_length), called with the places."""

ROTARY_POSITIONS: dict[type[spec.Position], Any] = {spec.RoPE: Rotary}
"""Turning queries and keys: constructed with (spec, head_dim)."""

SCORE_POSITIONS: dict[type[spec.Position], Any] = {
    spec.ALiBi: ALiBi,
    spec.T5Bias: T5Bias,
    spec.TransformerXL: TransformerXL,
}
"""Added to scores: constructed with (spec, dim, num_heads, head_dim, two_way=...), called with
(query, view, scale), returning (query, bias)."""
