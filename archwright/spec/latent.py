"""Latent attention."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.attention import MaskedAttention, given_or_auto, num_heads_of
from archwright.spec.choice import (
    AutoCount,
    AutoWidth,
    BoolGroup,
    OptionalFloat,
    Probability,
    ScaleDown,
    Width,
)
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS
from archwright.spec.norms import Norm, RMSNorm
from archwright.spec.scores import ScoreScale, SqrtScale


class LatentBias(BoolGroup):
    """Biases of latent attention's projections; `bias = true` or `false` sets all."""

    query_down: bool = False
    """Bias of the query latent, if there is one."""
    latent: bool = False
    """Bias of the latent of keys and values."""
    rope_key: bool = False
    """Bias of the rotary key."""
    out: bool = False
    """Bias of the output projection."""


class LatentAttention(MaskedAttention):
    """Keys and values of all heads are projections of one narrow latent (DeepSeek-AI, 2024, DeepSeek-V2, section 2.1).
    All heads share one rotary key. The cache holds only the latent and the rotary key."""

    kind: Literal["latent"] = "latent"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
    num_heads: AutoCount = Field("auto", examples=[16])
    """Heads; auto: dim / nope_head_dim. If both are auto, heads are at least 64 wide."""
    query_rank: Width | Literal["none"] = Field("none", examples=[128])
    """Width of the query latent; none: queries are projected from x."""
    kv_rank: AutoWidth = Field("auto", examples=[128])
    """Width of the latent of keys and values; auto: 4 nope_head_dim."""
    nope_head_dim: AutoWidth = Field("auto", examples=[64])
    """Width of the part of a head's query and key without rotation; auto: dim / num_heads."""
    rope_head_dim: AutoWidth = Field("auto", examples=[32])
    """Width of the part with rotary positions; auto: nope_head_dim / 2, rounded down to an even number."""
    value_head_dim: AutoWidth = Field("auto", examples=[64])
    """Width of a head's value; auto: nope_head_dim."""
    norm: Norm = Field(RMSNorm(eps=1e-6), examples=[{"kind": "layer"}])
    """Norm of the latents."""
    bias: LatentBias = Field(LatentBias(), examples=[True])
    """Biases of the projections of x and of the output projection."""
    scale: ScoreScale = SqrtScale()
    """Factor of q k^T; a head's width is nope_head_dim + rope_head_dim."""
    softcap: OptionalFloat = Field("none", examples=[50.0])
    """c tanh(s / c) over the scaled scores, before position biases and the mask."""
    gate: Literal["none", "value", "head"] = "none"
    """Multiply the heads' outputs by sigmoid(gate(x)), per value (value) or per head (head: Ling 3.0)."""
    mask: Mask = Field(Causal(), examples=[{"kind": "window", "size": 64}])
    """Keys that a query may attend to."""
    dropout: Probability = 0.0
    """Share of attention weights dropped in training."""

    def heads(self, dim: int) -> dict[str, int]:
        """Auto widths have the proportions of DeepSeek-V2, section 2.1.4."""
        num_heads = num_heads_of(self.num_heads, self.nope_head_dim, dim)
        nope = given_or_auto(self.nope_head_dim, max(1, dim // num_heads))
        return {
            "num_heads": num_heads,
            "kv_rank": given_or_auto(self.kv_rank, 4 * nope),
            "nope_head_dim": nope,
            "rope_head_dim": given_or_auto(self.rope_head_dim, max(2, nope // 4 * 2)),
            "value_head_dim": given_or_auto(self.value_head_dim, nope),
        }

    def key_dim(self, dim: int) -> int:
        sizes = self.heads(dim)
        return sizes["nope_head_dim"] + sizes["rope_head_dim"]

    def rotary_dim(self, dim: int) -> int:
        return self.heads(dim)["rope_head_dim"]

    @property
    def one_line(self) -> str:
        widths = f"{self.nope_head_dim} + {self.rope_head_dim}, latent {self.kv_rank}"
        return f"{self.mask.kind} attention in {self.num_heads} heads of {widths}"

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Keep the ratio of kv_rank to the head width and of query_rank to the model width."""
        changes = super().scaled_down(to)
        if self.kv_rank != "auto":
            share = to.head_dim / self.heads(to.old.dim)["nope_head_dim"]
            changes["kv_rank"] = max(2, 2 * round(self.kv_rank * share / 2))
        if self.query_rank != "none":
            changes["query_rank"] = to.width(self.query_rank)
        return changes

    def num_parameters(self, dim: int) -> int:
        heads, rank, rope = int(self.num_heads), int(self.kv_rank), int(self.rope_head_dim)
        nope, value = int(self.nope_head_dim), int(self.value_head_dim)
        queries = dim * heads * (nope + rope)
        if self.query_rank != "none":
            queries = self.query_rank * (dim + heads * (nope + rope) + self.bias.query_down)
            queries += self.norm.num_parameters(self.query_rank)
        latent = (dim + self.bias.latent) * rank + self.norm.num_parameters(rank)
        keys = (dim + self.bias.rope_key) * rope + rank * heads * nope
        values = rank * heads * value
        gate = dim * {"none": 0, "head": heads, "value": heads * value}[self.gate]
        out = (heads * value + self.bias.out) * dim
        return queries + latent + keys + values + gate + out
