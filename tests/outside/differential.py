"""Differential attention from outside the package, with what the package's own attention has: masks, positions,
documents, padding, kernels and a cache.

archwright train modern --parts differential.py model.attention.kind=differential
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.kernels import ScoreMods
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer
from archwright.parts.norms import NORMS
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache
from archwright.spec.attention import Attention
from archwright.spec.choice import Count
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS
from archwright.spec.norms import Norm, RMSNorm


class Differential(Attention):
    """(softmax(q1 k1^T / sqrt(d)) - lambda softmax(q2 k2^T / sqrt(d))) v (Ye et al., 2024, section 2.1)."""

    kind: Literal["differential"] = "differential"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
    num_heads: Count = 4
    """Heads; each has two maps of attention, of width d = dim / (2 num_heads), and values of width 2 d."""
    norm: Norm = RMSNorm(eps=1e-5, weight="none")
    """Norm over the result of each head."""
    mask: Mask = Causal()
    """Which keys a query may see."""


class DifferentialAttention(AttentionMixer):
    """out(concat_h((1 - lambda_0) norm((softmax(q1 k1^T / sqrt(d)) - lambda softmax(q2 k2^T / sqrt(d))) v))), with
    lambda = exp(l_q1 l_k1) - exp(l_q2 l_k2) + lambda_0, and lambda_0 = 0.8 - 0.6 exp(-0.3 (n - 1)) in layer n."""

    def __init__(self, spec: Differential, dim: int, layer: LayerInfo) -> None:
        head_dim = dim // (2 * spec.num_heads)
        super().__init__(spec.mask, dim, layer, 2 * spec.num_heads, key_dim=head_dim)
        self.head_dim, width = head_dim, 2 * spec.num_heads * head_dim
        self.query = Linear(dim, width, deepnorm=False)
        self.key = Linear(dim, width, deepnorm=False)
        self.value = Linear(dim, width)
        self.out = Linear(width, dim, is_residual_output=True)
        self.norm: nn.Module = NORMS.make(spec.norm, 2 * self.head_dim)
        self.lambdas = nn.Parameter(torch.empty(4, self.head_dim))  # q1, k1, q2, k2
        self.roles = {"lambdas": "vector"}  # not to be made orthogonal by Muon
        self.first_lambda = 0.8 - 0.6 * math.exp(-0.3 * (layer.number - 1))
        self.position = self.own_position

    @property
    def inputs(self) -> list[Linear]:
        return [self.query, self.key, self.value]

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
        q, k, v = [m(x) for m in self.inputs] if projected is None else projected
        q, k = (
            y.unflatten(-1, (self.num_heads, -1)) for y in (q, k)
        )  # [batch, length, 2 heads, d]
        v = v.unflatten(-1, (self.num_heads // 2, -1))  # [batch, length, heads, 2 d]
        q, k, v = self.rotate_and_cache(q, k, v, context, mask, state)
        scale, bias = self.head_dim**-0.5, None
        if self.relative is not None:
            q, bias = self.relative.value(q, mask, scale)
        both = self.attend(q, k, v.repeat_interleave(2, 2), mask, ScoreMods(scale, bias=bias))
        first, second = both.unflatten(2, (-1, 2)).unbind(3)  # [batch, length, heads, 2 d] each
        q1, k1, q2, k2 = self.lambdas
        factor = (q1 @ k1).exp() - (q2 @ k2).exp() + self.first_lambda
        mixed = self.norm(first - factor.to(first.dtype) * second) * (1 - self.first_lambda)
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out

    def reset_parameters(self) -> None:
        nn.init.normal_(self.lambdas, 0.0, 0.1)


aw.register(Differential, DifferentialAttention)
