"""Custom attention: here differential attention, which subtracts one map of weights from another.

archwright check my_attention.py
archwright train demo model.attention.kind=my_attention budget=60s --parts my_attention.py

To try an idea, edit `weights`, which turns scores into weights. Masks, positions, documents, padding and the cache work
without a change.
"""

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

import archwright
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import AttentionMixer
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import KVCache
from archwright.spec.attention import Attention, num_heads_of
from archwright.spec.choice import AutoCount, ModelSizes
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS


# 1. Name and options. `takes`: AttentionMixer handles documents, padding and positions.
class MyAttention(Attention):
    """(softmax(q1 k1^T / sqrt(d)) - lambda softmax(q2 k2^T / sqrt(d))) v in heads (Ye et al., 2024, section 2.1)."""

    kind: Literal["my_attention"] = "my_attention"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
    num_heads: AutoCount = Field("auto", examples=[4])
    """Heads; auto: the number of softmax attention."""
    mask: Mask = Causal()
    """Keys that a query sees."""

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return {"num_heads": num_heads_of(self.num_heads, "auto", sizes.dim)}


# 2. The module. The model's initialisation draws `Linear`, and FLOPs include it.
class MyAttentionModule(AttentionMixer):
    """out(concat_h((1 - lambda_0) norm(weights_h v_h))). Shapes: x and y [batch, length, dim]; q and k [batch, length,
    maps heads, d]; v [batch, length, heads, maps d]; d = dim / (maps heads)."""

    maps = 2  # maps of scores in a head; 1 for a function of one map, such as a sigmoid

    def __init__(self, spec: MyAttention, dim: int, layer: LayerInfo) -> None:
        num_maps = self.maps * int(spec.num_heads)
        self.d = dim // num_maps
        super().__init__(spec.mask, dim, layer, num_maps, key_dim=self.d)
        self.query, self.key = (Linear(dim, num_maps * self.d, deepnorm=False) for _ in range(2))
        self.value = Linear(dim, num_maps * self.d)
        self.out = Linear(num_maps * self.d, dim, is_residual_output=True)
        self.lambdas = nn.Parameter(torch.empty(4, self.d))  # q1, k1, q2, k2
        self.roles = {"lambdas": "vector"}  # excluded from Muon
        self.first_lambda = 0.8 - 0.6 * math.exp(-0.3 * (layer.number - 1))
        self.position = self.own_position  # learned biases of scores, if the model has them

    # EDIT HERE. Scores are q k^T / sqrt(d) plus the bias of positions, and -inf for masked keys:
    # [batch, maps heads, queries, keys] -> [batch, heads, queries, keys]. Examples with maps = 1 and without lambdas:
    #   return scores.softmax(-1)
    #   return (scores - (scores > -torch.inf).sum(-1, keepdim=True).log()).sigmoid()  # Ramapuram et al., 2024
    #   return scores.relu().square() / (scores > -torch.inf).sum(-1, keepdim=True)
    def weights(self, scores: Tensor) -> Tensor:
        q1, k1, q2, k2 = self.lambdas
        factor = (q1 @ k1).exp() - (q2 @ k2).exp() + self.first_lambda
        first, second = scores.softmax(-1).unflatten(1, (-1, self.maps)).unbind(2)
        mixed: Tensor = first - factor * second
        return mixed

    def forward(
        self, x: Tensor, context: Context, state: KVCache | None = None, projected: Any = None
    ) -> Tensor:
        mask = context.mask(self.pattern, self.num_heads)
        q, k = (m(x).unflatten(-1, (-1, self.d)) for m in (self.query, self.key))
        v = self.value(x).unflatten(-1, (-1, self.maps * self.d))
        q, k, v = self.rotate_and_cache(q, k, v, context, mask, state)
        weights = self.weights(self.scores(q, k, mask, self.d**-0.5)).to(v.dtype)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v)  # [batch, length, heads, maps d]
        mixed = functional.rms_norm(mixed, mixed.shape[-1:], eps=1e-5) * (1 - self.first_lambda)
        out: Tensor = self.out(mixed.flatten(-2))  # [batch, length, dim]
        return out

    # Numbers per token in the cache.
    @property
    def kept_per_token(self) -> int:
        return self.key.d_out + self.value.d_out

    # Initial values of the module's own parameters; those of `Linear` come from the model's initialisation.
    def reset_parameters(self) -> None:
        nn.init.normal_(self.lambdas, 0.0, 0.1)


# 3. The registration.
archwright.register(MyAttention, MyAttentionModule)
