"""LongT5's attention to tokens and to sums of blocks."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from archwright.classic.spec.equal_heads import EqualHeads
from archwright.spec.attention import AttentionBias
from archwright.spec.choice import ModelSizes, OptionalFloat, Tokens
from archwright.spec.masks import Mask, SymmetricWindow
from archwright.spec.mixers import ALL_INPUTS
from archwright.spec.norms import Norm, RMSNorm
from archwright.spec.scores import ScoreScale, SqrtScale


class TransientGlobalAttention(EqualHeads):
    """Softmax attention to tokens under the mask and to sums of blocks of tokens (Guo et al., 2022, LongT5, section
    3.1.2). Each layer sums the tokens of every whole block of the text, normalizes the sums and projects them like
    tokens. Tokens after the last whole block are added to it; a text shorter than a block has no sums."""

    kind: Literal["transient_global"] = "transient_global"
    causal: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = ALL_INPUTS - {"attention_mask"}
    further_positions: ClassVar[int] = 1
    bias: AttentionBias = Field(AttentionBias(), examples=[True])
    """Biases of the four projections."""
    scale: ScoreScale = SqrtScale()
    """Factor of q k^T."""
    softcap: OptionalFloat = Field("none", examples=[50.0])
    """c tanh(s / c) over the scaled scores, before position biases and the mask."""
    mask: Mask = Field(SymmetricWindow(radius=127), examples=[{"kind": "full"}])
    """Keys that a query may attend to, in addition to the sums."""
    block_size: Tokens = Field(16, examples=[8])
    """Tokens per sum."""
    norm: Norm = Field(RMSNorm(eps=1e-6), examples=[{"kind": "layer"}])
    """Norm of the sums."""

    @property
    def one_line(self) -> str:
        heads = f"{self.num_heads} heads of {self.head_dim}"
        return f"{self.mask.kind} attention with sums of {self.block_size} in {heads}"

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        yield from super().contradictions(sizes)
        if self.block_size > sizes.context_length:
            yield f"block_size: found {self.block_size}; expected at most context_length = {sizes.context_length}"

    def num_parameters(self, dim: int) -> int:
        width = int(self.num_heads) * int(self.head_dim)
        biases = self.bias.query + self.bias.key + self.bias.value
        maps = 4 * dim * width + biases * width + self.bias.out * dim
        return maps + self.norm.num_parameters(dim)
