"""Masks: which keys a query may see. Documents and padding come with the batch and narrow them.

A place is counted in tokens from the start of its document.
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice, Count, ScaleDown, Tokens


class Mask(Choice):
    """The axis of attention masks: which keys a query may see."""

    axis: ClassVar[str] = "mask"
    causal: ClassVar[bool] = True
    """Whether no query sees a key behind it, so that text can be written token by token."""
    shows_all: ClassVar[bool] = False
    """Whether a query sees all keys on its side, or on both."""
    shows_future: ClassVar[bool] = False
    """Whether some token sees one that follows it, though text can be written."""
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = ()
    """Options that shrink with the length of texts, with the least value of each."""
    extent: ClassVar[tuple[str, ...]] = ()
    """Options whose product is how far a query sees, in tokens; the first is changed where it shall see less."""

    @property
    def reach(self) -> int:
        """How far a query sees, in tokens; 0 where no option says so."""
        values = dict(self)
        return math.prod(values[name] for name in self.extent) if self.extent else 0

    def shortened(self, share: float) -> dict[str, Any]:
        """Return the options that change in texts of this share of the length; none where those are no shorter."""
        values = dict(self)
        return {
            name: max(least, round(values[name] * share))
            for name, least in self.in_tokens
            if share < 1
        }

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        return self.shortened(to.context_share)

    @property
    def differs_by_head(self) -> bool:
        """Whether heads see differently, so that a pattern is made for their number."""
        return False

    @property
    def differs_by_layer(self) -> bool:
        """Whether layers see differently, so that a pattern is made for each, by its number."""
        return False


class Causal(Mask):
    """Every key up to the query itself: k <= q (Vaswani et al., 2017, section 3.2.3)."""

    kind: Literal["causal"] = "causal"
    shows_all: ClassVar[bool] = True


class Full(Mask):
    """Every key, before and behind the query (Devlin et al., 2018)."""

    kind: Literal["full"] = "full"
    causal: ClassVar[bool] = False
    shows_all: ClassVar[bool] = True


class Prefix(Mask):
    """Every key of the prefix, and every key up to the query: k < size or k <= q (Raffel et al., 2019)."""

    kind: Literal["prefix"] = "prefix"
    shows_future: ClassVar[bool] = True
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = 64
    """Length of the prefix, in tokens; `prefix_lengths` of a batch replaces it."""


class Window(Mask):
    """The last `size` keys, the query's own included: 0 <= q - k < size (Child et al., 2019; Mistral 7B)."""

    kind: Literal["window"] = "window"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(4096, examples=[64])
    """Number of visible keys, in tokens."""


class SymmetricWindow(Mask):
    """The keys at most `radius` away: |q - k| <= radius (Beltagy et al., 2020)."""

    kind: Literal["symmetric_window"] = "symmetric_window"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("radius", 4),)
    extent: ClassVar[tuple[str, ...]] = ("radius",)
    radius: int = Field(256, ge=0, le=2**30, examples=[32])
    """Farthest visible key on either side, in tokens."""


class DilatedWindow(Mask):
    """Every `dilation`-th of the keys behind, `size` of them: q, q - d, q - 2d ...
    (Beltagy et al., 2020, section 3.1)."""

    kind: Literal["dilated_window"] = "dilated_window"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size", "dilation")
    size: Tokens = Field(256, examples=[32])
    """Number of visible keys."""
    dilation: Tokens = 2
    """Distance between neighbouring visible keys, in tokens."""
    dilated_heads: Count | Literal["all"] = Field("all", examples=[2])
    """How many heads, the last ones, see with gaps; the others see the last `size` keys."""

    @property
    def differs_by_head(self) -> bool:
        return self.dilated_heads != "all"


class Longformer(Mask):
    """Every `dilation`-th key on either side, `radius` of them, and global tokens, which see and are seen by all:
    |q - k| in {0, d, ..., radius d}, or q < num_global, or k < num_global (Beltagy et al., 2020, section 3.1)."""

    kind: Literal["longformer"] = "longformer"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("radius", 4),)
    extent: ClassVar[tuple[str, ...]] = ("radius", "dilation")
    radius: Tokens = Field(256, examples=[32])
    """Visible keys on either side: half of the paper's window w."""
    dilation: Tokens = Field(1, examples=[2])
    """Distance between neighbouring visible keys, in tokens."""
    dilated_heads: Count | Literal["all"] = Field("all", examples=[2])
    """How many heads, the last ones, see with gaps; the others see the nearest keys."""
    num_global: int = Field(1, ge=0, le=2**30)
    """How many tokens at the start of a text are global."""

    @property
    def differs_by_head(self) -> bool:
        return self.dilated_heads != "all"


class Chunked(Mask):
    """The keys of the query's own chunk up to itself (Llama 4), and those of a few chunks before it (Kitaev et al.,
    2020, Reformer's local attention)."""

    kind: Literal["chunked"] = "chunked"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(8192, examples=[64])
    """Length of a chunk, in tokens."""
    chunks_before: int = Field(0, ge=0, le=2**12, examples=[1])
    """How many chunks before its own a query sees whole."""

    @property
    def memory(self) -> int:
        """Tokens before a chunk that all of its own see."""
        return self.size * self.chunks_before

    @property
    def reach(self) -> int:
        return self.size + self.memory


class SegmentMemory(Mask):
    """The keys of the query's own segment up to itself, and the memory before the segment: the last tokens of those
    before it, q - q mod size - memory <= k <= q (Dai et al., 2019, Transformer-XL, section 3.2)."""

    kind: Literal["segment_memory"] = "segment_memory"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8), ("memory", 8))
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(512, examples=[32])
    """Length of a segment, in tokens."""
    memory: int = Field(512, ge=0, le=2**30, examples=[16])
    """Tokens before a segment that all of its own see."""


class WindowGlobal(Mask):
    """The last `size` keys and the first `num_global` (Beltagy et al., 2020; Xiao et al., 2023)."""

    kind: Literal["window_global"] = "window_global"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(4096, examples=[64])
    """Number of keys in the window, the query's own included."""
    num_global: Tokens = 4
    """Tokens at the start that every later query sees."""


class Strided(Mask):
    """The last `stride` keys and every `stride`-th before: q - k < l or (q - k) mod l = 0
    (Child et al., 2019, section 4.3)."""

    kind: Literal["strided"] = "strided"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("stride", 4),)
    extent: ClassVar[tuple[str, ...]] = ("stride",)
    stride: Tokens = Field(128, examples=[16])
    """The stride l, in tokens."""


class Fixed(Mask):
    """The query's own block of `stride` keys, and the last `num_summary` keys of every block before
    (Child et al., 2019, section 4.3)."""

    kind: Literal["fixed"] = "fixed"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("stride", 4),)
    extent: ClassVar[tuple[str, ...]] = ("stride",)
    stride: Tokens = Field(128, examples=[32])
    """Length l of a block, in tokens."""
    num_summary: Tokens = 8
    """The c keys at each block's end that all later blocks see."""


class BlockSparse(Mask):
    """Blocks of b keys: the query's own and the local_blocks - 1 before, and one of every `stride` before
    those: k <= q, and q // b - k // b < local_blocks or (k // b + 1 + offset) mod stride = 0
    (Abdin et al., 2024, Phi-3, section 2)."""

    kind: Literal["block_sparse"] = "block_sparse"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("block_size", 1),)
    extent: ClassVar[tuple[str, ...]] = ("local_blocks", "block_size")
    block_size: Tokens = Field(64, examples=[16])
    """Length b of a block, in tokens."""
    local_blocks: Tokens = Field(16, examples=[4])
    """Blocks that a query sees whole up to itself, its own included."""
    stride: Tokens = Field(8, examples=[4])
    """Every how many blocks one is seen from everywhere behind it."""
    per_head: bool = True
    """Whether heads see other blocks: head h has the offset h max(1, stride // num_heads), else all have 0."""

    @property
    def differs_by_head(self) -> bool:
        return self.per_head


class BlockLocal(Mask):
    """Blocks of b tokens that each see themselves whole, and global tokens, which see and are seen by all: (q - g + s)
    // b = (k - g + s) // b, or q < g or k < g. Blocks are counted behind the g global tokens, and the first of them is
    s tokens shorter, which moves all borders (Phang et al., 2022, Pegasus-X, section 3.1)."""

    kind: Literal["block_local"] = "block_local"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("block_size", 1), ("shift", 0))
    extent: ClassVar[tuple[str, ...]] = ("block_size",)
    block_size: Tokens = Field(512, examples=[16])
    """Length b of a block, in tokens."""
    shift: int = Field(0, ge=0, le=2**30, examples=[8])
    """By how many tokens s all borders stand further ahead; half a block in every other layer lets neighbouring blocks
    meet."""
    num_global: int = Field(0, ge=0, le=2**30, examples=[32])
    """How many tokens g at the start of a text are global."""


class BigBird(Mask):
    """Blocks of b tokens that see their neighbours, the first and the last block, and r random ones; the first and the
    last see all: |q // b - k // b| <= 1, or either block is 0 or the last, or k // b is random for q // b (Zaheer et
    al., 2020, section 2). Texts of at most (5 + 2 r) b tokens are seen whole."""

    kind: Literal["big_bird"] = "big_bird"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("block_size", 1),)
    extent: ClassVar[tuple[str, ...]] = ("block_size",)
    block_size: Tokens = Field(64, examples=[16])
    """Length b of a block, in tokens."""
    num_random: int = Field(3, ge=0, le=1000, examples=[2])
    """How many random blocks r each other block sees."""
    random: Literal["drawn", "first"] = "drawn"
    """Draw blocks for each layer, head and block, by the plan of the published code in training; or take the first
    block for all of them, which then counts 1 + r times, as `transformers` does at inference."""

    @property
    def differs_by_head(self) -> bool:
        return bool(self.num_random) and self.random == "drawn"

    @property
    def differs_by_layer(self) -> bool:
        return self.differs_by_head
