"""Attention masks: patterns of one document, and their application to a batch.

A `MaskPattern` defines the visible keys of each query by token indices. An `AttentionMask` adds documents, padding,
prefixes and cached keys. Dense masks, key ranges of blocks, cache sizes and FLOPs follow from both.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

from archwright.parts.registry import Registry
from archwright.parts.token_layout import TokenLayout
from archwright.spec import masks as spec
from archwright.spec.errors import UserError

S = TypeVar("S", bound=spec.Mask)
T = TypeVar("T")
Ranges = list[tuple[int, int]]
"""Ranges [start, stop) of keys in ascending order, with at least one key between two of them."""

COUNTED = 2**14
"""Longest document with pairs counted by `visible`, for unbounded patterns."""


class MaskPattern(ABC):
    """Keys that each query of a document may see, by token index.

    Only `visible` is required. `ranges` and `pairs` save time. Their defaults follow from `lookback`, `lookahead` and
    `visible`. `archwright check` compares all of them with `visible`.
    """

    lookback: int | None = None
    """Largest distance to a visible earlier key, in tokens; None if unbounded."""
    lookahead: int | None = 0
    """Largest distance to a visible later key, in tokens; 0 for causal masks, None if unbounded."""
    num_heads: int = 1
    """Number of heads with different masks. Above 1, `visible` takes the head as a third argument."""
    needs_length: bool = False
    """True if the length of the document matters; `visible_in` then replaces `visible`."""
    repeats: bool = False
    """True if some keys count several times, see `AttentionMask.log_times`."""

    def __init__(self, spec: Any = None) -> None:
        self.spec = spec

    @abstractmethod
    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True for visible keys; shapes broadcast."""

    def visible_in(
        self, query: Tensor, key: Tensor, length: Tensor, longest: int, head: Tensor | int = 0
    ) -> Tensor:
        """Return True for visible keys in documents of `length` tokens, at most `longest`."""
        return self.visible(query, key, *([head] if self.num_heads > 1 else []))

    def times(self, query: Tensor, key: Tensor, length: Tensor) -> Tensor:
        """Return how often visible keys count in documents of `length` tokens, if some key `repeats`."""
        return torch.ones_like(query - key)

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        """Return a superset of the keys that queries first .. last see in a document of `length` tokens."""
        start = 0 if self.lookback is None else max(0, first - self.lookback)
        return [
            (start, length if self.lookahead is None else min(last + self.lookahead + 1, length))
        ]

    def pairs(self, length: int) -> float:
        """Return the number of visible pairs in a document of `length` tokens, averaged over heads.

        Raises:
            UserError: `visible` would be evaluated on more than 16,384^2 pairs.
        """
        count = _counted if isinstance(self, Hashable) else _counted.__wrapped__
        return count(self, length)


@lru_cache(maxsize=256)
def _counted(pattern: MaskPattern, length: int) -> float:
    """Count visible pairs by `visible`, in blocks of queries."""
    blocks = [(first, min(first + 256, length)) for first in range(0, length, 256)]
    ranges = [pattern.ranges(first, stop - 1, length) for first, stop in blocks]
    evaluated = sum(256 * (stop - start) for keys in ranges for start, stop in keys)
    if evaluated > COUNTED**2:
        name = type(pattern).__name__
        raise UserError(
            f"{name}: found no pairs(length), and {length:,} tokens are too many to count its visible pairs one by "
            f"one; expected a method pairs(length) in {name}, or at most {COUNTED:,} tokens"
        )
    return sum(
        visible_block(pattern, *queries, *keys, length).sum().item() / pattern.num_heads
        for queries, of_block in zip(blocks, ranges, strict=True)
        for keys in of_block
    )


def visible_block(
    pattern: MaskPattern, first: int, stop: int, key_first: int, key_stop: int, length: int
) -> Bool[Tensor, "heads queries keys"]:
    """Return the mask of a block in a document of `length` tokens."""
    heads = torch.arange(pattern.num_heads)[:, None, None]
    queries, keys = torch.arange(first, stop)[:, None], torch.arange(key_first, key_stop)
    if pattern.needs_length:
        seen = pattern.visible_in(queries, keys, torch.tensor(length), length, heads)
    else:
        seen = pattern.visible(queries, keys, *([heads] if pattern.num_heads > 1 else []))
    return seen.expand(len(heads), len(queries), len(keys))


def united(ranges: Ranges, gap: int = 0) -> Ranges:
    """Sort ranges, and merge ranges with at most `gap` keys between them."""
    merged: Ranges = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def pairs(pattern: MaskPattern, length: int) -> float:
    """Return the number of visible pairs in a document of `length` tokens, averaged over heads."""
    return float(pattern.pairs(length))


def as_seen(mask: spec.Mask, num_heads: int, length: int) -> spec.Mask:
    """Return the causal or full mask if it shows the same number of pairs in a document of `length` tokens."""
    shown = pairs(pattern_of(mask, num_heads), length)
    if shown == length * (length + 1) / 2 and (mask.causal or length == 1):
        return spec.Causal()
    return spec.Full() if shown == length**2 else mask


def is_full(mask: spec.Mask, num_heads: int, length: int) -> bool:
    """True if a restricted mask hides nothing in a document of `length` tokens."""
    return not mask.shows_all and as_seen(mask, num_heads, length).shows_all


def prefix_size(pattern: MaskPattern) -> int:
    """Return the length of the bidirectional prefix; 0 for other patterns."""
    return pattern.spec.size if isinstance(pattern, Prefix) else 0


def max_length(pattern: MaskPattern) -> int | None:
    """Return the number of latest tokens that a later query can see; None if unbounded."""
    return None if pattern.lookback is None else pattern.lookback + 1


def sees_all_kept(pattern: MaskPattern) -> bool:
    """True if the last token sees all of the last `max_length` tokens."""
    return isinstance(pattern, Causal | Window)


def spaced(length: int, step: int = 1, most: int | None = None) -> int:
    """Count pairs (q, q - i step) of a document with 0 <= i <= most."""
    # Distance i step occurs length - i step times, down to once.
    most = (length - 1) // step if most is None else min(most, (length - 1) // step)
    return (most + 1) * length - step * most * (most + 1) // 2


class BuiltIn(MaskPattern, Generic[S]):
    """Pattern of a mask of the package."""

    spec: S


class Causal(BuiltIn[spec.Causal]):
    """key <= query."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def pairs(self, length: int) -> int:
        return spaced(length)


class Full(BuiltIn[spec.Full]):
    """Every key."""

    lookahead = None

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key >= 0) & (query >= 0)

    def pairs(self, length: int) -> int:
        return length**2


class Prefix(BuiltIn[spec.Prefix]):
    """key < size or key <= query."""

    lookahead = None

    def __init__(self, spec: spec.Prefix, size: int | Tensor | None = None) -> None:
        self.spec, self.size = spec, spec.size if size is None else size

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) | ((key < self.size) & (query < self.size))

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        size = int(self.size)
        return [(0, min(max(last + 1, size if first < size else 0), length))]

    def pairs(self, length: int) -> int:
        size = min(self.spec.size, length)
        return size**2 + spaced(length) - spaced(size)


class Window(BuiltIn[spec.Window]):
    """query - size < key <= query: `size` keys including the query's own."""

    def __init__(self, spec: spec.Window) -> None:
        self.spec, self.lookback = spec, spec.size - 1

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - self.spec.size)

    def pairs(self, length: int) -> int:
        return spaced(length, 1, self.spec.size - 1)


class SymmetricWindow(BuiltIn[spec.SymmetricWindow]):
    """|query - key| <= radius."""

    def __init__(self, spec: spec.SymmetricWindow) -> None:
        self.spec, self.lookback, self.lookahead = spec, spec.radius, spec.radius

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= self.spec.radius

    def pairs(self, length: int) -> int:
        return 2 * spaced(length, 1, self.spec.radius) - length


class Dilated(BuiltIn[S]):
    """Windows with gaps in the last heads and without gaps in the first heads."""

    def __init__(self, dilation: int, dilated_heads: int | str, num_heads: int) -> None:
        num_dilated = num_heads if dilated_heads == "all" else int(dilated_heads)
        self.dilation, self.num_near = dilation, max(0, num_heads - num_dilated)
        self.num_heads = num_heads if self.num_near else 1
        self.steps = [*[1] * self.num_near, *[dilation] * (self.num_heads - self.num_near)]
        """Distance between adjacent visible keys, for each head."""

    def step(self, head: Tensor | int) -> Tensor | int:
        """Return the distance between adjacent visible keys of a head."""
        if isinstance(head, int):
            return 1 if head < self.num_near else self.dilation
        return torch.where(head < self.num_near, 1, self.dilation)

    def _mean(self, count: Callable[[int], int]) -> float:
        """Return the mean over heads of a count that depends on their step."""
        return sum(map(count, self.steps)) / self.num_heads


class DilatedWindow(Dilated[spec.DilatedWindow]):
    """query - key in {0, d, 2d, ..., (size - 1) d}, with d = 1 in heads without dilation."""

    def __init__(self, spec: spec.DilatedWindow, num_heads: int = 1) -> None:
        super().__init__(spec.dilation, spec.dilated_heads, num_heads)
        self.spec = spec
        self.lookback = (spec.size - 1) * max(self.steps)

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        distance, step = query - key, self.step(head)
        near = (distance >= 0) & (distance <= (self.spec.size - 1) * step)
        return near & (distance % step == 0)

    def pairs(self, length: int) -> float:
        return self._mean(lambda step: spaced(length, step, self.spec.size - 1))


class SegmentMemory(BuiltIn[spec.SegmentMemory | spec.Chunked]):
    """start - memory <= key <= query, with the start of the query's segment or chunk of `size` tokens."""

    def __init__(self, spec: spec.SegmentMemory | spec.Chunked) -> None:
        self.spec, self.lookback = spec, spec.size - 1 + spec.memory

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= query - query % self.spec.size - self.spec.memory)

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        start = first - first % self.spec.size
        return [(max(0, start - self.spec.memory), min(last + 1, length))]

    def pairs(self, length: int) -> int:
        size, memory = self.spec.size, self.spec.memory
        full, rest = divmod(length, size)
        # Segment i remembers min(i size, memory) tokens: all earlier tokens up to `short` segments.
        short = min(full, -(-memory // size))
        remembered = size * spaced(short - 1) + (full - short) * memory
        own = full * spaced(size) + spaced(rest)
        return own + size * remembered + rest * min(full * size, memory)


class WindowGlobal(BuiltIn[spec.WindowGlobal]):
    """key <= query, and key among the last `size` or the first `num_global`."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        near = key > query - self.spec.size
        return (key <= query) & (near | (key < self.spec.num_global))

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        near = (max(0, first - self.spec.size + 1), min(last + 1, length))
        return united([(0, min(self.spec.num_global, near[1])), near])

    def pairs(self, length: int) -> int:
        return spaced(length, 1, self.spec.size + self.spec.num_global - 1)


class Strided(BuiltIn[spec.Strided]):
    """0 <= query - key < stride, or query - key a multiple of the stride."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        distance, stride = query - key, self.spec.stride
        return (distance >= 0) & ((distance < stride) | (distance % stride == 0))

    def pairs(self, length: int) -> int:
        stride = self.spec.stride
        return spaced(length, 1, stride - 1) + spaced(length, stride) - length


class Fixed(BuiltIn[spec.Fixed]):
    """key <= query, and key in the query's block of `stride` or among the last `num_summary` of its block."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        stride = self.spec.stride
        summary = key % stride >= stride - self.spec.num_summary
        return (key <= query) & ((key // stride == query // stride) | summary)

    def pairs(self, length: int) -> int:
        stride = self.spec.stride
        full, rest = divmod(length, stride)
        own = full * spaced(stride) + spaced(rest)
        return own + min(self.spec.num_summary, stride) * (spaced(length, stride) - length)


class BlockSparse(BuiltIn[spec.BlockSparse]):
    """key <= query, and key's block among the last `local_blocks` or in a visible column of blocks.

    Every `stride`-th block is a visible column. Columns move by `step` blocks from head to head.

    Abdin et al., 2024, Phi-3, section 2, and its published code.
    """

    def __init__(self, spec: spec.BlockSparse, num_heads: int = 1) -> None:
        self.spec, self.num_heads = spec, num_heads if spec.per_head else 1
        self.step = max(1, spec.stride // num_heads)

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        block = key // self.spec.block_size
        near = query // self.spec.block_size - block < self.spec.local_blocks
        column = (block + 1 + head * self.step) % self.spec.stride == 0
        return (key <= query) & (near | column)

    def pairs(self, length: int) -> float:
        size, stride, near = self.spec.block_size, self.spec.stride, self.spec.local_blocks
        full, rest = divmod(length, size)
        far = max(
            0, full - near + 1
        )  # full query blocks with keys before their near blocks, and one more
        columns = 0
        for offset in (self.step * head for head in range(self.num_heads)):
            before = (
                far + offset
            ) // stride - offset // stride  # columns among the first `far` blocks
            # Sum of (i + offset) // stride - offset // stride over the blocks i < far.
            total = spaced(far + offset, stride) - far - spaced(offset, stride)
            columns += size * (total - far * (offset // stride)) + rest * before
        # Blocks near a full query block: 0, 1, ..., near - 1, near - 1, ...
        local = size * spaced(full - 1, 1, near - 2) + rest * min(full, near - 1)
        own = full * spaced(size) + spaced(rest)
        return own + size * local + size * columns / self.num_heads


class BlockLocal(BuiltIn[spec.BlockLocal]):
    """query and key in the same block of `block_size`, or either among the first `num_global`.

    Blocks start after the global tokens. The first block is `shift` tokens shorter.
    """

    def __init__(self, spec: spec.BlockLocal) -> None:
        self.spec, self.offset = spec, spec.shift - spec.num_global
        self.lookback = self.lookahead = None if spec.num_global else spec.block_size - 1

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        size, few = self.spec.block_size, self.spec.num_global
        together = (query + self.offset) // size == (key + self.offset) // size
        return together | (query < few) | (key < few)

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        size, few = self.spec.block_size, self.spec.num_global
        if first < few:
            return [(0, length)]
        start = (first + self.offset) // size * size - self.offset
        stop = ((last + self.offset) // size + 1) * size - self.offset
        near = (max(start, few), min(stop, length))
        return united([(0, few), near]) if few else [near]

    def pairs(self, length: int) -> int:
        size = self.spec.block_size
        others = max(0, length - self.spec.num_global)
        first = min(others, size - self.spec.shift % size)
        full, rest = divmod(others - first, size)
        return first**2 + full * size**2 + rest**2 + length**2 - others**2


def pattern_of(mask: spec.Mask, num_heads: int, layer: int = 1) -> MaskPattern:
    """Return the pattern of a mask for a number of heads in a layer, counted from 1."""
    sizes = [num_heads] * mask.differs_by_head + [layer] * mask.differs_by_layer
    made: MaskPattern = MASKS.make(mask, *sizes)
    return made


WHOLE: MaskPattern = Full(spec.Full())
"""Pattern without hidden keys."""


MASKS = Registry(
    spec.Mask,
    "(spec) or, of a spec whose `differs_by_head`, (spec, num_heads), and whose `differs_by_layer`, (spec, num_heads, "
    "layer)",
    MaskPattern,
    {
        spec.Causal: Causal,
        spec.Full: Full,
        spec.Prefix: Prefix,
        spec.Window: Window,
        spec.SymmetricWindow: SymmetricWindow,
        spec.DilatedWindow: DilatedWindow,
        spec.Chunked: SegmentMemory,
        spec.SegmentMemory: SegmentMemory,
        spec.WindowGlobal: WindowGlobal,
        spec.Strided: Strided,
        spec.Fixed: Fixed,
        spec.BlockSparse: BlockSparse,
        spec.BlockLocal: BlockLocal,
    },
)
"""Patterns by the class of their spec."""

CACHED = 32
"""Maximum number of results in `_ACROSS_PASSES`."""
DENSE = 2**22
"""Maximum size of a dense mask in `_ACROSS_PASSES`, in values."""
_ACROSS_PASSES: dict[tuple[Any, ...], Any] = {}
"""Results that depend only on a pattern, a length and a device; least recently used first."""


@dataclass(frozen=True)
class AttentionMask:
    """Mask between the queries of a batch and the keys of the batch or of a cache.

    Padding sees only itself, and no other token sees padding. So every query sees at least one key.
    """

    pattern: MaskPattern
    layout: TokenLayout
    kept: TokenLayout | None = None
    """Layout of the keys, if they are not the keys of the batch. An index below 0 is an empty slot."""
    is_full: bool = False
    """True if every query sees every key."""
    first_column: int = 0
    """Column of the first query among the keys."""
    whole: "AttentionMask | None" = None
    """Mask of all queries, if these are queries from `first_column` on."""
    second: tuple[int, int] | None = None
    """Number of queries before the second of two ranges of columns, and the column where this range starts."""
    given: Bool[Tensor, "rows heads queries keys"] | None = None
    """Explicit mask instead of the pattern. A size of 1 broadcasts over rows or heads."""
    made: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results of `once`."""

    def once(self, name: str, make: "Callable[[AttentionMask], T]", *, shared: bool = True) -> T:
        """Return `make(mask)`, computed once under a name.

        If nothing but the pattern, the length and the device matters, later passes find the result again. In a
        compiled layer a missing result is computed as part of the graph, so prepare it before the layer.

        Args:
            shared: False for results that are large or not worth keeping across passes.
        """
        if name in self.made:
            made: T = self.made[name]
        elif torch.compiler.is_compiling():
            made = make(self)
        else:
            made = self._across_passes(name, make) if shared and self.is_plain else make(self)
            self.made[name] = made
        return made

    def _across_passes(self, name: str, make: "Callable[[AttentionMask], T]") -> T:
        length = self.layout.length
        key = (name, self.pattern, length, self.layout.device)
        if key not in _ACROSS_PASSES:
            if torch._C._len_torch_dispatch_stack():
                return make(self)  # for example fake tensors, which no later pass can use
            # Evaluation may come first, and training saves the result for its backward pass.
            with torch.inference_mode(False):
                layout = TokenLayout(length, self.layout.device)
                _ACROSS_PASSES[key] = make(AttentionMask(self.pattern, layout))
            for oldest in [*_ACROSS_PASSES][:-CACHED]:
                del _ACROSS_PASSES[oldest]
        made: T = _ACROSS_PASSES.pop(key)
        _ACROSS_PASSES[key] = made
        return made

    @property
    def is_plain(self) -> bool:
        """True if the mask depends only on the pattern, the length and the device."""
        at = self.layout
        numbered = at.plain and at.index is None and at.position_ids is None and at.start == 0
        replaced = self.kept is not None or self.given is not None or self.whole is not None
        bare = type(self) is AttentionMask and not replaced
        return numbered and bare and isinstance(self.pattern, Hashable)

    def of_columns(
        self, first: int, stop: int, second: tuple[int, int] | None = None
    ) -> "AttentionMask":
        """Return the mask between queries [first, stop), or of two such ranges, and all keys."""
        some = self.layout.columns(first, stop)
        if second is None:
            return AttentionMask(self.pattern, some, first_column=first, whole=self)
        some, at = some.joined(self.layout.columns(*second)), (stop - first, second[0])
        return AttentionMask(self.pattern, some, first_column=first, whole=self, second=at)

    def ranges_of_columns(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the columns of queries [first, stop) among all queries, in one or two ranges."""
        begin = self.first_column
        if self.second is None or stop <= self.second[0]:
            return [(begin + first, begin + stop)]
        at, start = self.second
        far = (start + max(first, at) - at, start + stop - at)
        return [far] if first >= at else [(begin + first, begin + at), far]

    @property
    def keys_at(self) -> TokenLayout:
        """Layout of the keys."""
        return self.whole.layout if self.whole is not None else self.kept or self.layout

    @property
    def is_plain_causal(self) -> bool:
        """True for the causal mask without documents, padding or cache, which kernels support directly."""
        own = self.kept is None and self.whole is None
        return own and self.layout.plain and isinstance(self.pattern, Causal)

    @property
    def dense(self) -> Bool[Tensor, "rows heads queries keys"]:
        """Dense mask, True for visible keys. A size of 1 broadcasts over rows or heads."""
        small = self.num_heads * self.layout.length**2 <= DENSE
        return self.once("dense", _dense, shared=small)

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int, rows: range | None = None
    ) -> Bool[Tensor, "rows heads queries keys"]:
        """Return the mask between queries [first, stop) and keys [key_first, key_stop), of all rows or a range."""
        device = self.layout.device
        some = range(self.num_rows) if rows is None else rows
        row = torch.arange(some.start, some.stop, device=device)[:, None, None, None]
        heads = torch.arange(self.num_heads, device=device)[:, None, None]
        queries = torch.arange(first, stop, device=device)[:, None]
        keys = torch.arange(key_first, key_stop, device=device)
        seen = self.allows(row, heads, queries, keys)
        return seen.expand(len(row), len(heads), len(queries), len(keys))

    @property
    def num_rows(self) -> int:
        """Number of rows with different masks."""
        at, kept = self.layout, self.keys_at
        tensors = [x for p in (at, kept) for x in (p.index, p.segment_ids, p.padding_mask)]
        sizes = [len(x) for x in (at.prefix, self.given, *tensors) if x is not None]
        return max([1, *sizes]) if self.whole is None else self.whole.num_rows

    @property
    def num_heads(self) -> int:
        """Number of heads with different masks."""
        return self.pattern.num_heads if self.given is None else self.given.shape[1]

    def allows(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return True if the query in a column of a row sees the key in a column; shapes broadcast."""
        if self.whole is not None:
            column = query + self.first_column
            if self.second is not None:
                number, start = self.second
                column = torch.where(query < number, column, query + (start - number))
            return self.whole.allows(row, head, column, key)
        at, kept = self.layout, self.keys_at
        here, there = (
            index[row if len(index) > 1 else 0, column]
            for index, column in (
                (at.index_or_range(), query),
                (kept.index_or_range(), key),
            )
        )
        if self.given is not None:
            row_of_given = row if len(self.given) > 1 else 0 * row
            seen = self.given[row_of_given, head if self.num_heads > 1 else 0 * head, query, key]
        else:
            seen = self.shows(row, head, query, here, there)
        if self.kept is not None:
            seen = seen & (there >= 0)
        if at.segment_ids is not None and kept.segment_ids is not None:
            seen = seen & (at.segment_ids[row, query] == kept.segment_ids[row, key])
        if kept.padding_mask is not None:
            seen = seen & kept.padding_mask[row, key]
        if at.padding_mask is not None:
            # Padding must see something: itself, or every filled slot of a cache.
            itself = query == key if self.kept is None else key >= 0
            seen = torch.where(at.padding_mask[row, query], seen, itself)
        return seen

    def shows(
        self, row: Tensor, head: Tensor, query: Tensor, here: Tensor, there: Tensor
    ) -> Tensor:
        """True if the pattern shows index `there` of the keys to index `here` of the queries; shapes broadcast.

        Args:
            query: columns of the queries, for their texts' lengths.
        """
        pattern, prefix = self.pattern, self.layout.prefix
        if pattern.needs_length:
            lengths = self.text_lengths
            length = lengths[row if len(lengths) > 1 else 0, query]
            return pattern.visible_in(here, there, length, self.keys_at.length, head)
        if prefix is not None and isinstance(pattern, Prefix):
            pattern = Prefix(pattern.spec, prefix[row])
        return pattern.visible(here, there, *([head] if self.num_heads > 1 else []))

    @property
    def text_lengths(self) -> Tensor:
        """Number of tokens in each query's document, [rows, queries]."""
        return self.once("text lengths", lambda mask: mask.layout.text_lengths)

    def log_times(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        """Return log(times) of keys that count several times, to be added to scores: [rows, 1, queries, keys]."""
        if self.whole is not None:
            ranges = self.ranges_of_columns(first, stop)
            parts = [self.whole.log_times(*columns, key_first, key_stop) for columns in ranges]
            return torch.cat(parts, 2)  # [rows, 1, queries, keys]
        at, kept = self.layout.index_or_range(), self.keys_at.index_or_range()
        times = self.pattern.times(
            at[:, first:stop, None],
            kept[:, None, key_first:key_stop],
            self.text_lengths[:, first:stop, None],
        )
        # [rows, 1, queries, keys]
        return times[:, None].log()

    def keys(self, first: int, stop: int) -> tuple[int, int]:
        """Return one range with all keys that queries [first, stop) see in any row."""
        ranges = self.ranges_of_rows(first, stop)
        return min(row[0][0] for row in ranges), max(row[-1][1] for row in ranges)

    def ranges_of_rows(self, first: int, stop: int) -> list[Ranges]:
        """Return a superset of the key columns of queries [first, stop), for each row with a different mask."""
        if self.whole is not None:
            near, *far = [
                self.whole.ranges_of_rows(*columns)
                for columns in self.ranges_of_columns(first, stop)
            ]
            return [united([*a, *b]) for a, b in zip(near, *far, strict=True)] if far else near
        length = self.keys_at.length
        if self.kept is not None:
            return [[(0, length)]] * self.num_rows
        texts = self.once("texts", _texts, shared=False)
        if texts is None:
            return [[(0, stop if self.pattern.lookahead == 0 else length)]] * self.num_rows
        rows = [self._in_texts(*row, first, stop) for row in texts]
        return rows * (self.num_rows // len(rows))

    def _in_texts(self, pattern: MaskPattern, texts: Ranges, first: int, stop: int) -> Ranges:
        """Return key columns of queries [first, stop) in a row with texts in columns [begin, end)."""
        seen, padding = [], stop - first
        for begin, end in texts[bisect_right(texts, first, key=itemgetter(1)) :]:
            low, high = max(first, begin), min(stop, end)
            if low >= high:
                break
            padding -= high - low
            ranges = pattern.ranges(low - begin, high - 1 - begin, end - begin)
            seen += [(begin + key_first, begin + key_stop) for key_first, key_stop in ranges]
        # Padding sees itself.
        return united([*seen, (first, stop)] if padding else seen)


def _dense(mask: AttentionMask) -> Tensor:
    return mask.block(0, mask.layout.length, 0, mask.keys_at.length)


def _texts(mask: AttentionMask) -> list[tuple[MaskPattern, Ranges]] | None:
    """Return the pattern and the columns [begin, end) of all texts of each row.

    None if there is padding inside a text: the difference of index and column is then arbitrary.
    """
    at, pattern = mask.layout, mask.pattern
    texts: list[Ranges] = [[(0, at.length)]]
    if at.index is not None:
        columns = torch.arange(at.length, device=at.device)
        real = True if at.padding_mask is None else at.padding_mask
        starts = (at.index == 0) & real
        begin = torch.where(starts, columns, 0).cummax(-1).values  # [rows, length]
        if bool(((columns - at.index != begin) & real).any()):
            return None
        ends = begin + at.text_lengths
        texts = [
            [*zip(columns[start].tolist(), end[start].tolist(), strict=True)]
            for start, end in zip(starts, ends, strict=True)
        ]
    if at.prefix is None or not isinstance(pattern, Prefix):
        return [(pattern, row) for row in texts]
    prefixes = [Prefix(pattern.spec, size) for size in at.prefix.tolist()]
    return [(prefix, texts[i % len(texts)]) for i, prefix in enumerate(prefixes)]


def given_mask(
    attention_mask: Tensor, batch: int, num_heads: int, queries: int, keys: int
) -> Bool[Tensor, "rows heads queries keys"]:
    """Validate an explicit mask, and let queries without visible keys see every key.

    Such queries, for example padding, have finite outputs without a meaning.

    Args:
        attention_mask: [batch or 1, heads or 1, queries, keys] or [batch or 1, queries, keys]; True if visible.

    Raises:
        UserError: the shape or the dtype is wrong.
    """
    mask = attention_mask[:, None] if attention_mask.ndim == 3 else attention_mask
    fits = mask.ndim == 4 and mask.shape[0] in (1, batch) and mask.shape[1] in (1, num_heads)
    if not fits or mask.shape[2:] != (queries, keys):
        raise UserError(
            f"attention_mask: found shape {list(attention_mask.shape)}; expected "
            f"[{batch} or 1, {num_heads} or 1, {queries}, {keys}], or the same without heads"
        )
    if mask.dtype != torch.bool:
        raise UserError(
            f"attention_mask: found {mask.dtype}; expected torch.bool, True where a query may see a key"
        )
    return mask | ~mask.any(-1, keepdim=True)
