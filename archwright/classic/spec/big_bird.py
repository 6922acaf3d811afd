"""BigBird's mask of blocks."""

from typing import ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Tokens
from archwright.spec.masks import Mask


class BigBird(Mask):
    """Blocks of b tokens that see their neighbours, the first and last block, and r random ones; the first and last
    block see all: |q // b - k // b| <= 1, or either block is 0 or the last, or k // b is random for q // b (Zaheer et
    al., 2020, section 2). In texts of at most (5 + 2 r) b tokens, every token sees all tokens."""

    kind: Literal["big_bird"] = "big_bird"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("block_size", 1),)
    extent: ClassVar[tuple[str, ...]] = ("block_size",)
    block_size: Tokens = Field(64, examples=[16])
    """Length b of a block, in tokens."""
    num_random: int = Field(3, ge=0, le=1000, examples=[2])
    """Number r of random blocks that each other block sees."""
    random: Literal["drawn", "first"] = "drawn"
    """drawn: draw blocks for each layer, head and block, as the published code does in training; first: use the first
    block for all of them, counted 1 + r times, as `transformers` does at inference."""

    @property
    def differs_by_head(self) -> bool:
        return bool(self.num_random) and self.random == "drawn"

    @property
    def differs_by_layer(self) -> bool:
        return self.differs_by_head
