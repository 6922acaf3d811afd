"""Masks: the keys that a query may attend to. Documents and padding of a batch narrow them.

Positions are counted in tokens from the start of their document.
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field

from archwright.spec.choice import Choice, Count, ScaleDown, Tokens


class Mask(Choice):
    """The axis of attention masks: the keys that a query may attend to."""

    axis: ClassVar[str] = "mask"
    causal: ClassVar[bool] = True
    """True if no query sees a later key, so that text can be generated token by token."""
    shows_all: ClassVar[bool] = False
    """True if a query sees all keys before it, or all keys."""
    shows_future: ClassVar[bool] = False
    """True if some token sees a later one although text can be generated."""
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = ()
    """Options that scale with the length of texts, each with its least value."""
    extent: ClassVar[tuple[str, ...]] = ()
    """Options with the reach, in tokens, as their product; the first is the one to shorten."""

    @property
    def reach(self) -> int:
        """Distance that a query sees, in tokens; 0 if no option limits it."""
        values = dict(self)
        return math.prod(values[name] for name in self.extent) if self.extent else 0

    def shortened(self, share: float) -> dict[str, Any]:
        """Return options for texts shortened to `share` of their length; empty for `share` >= 1."""
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
        """True if the pattern differs between heads and is built for each."""
        return False

    @property
    def differs_by_layer(self) -> bool:
        """True if the pattern differs between layers and is built from the layer's index."""
        return False


class Causal(Mask):
    """Every key up to the query itself: k <= q (Vaswani et al., 2017, section 3.2.3)."""

    kind: Literal["causal"] = "causal"
    shows_all: ClassVar[bool] = True


class Full(Mask):
    """Every key, before and after the query (Devlin et al., 2018)."""

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
    """Every `dilation`-th key up to the query, `size` of them: q, q - d, q - 2d ... (Beltagy et al., 2020, section
    3.1)."""

    kind: Literal["dilated_window"] = "dilated_window"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size", "dilation")
    size: Tokens = Field(256, examples=[32])
    """Number of visible keys."""
    dilation: Tokens = 2
    """Distance between neighbouring visible keys, in tokens."""
    dilated_heads: Count | Literal["all"] = Field("all", examples=[2])
    """Number of heads with gaps, the last ones; the others see the last `size` keys."""

    @property
    def differs_by_head(self) -> bool:
        return self.dilated_heads != "all"


class Chunked(Mask):
    """The keys of the query's own chunk up to itself (Llama 4), and of `chunks_before` chunks before it (Kitaev et al.,
    2020, Reformer's local attention)."""

    kind: Literal["chunked"] = "chunked"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(8192, examples=[64])
    """Length of a chunk, in tokens."""
    chunks_before: int = Field(0, ge=0, le=2**12, examples=[1])
    """Number of whole chunks before its own that a query sees."""

    @property
    def memory(self) -> int:
        """Tokens before a chunk that are visible to all its tokens."""
        return self.size * self.chunks_before

    @property
    def reach(self) -> int:
        return self.size + self.memory


class SegmentMemory(Mask):
    """The keys of the query's own segment up to itself, and the last `memory` tokens before the segment: q - q mod size
    - memory <= k <= q (Dai et al., 2019, Transformer-XL, section 3.2)."""

    kind: Literal["segment_memory"] = "segment_memory"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8), ("memory", 8))
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(512, examples=[32])
    """Length of a segment, in tokens."""
    memory: int = Field(512, ge=0, le=2**30, examples=[16])
    """Tokens before a segment that are visible to all its tokens."""


class WindowGlobal(Mask):
    """The last `size` keys and the first `num_global` (Beltagy et al., 2020; Xiao et al., 2023)."""

    kind: Literal["window_global"] = "window_global"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("size", 8),)
    extent: ClassVar[tuple[str, ...]] = ("size",)
    size: Tokens = Field(4096, examples=[64])
    """Number of keys in the window, the query's own included."""
    num_global: Tokens = 4
    """Tokens at the start that are visible to every later query."""


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
    """Number c of keys at each block's end that are visible to all later blocks."""


class BlockSparse(Mask):
    """Blocks of b keys: the query's own, the local_blocks - 1 before it, and every `stride`-th earlier block: k <= q,
    and q // b - k // b < local_blocks or (k // b + 1 + offset) mod stride = 0 (Abdin et al., 2024, Phi-3, section
    2)."""

    kind: Literal["block_sparse"] = "block_sparse"
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("block_size", 1),)
    extent: ClassVar[tuple[str, ...]] = ("local_blocks", "block_size")
    block_size: Tokens = Field(64, examples=[16])
    """Length b of a block, in tokens."""
    local_blocks: Tokens = Field(16, examples=[4])
    """Blocks that a query sees up to itself, including its own."""
    stride: Tokens = Field(8, examples=[4])
    """Every `stride`-th block is visible to all later queries."""
    per_head: bool = True
    """True if visible blocks differ by head: head h has offset h max(1, stride // num_heads), otherwise 0."""

    @property
    def differs_by_head(self) -> bool:
        return self.per_head


class BlockLocal(Mask):
    """Blocks of b tokens, each visible only to itself, and global tokens, which see all tokens and are visible to all:
    (q - g + s) // b = (k - g + s) // b, or q < g or k < g. Blocks start after the g global tokens. The first block is s
    tokens shorter, which shifts all borders (Phang et al., 2022, Pegasus-X, section 3.1)."""

    kind: Literal["block_local"] = "block_local"
    causal: ClassVar[bool] = False
    in_tokens: ClassVar[tuple[tuple[str, int], ...]] = (("block_size", 1), ("shift", 0))
    extent: ClassVar[tuple[str, ...]] = ("block_size",)
    block_size: Tokens = Field(512, examples=[16])
    """Length b of a block, in tokens."""
    shift: int = Field(0, ge=0, le=2**30, examples=[8])
    """Number of tokens s by which all borders move forward; with half a block in every second layer, neighbouring
    blocks exchange information."""
    num_global: int = Field(0, ge=0, le=2**30, examples=[32])
    """Number of global tokens g at the start of a text."""
