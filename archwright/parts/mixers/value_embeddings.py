"""Value embeddings: a table of token ids that contributes to the values of attention."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archwright.parts.linear import Linear, set_blocks
from archwright.parts.registry import Registry
from archwright.parts.tensor_parallel import TensorParallel
from archwright.parts.weighted_sum import WeightedSum
from archwright.spec import value_embeddings as spec

Values = Float[Tensor, "batch length kv_heads value_dim"]


class ScaledValueEmbedding(nn.Module):
    """v = a v + b e, with learned scalars a and b, and rows e of the table.

    Shapes: v and e [batch, length, num_kv_heads, value_dim]; x, the mixer's input, [batch, length, dim].
    Jordan et al., 2024, modded-nanogpt, published code. In Zhou et al., 2024, Value Residual Learning, e are the values
    of the first layer.
    """

    def __init__(self, spec: spec.ScaledValueEmbedding, dim: int, num_kv_heads: int) -> None:
        super().__init__()
        self.sum = WeightedSum(0.5, 0.5)

    @property
    def tensor_parallel(self) -> TensorParallel:
        """Ranks split the heads of values."""
        return TensorParallel({})

    def forward(self, v: Values, e: Values, x: Float[Tensor, "batch length dim"]) -> Values:
        mixed: Tensor = self.sum(v, e)
        return mixed


class GatedValueEmbedding(nn.Module):
    """v = v + 2 sigmoid(gate(x)) e, with one gate per key-value head, from the first coordinates of x.

    Shapes: v and e [batch, length, num_kv_heads, value_dim]; x, the mixer's input, [batch, length, dim].
    Karpathy, 2025, nanochat, published code.
    """

    def __init__(self, spec: spec.GatedValueEmbedding, dim: int, num_kv_heads: int) -> None:
        super().__init__()
        self.channels = spec.width(dim)
        self.gate = Linear(self.channels, num_kv_heads, deepnorm=False)
        # Gates begin at 2 sigmoid(0) = 1.
        self.gate.init_gain = 0.0
        set_blocks(num_kv_heads, self.gate)

    @property
    def tensor_parallel(self) -> TensorParallel:
        """Ranks split the heads of values and their gates."""
        return TensorParallel({})

    def forward(self, v: Values, e: Values, x: Float[Tensor, "batch length dim"]) -> Values:
        # [batch, length, num_kv_heads, 1]
        gate = 2 * torch.sigmoid(self.gate(x[..., : self.channels]))[..., None]
        return v + gate.to(v.dtype) * e


VALUE_EMBEDDINGS = Registry(
    spec.ValueEmbedding,
    "(spec, dim, num_kv_heads)",
    nn.Module,
    {
        spec.ScaledValueEmbedding: ScaledValueEmbedding,
        spec.GatedValueEmbedding: GatedValueEmbedding,
    },
)
"""Modules: v = mix(v, e, x), of values, rows of the table, and what attention reads."""
