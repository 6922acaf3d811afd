"""Position encodings: added to the embedding, rotating queries and keys, or added to scores."""

from torch import nn

from archwright.parts.positions.absolute import Learned as Learned
from archwright.parts.positions.absolute import Sinusoidal as Sinusoidal
from archwright.parts.positions.relative import ALiBi, T5Bias, TransformerXL
from archwright.parts.positions.relative import distances as distances
from archwright.parts.positions.rotary import Rotary as Rotary
from archwright.parts.positions.rotary import Rotation as Rotation
from archwright.parts.positions.rotary import follows_length as follows_length
from archwright.parts.positions.rotary import rotation as rotation
from archwright.parts.positions.scaling import SCALINGS as SCALINGS
from archwright.parts.registry import Registry
from archwright.spec import positions as spec

POSITIONS = Registry(
    spec.Position,
    "(spec, dim, context_length), of a spec that is `absolute`, (spec, dim, num_heads, head_dim, two_way=...), of one "
    "with `scores`, or else (spec, head_dim)",
    nn.Module,
    {
        spec.Sinusoidal: Sinusoidal,
        spec.Learned: Learned,
        spec.RoPE: Rotary,
        spec.ALiBi: ALiBi,
        spec.T5Bias: T5Bias,
        spec.TransformerXL: TransformerXL,
    },
)
"""Modules. If the spec is `absolute`, the module maps a token layout to vectors that are added to the embedding. If it
has `scores`, the module maps (query, view, scale) to (query, bias). Otherwise it maps positions to a rotation for its
methods `rotate_query(query, rotation)` and `rotate_key(key, rotation)`, as in `Rotary`."""
