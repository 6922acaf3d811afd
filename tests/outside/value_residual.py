"""Attention with a value residual from outside the package: later layers mix their values with those of the first.

archwright train modern --parts value_residual.py model.attention.kind=value_residual
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.kernels import ScoreMods
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache
from archwright.parts.weighted_sum import WeightedSum
from archwright.spec.attention import Attention
from archwright.spec.choice import Count
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS


class ValueResidual(Attention):
    """softmax(q k^T / sqrt(d)) (a v + b v_1), v_1 of the first such layer (Zhou et al., 2024, ResFormer)."""

    kind: Literal["value_residual"] = "value_residual"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
    num_heads: Count = 4
    """Number of heads."""
    mask: Mask = Causal()
    """Which keys a query may see."""


class ValueResidualAttention(AttentionMixer):
    """out(concat_h(softmax(q k^T / sqrt(d)) (a v + b v_1))), with learned a = b = 1/2 at first."""

    def __init__(self, spec: ValueResidual, dim: int, layer: LayerInfo) -> None:
        super().__init__(spec.mask, dim, layer, spec.num_heads, key_dim=dim // spec.num_heads)
        self.query, self.key = (Linear(dim, dim, deepnorm=False) for _ in range(2))
        self.value, self.out = Linear(dim, dim), Linear(dim, dim, is_residual_output=True)
        first = layer.alike[0]
        if layer.number == first:
            self.provides, self.mix = {"value": dim}, None
        else:
            self.reads_from, self.mix = {"value": first}, WeightedSum(0.5, 0.5)
        self.position = self.own_position

    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value]

    @property
    def flops_per_pair(self) -> int:
        return 4 * self.query.d_out

    @property
    def kept_per_token(self) -> int:
        return self.key.d_out + self.value.d_out

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: KVCache | None = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Tensor:
        mask = context.mask(self.pattern, self.num_heads)
        maps = [m(x) for m in self.inputs] if projected is None else projected
        # [batch, length, heads, head_dim]
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)) for y in maps)
        if self.mix is None:
            context.provide("value", v)
        else:
            v = self.mix(v, context.read("value"))
        q, k, v = self.rotate_and_cache(q, k, v, context, mask, state)
        scale, bias = q.shape[-1] ** -0.5, None
        if self.relative is not None:
            q, bias = self.relative.value(q, mask, scale)
        mixed = self.attend(q, k, v, mask, ScoreMods(scale, bias=bias))
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out


aw.register(ValueResidual, ValueResidualAttention)
