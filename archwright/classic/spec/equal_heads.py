"""Attention with equal heads."""

from pydantic import Field

from archwright.spec.attention import MaskedAttention, given_or_auto, num_heads_of
from archwright.spec.choice import AutoCount, AutoWidth, Probability


class EqualHeads(MaskedAttention):
    """Attention with one number of heads and one width for queries, keys and values."""

    num_heads: AutoCount = Field("auto", examples=[16])
    """Heads; auto: dim / head_dim. If both are auto, heads are at least 64 wide."""
    head_dim: AutoWidth = Field("auto", examples=[128])
    """Width of a head; auto: dim / num_heads."""
    dropout: Probability = 0.0
    """Share of attention weights dropped in training."""

    @property
    def one_line(self) -> str:
        return f"{self.mask.kind} attention in {self.num_heads} heads of {self.head_dim}"

    def heads(self, dim: int) -> dict[str, int]:
        num_heads = num_heads_of(self.num_heads, self.head_dim, dim)
        return {
            "num_heads": num_heads,
            "head_dim": given_or_auto(self.head_dim, max(1, dim // num_heads)),
        }
