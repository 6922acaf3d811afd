"""Longformer: windows, global tokens, and projections of their own for these."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from archwright.classic.spec.equal_heads import EqualHeads
from archwright.spec.attention import AttentionBias
from archwright.spec.choice import Count, ModelSizes, OptionalFloat, Tokens
from archwright.spec.masks import Mask
from archwright.spec.mixers import ALL_INPUTS
from archwright.spec.scores import ScoreScale, SqrtScale


class Longformer(Mask):
    """Every `dilation`-th key on either side, `radius` of them, and global tokens, which see all tokens and are visible
    to all: |q - k| in {0, d, ..., radius d}, or q < num_global, or k < num_global (Beltagy et al., 2020, section
    3.1)."""

    kind: Literal["longformer"] = "longformer"
    spelling: ClassVar[str] = "Longformer"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("radius", 4),)
    extent: ClassVar[tuple[str, ...]] = ("radius", "dilation")
    radius: Tokens = Field(256, examples=[32])
    """Visible keys on either side: half of the paper's window w."""
    dilation: Tokens = Field(1, examples=[2])
    """Distance between neighbouring visible keys, in tokens."""
    dilated_heads: Count | Literal["all"] = Field("all", examples=[2])
    """Number of heads with gaps, the last ones; the others see the nearest keys."""
    num_global: int = Field(1, ge=0, le=2**30)
    """Number of global tokens at the start of a text."""

    @property
    def differs_by_head(self) -> bool:
        return self.dilated_heads != "all"


class LongformerAttention(EqualHeads):
    """Softmax attention under the mask "longformer". Global tokens use separate projections for their queries and for
    all keys and values they attend to (Beltagy et al., 2020, section 3.1)."""

    kind: Literal["longformer"] = "longformer"
    spelling: ClassVar[str] = "Longformer"
    causal: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = ALL_INPUTS - {"attention_mask"}
    bias: AttentionBias = Field(AttentionBias(), examples=[True])
    """Biases of all projections, for global and other tokens."""
    scale: ScoreScale = SqrtScale()
    """Factor of q k^T."""
    softcap: OptionalFloat = Field("none", examples=[50.0])
    """c tanh(s / c) over the scaled scores, before position biases and the mask."""
    mask: Mask = Field(Longformer(), examples=[{"kind": "longformer", "radius": 32}])
    """Keys that a query may attend to: "longformer", with at least one global token."""

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        if not isinstance(self.mask, Longformer):
            yield f'mask.kind: found "{self.mask.kind}" with attention.kind "longformer"; expected "longformer"'
        elif not self.mask.num_global:
            yield (
                "mask.num_global: found 0, which leaves the projections of global tokens unused; "
                'expected 1 or more, or attention.kind "softmax"'
            )

    def num_parameters(self, dim: int) -> int:
        width = int(self.num_heads) * int(self.head_dim)
        biases = self.bias.query + self.bias.key + self.bias.value
        return 7 * dim * width + 2 * biases * width + self.bias.out * dim
