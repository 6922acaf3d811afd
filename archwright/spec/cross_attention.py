"""Cross-attention from decoder tokens to the encoder's output."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.attention import AttentionBias, given_or_auto, num_heads_of, unequal_heads
from archwright.spec.choice import AutoCount, AutoWidth, ModelSizes, OptionalFloat, Probability
from archwright.spec.mixers import ALL_INPUTS, Mixer
from archwright.spec.norms import NoNorm, Norm
from archwright.spec.scores import ScoreScale, SqrtScale


class CrossAttention(Mixer):
    """The axis of cross-attention branches, from decoder tokens to the encoder's output. They are between attention and
    feed-forward, in models with an encoder."""

    axis: ClassVar[str] = "cross_attention"

    def num_cross_parameters(self, dim: int, memory_dim: int) -> int:
        """Return the number of parameters, from resolved values, with an encoder of width `memory_dim`."""
        return 0


class NoCrossAttention(CrossAttention):
    """No cross-attention branch: the layer does not read an encoder."""

    kind: Literal["none"] = "none"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS


class SoftmaxCrossAttention(CrossAttention):
    """softmax(q k^T / sqrt(head_dim)) v in heads, with queries from the decoder's stream and keys and values from the
    encoder's output (Vaswani et al., 2017, section 3.2.3). Each token sees the whole source."""

    kind: Literal["softmax"] = "softmax"
    takes: ClassVar[frozenset[str]] = ALL_INPUTS - {"position"}
    num_heads: AutoCount = Field("auto", examples=[4])
    """Query heads; auto: dim / head_dim. If both are auto, heads are at least 64 wide."""
    num_kv_heads: AutoCount = Field("auto", examples=[1])
    """Key and value heads; auto: num_heads."""
    head_dim: AutoWidth = Field("auto", examples=[128])
    """Width of a head; auto: dim / num_heads."""
    bias: AttentionBias = Field(AttentionBias(), examples=[True])
    """Biases of the four projections."""
    scale: ScoreScale = SqrtScale()
    """Factor of q k^T."""
    qk_norm: Norm = Field(NoNorm(), examples=[{"kind": "rms"}])
    """Norm of each head's query and key, with weights shared by all heads."""
    softcap: OptionalFloat = Field("none", examples=[50.0])
    """c tanh(s / c) over the scaled scores (T5Gemma)."""
    dropout: Probability = 0.0
    """Share of attention weights dropped in training."""

    def heads(self, dim: int) -> dict[str, int]:
        """Return the number of heads and their width as numbers, by field name."""
        num_heads = num_heads_of(self.num_heads, self.head_dim, dim)
        return {
            "num_heads": num_heads,
            "num_kv_heads": given_or_auto(self.num_kv_heads, num_heads),
            "head_dim": given_or_auto(self.head_dim, max(1, dim // num_heads)),
        }

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        heads = self.heads(sizes.dim)
        return {**heads, "scale": self.scale.numbers_of_heads(heads["head_dim"])}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        return unequal_heads(self, sizes.dim)

    @property
    def one_line(self) -> str:
        return f"cross-attention in {self.num_heads}/{self.num_kv_heads} heads of {self.head_dim}"

    def num_cross_parameters(self, dim: int, memory_dim: int) -> int:
        head_dim = int(self.head_dim)
        queries, keys = int(self.num_heads) * head_dim, int(self.num_kv_heads) * head_dim
        maps = 2 * dim * queries + 2 * memory_dim * keys
        biases = self.bias.query * queries + self.bias.out * dim
        biases += (self.bias.key + self.bias.value) * keys
        return maps + biases + 2 * self.qk_norm.num_parameters(head_dim)
