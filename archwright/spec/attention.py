"""Attention branches and their options."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import (
    AutoCount,
    AutoWidth,
    BoolGroup,
    ModelSizes,
    OptionalFloat,
    Probability,
    ScaleDown,
)
from archwright.spec.masks import Causal, Mask
from archwright.spec.mixers import ALL_INPUTS, Mixer
from archwright.spec.norms import NoNorm, Norm
from archwright.spec.scores import (
    FixedScale,
    NoQueryTemperature,
    QueryTemperature,
    ScoreScale,
    SqrtScale,
)
from archwright.spec.value_embeddings import NoValueEmbedding, ValueEmbedding

AUTO_HEAD_DIM = 64
"""Least head width if neither num_heads nor head_dim is set."""

if TYPE_CHECKING:
    from archwright.spec.cross_attention import SoftmaxCrossAttention


class AttentionBias(BoolGroup):
    """Biases of attention's projections; `bias = true` or `false` sets all."""

    query: bool = False
    """Bias of the query projection."""
    key: bool = False
    """Bias of the key projection."""
    value: bool = False
    """Bias of the value projection."""
    out: bool = False
    """Bias of the output projection."""


class Attention(Mixer):
    """The axis of attention branches, which exchange information between tokens."""

    axis: ClassVar[str] = "attention"
    knows_distances: ClassVar[bool] = False
    """True if scores depend on distances without a position encoding."""

    def kv_sizes(self, dim: int) -> tuple[int, ...]:
        """Return the sizes of keys and values that layers can share; empty if sharing is unsupported."""
        return ()


class NoAttention(Attention):
    """No attention branch: the layer has a recurrence, or only a feed-forward."""

    kind: Literal["none"] = "none"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS


class MaskedAttention(Attention):
    """Attention of queries to keys under a mask, with scores and a KV cache."""

    further_positions: ClassVar[int] = 0
    """Number of position encodings of scores in addition to the layer's own, of equal sizes."""

    if TYPE_CHECKING:
        num_heads: AutoCount
        mask: Mask
        scale: ScoreScale
        softcap: OptionalFloat

    @abstractmethod
    def heads(self, dim: int) -> dict[str, int]:
        """Return the number of heads and their widths as numbers, by field name."""

    def key_dim(self, dim: int) -> int:
        """Return the width of a head's query and key."""
        return self.heads(dim)["head_dim"]

    def rotary_dim(self, dim: int) -> int:
        """Return the width of the rotary part of a head."""
        return self.key_dim(dim)

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        scale = self.scale.numbers_of_heads(self.key_dim(sizes.dim))
        return {**self.heads(sizes.dim), "scale": scale}

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Scale a fixed factor with the key width: as 1 / width if it is that (Granite), else as its root."""
        changes = super().scaled_down(to)
        if isinstance(self.scale, FixedScale):
            widths = [n for name, n in self.heads(to.old.dim).items() if name.endswith("head_dim")]
            is_inverse = math.isclose(self.scale.value * self.key_dim(to.old.dim), 1)
            factor = (widths[0] / to.head_dim) ** (1 if is_inverse else 0.5)
            changes["scale"] = {"value": self.scale.value * factor}
        return changes


class SoftmaxAttention(MaskedAttention):
    """softmax(q k^T / sqrt(head_dim)) v in heads (Vaswani et al., 2017); groups of query heads share a key-value head
    (Ainslie et al., 2023)."""

    kind: Literal["softmax"] = "softmax"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS
    num_heads: AutoCount = Field("auto", examples=[8])
    """Query heads; auto: dim / head_dim. If both are auto, heads are at least 64 wide."""
    num_kv_heads: AutoCount = Field("auto", examples=[1])
    """Key and value heads; auto: num_heads (MHA). 1 is MQA; numbers in between are GQA."""
    head_dim: AutoWidth = Field("auto", examples=[128])
    """Width of a head; auto: dim / num_heads."""
    value_head_dim: AutoWidth = Field("auto", examples=[32])
    """Width of a head's value (MiMo-V2); auto: head_dim."""
    bias: AttentionBias = Field(AttentionBias(), examples=[True])
    """Biases of the four projections."""
    scale: ScoreScale = SqrtScale()
    """Factor of q k^T."""
    query_temperature: QueryTemperature = NoQueryTemperature()
    """Position-dependent factor of queries."""
    qk_norm: Norm = Field(NoNorm(), examples=[{"kind": "rms"}])
    """Norm of queries and keys (Henry et al., 2020)."""
    qk_norm_over: Literal["head", "per_head", "projection"] = "head"
    """Vectors that qk_norm normalizes. head: each head, with shared weights (Qwen 3); per_head: each head, with weights
    per head (Command R+); projection: the whole projection (OLMo 2)."""
    qk_norm_position: Literal["before", "after"] = "before"
    """Apply qk_norm before or after (Llama 4) the rotation by position."""
    v_norm: Norm = Field(NoNorm(), examples=[{"kind": "rms", "weight": "none"}])
    """Norm of each head's value (Gemma 3n)."""
    value_scale: float = Field(1.0, gt=0, examples=[0.5])
    """Factor of values (MiMo-V2)."""
    keys_as_values: bool = False
    """Use the projected keys, before their norm and rotation, as values, without a value projection (Gemma 4)."""
    shares_kv: bool = False
    """Reuse keys and values of the nearest earlier layer that projects its own, with equal mask, position and sizes
    (Brandon et al., 2024, Cross-Layer Attention; Gemma 3n, Gemma 4)."""
    value_embedding: ValueEmbedding = NoValueEmbedding()
    """Embedding of token ids, added to values after the options above; use `layer_kinds` for some layers only."""
    qkv_clip: OptionalFloat = Field("none", examples=[8.0])
    """Clamp queries, keys and values to +-qkv_clip right after their projection (MPT, DBRX, OLMo)."""
    softcap: OptionalFloat = Field("none", examples=[50.0])
    """c tanh(s / c) over the scaled scores, before position biases and the mask (Gemma 2)."""
    sinks: bool = False
    """A learned logit per head in the denominator of the softmax (gpt-oss)."""
    gate: Literal["none", "value", "head"] = "none"
    """Multiply the heads' outputs by sigmoid(gate(x)), per value (value: Qwen3-Next) or per head (head: Qiu et al.,
    2025)."""
    out_norm: Norm = Field(NoNorm(), examples=[{"kind": "rms"}])
    """Norm over the concatenated heads, before the output projection (Wang et al., 2022, Foundation Transformers;
    BitNet b1.58)."""
    mask: Mask = Field(Causal(), examples=[{"kind": "window", "size": 64}])
    """Keys that a query may attend to."""
    dropout: Probability = 0.0
    """Share of attention weights dropped in training."""

    def heads(self, dim: int) -> dict[str, int]:
        num_heads = num_heads_of(self.num_heads, self.head_dim, dim)
        head_dim = given_or_auto(self.head_dim, max(1, dim // num_heads))
        return {
            "num_heads": num_heads,
            "num_kv_heads": given_or_auto(self.num_kv_heads, num_heads),
            "head_dim": head_dim,
            "value_head_dim": given_or_auto(self.value_head_dim, head_dim),
        }

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        return super().numbers(sizes) | {"value_embedding": self.value_embedding.numbers(sizes)}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from unequal_heads(self, sizes.dim)
        _, key, value = self.kv_sizes(sizes.dim)
        if self.keys_as_values and key != value:
            yield f"value_head_dim: found {value} with keys_as_values = true; expected head_dim = {key}"
        if self.shares_kv and not self.value_embedding.is_none:
            yield (
                f'value_embedding.kind: found "{self.value_embedding.kind}" with shares_kv = true, whose values are '
                'those of another layer; expected "none"'
            )

    def kv_sizes(self, dim: int) -> tuple[int, ...]:
        sizes = self.heads(dim)
        return sizes["num_kv_heads"], sizes["head_dim"], sizes["value_head_dim"]

    @property
    def one_line(self) -> str:
        line = f"{self.mask.kind} attention in {self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}"
        wider = self.value_head_dim != self.head_dim
        line += f", values of {self.value_head_dim}" if wider else ""
        return line + (", keys and values of another layer" if self.shares_kv else "")

    def num_parameters(self, dim: int) -> int:
        heads, kv_heads = int(self.num_heads), int(self.num_kv_heads)
        head, value = int(self.head_dim), int(self.value_head_dim)
        own_heads = 0 if self.shares_kv else kv_heads
        queries, keys = heads * head, own_heads * head
        values, mixed = own_heads * value, heads * value
        values = 0 if self.keys_as_values else values
        maps = dim * (queries + keys + values + mixed)
        biases = self.bias.query * queries + self.bias.key * keys
        biases += self.bias.value * values + self.bias.out * dim
        gate = dim * {"none": 0, "head": heads, "value": mixed}[self.gate]
        normed = (head, head) if self.qk_norm_over == "head" else (queries, keys)
        norms = sum(map(self.qk_norm.num_parameters, normed[: 1 if self.shares_kv else 2]))
        norms += 0 if self.shares_kv else self.v_norm.num_parameters(value)
        norms += self.out_norm.num_parameters(mixed)
        further = self.value_embedding.num_parameters(kv_heads)
        return maps + biases + gate + norms + self.sinks * heads + further

    def num_table_parameters(self, vocab_size: int) -> int:
        if self.value_embedding.is_none:
            return 0
        return vocab_size * int(self.num_kv_heads) * int(self.value_head_dim)


def num_heads_of(number: AutoWidth, width: AutoWidth, dim: int) -> int:
    """Return the number of heads; auto: the number that fits into dim."""
    if number != "auto":
        return number
    if width != "auto":
        return max(1, dim // width)
    most = max(1, dim // AUTO_HEAD_DIM)
    return next(n for n in range(most, 0, -1) if dim % n == 0)


def given_or_auto(value: AutoWidth, auto: int) -> int:
    """Return a width, or `auto` if it is "auto"."""
    return auto if value == "auto" else value


def unequal_heads(choice: "SoftmaxAttention | SoftmaxCrossAttention", dim: int) -> Iterator[str]:
    """Yield an error if key-value heads do not divide query heads, or query heads do not divide dim."""
    sizes = choice.heads(dim)
    num_heads, num_kv_heads = sizes["num_heads"], sizes["num_kv_heads"]
    if num_heads % num_kv_heads:
        yield f"num_kv_heads: found {num_kv_heads}; expected a divisor of num_heads = {num_heads}"
    if choice.head_dim == "auto" and dim % num_heads:
        yield (
            f"num_heads: found {num_heads}; expected a divisor of dim = {dim}, or a given "
            f"{choice.axis}.head_dim"
        )
