"""Masks. One description each: a predicate on (query, key), how far it reaches, and how many keys a query
sees. The dense mask, the block structure of fast kernels, what a cache keeps and the FLOP count follow."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from archwright.parts.registry import Registry
from archwright.parts.token_layout import TokenLayout
from archwright.spec import masks as spec
from archwright.spec.errors import UserError


@runtime_checkable
class MaskPattern(Protocol):
    """Which keys a query may see, by their index in the document; see `PerHeadPattern` where heads see differently."""

    @property
    def lookback(self) -> int | None:
        """The farthest earlier key that any query sees, in tokens; None: no limit."""

    @property
    def lookahead(self) -> int | None:
        """The farthest later key that any query sees; 0 in causal masks, None: no limit."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True where the query at `query` may see the key at `key` (shapes broadcast)."""

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        """Return the range [start, stop) outside which queries first .. last see no key."""

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        """Return how many keys each query sees in a text of `length` tokens, in the mean of its heads."""


@runtime_checkable
class PerHeadPattern(Protocol):
    """A pattern by which heads may see differently."""

    @property
    def num_heads(self) -> int:
        """Heads that see differently, of which `visible` then takes one as well; 1 where all are alike."""


def pairs(pattern: MaskPattern, length: int) -> float:
    """Return how many (query, key) pairs a text of `length` tokens has, in the mean of its heads."""
    return float(pattern.num_keys(torch.arange(length), length).sum())


def as_seen(mask: spec.Mask, num_heads: int, length: int) -> spec.Mask:
    """Return what a mask is in texts of up to `length` tokens: the causal or the full one where it shows as many
    pairs."""
    seen = pairs(pattern_of(mask, num_heads), length)
    if seen == length * (length + 1) / 2 and (mask.causal or length == 1):
        return spec.Causal()
    return spec.Full() if seen == length**2 else mask


def is_full(mask: spec.Mask, num_heads: int, length: int) -> bool:
    """Tell whether a mask that could hide more shows what the causal mask does, or everything, in texts of `length`
    tokens."""
    return not mask.shows_all and as_seen(mask, num_heads, length).shows_all


def prefix_size(pattern: MaskPattern) -> int:
    """Return how many tokens at the start of a text see each other whole; 0 in all but prefix masks."""
    return pattern.spec.size if isinstance(pattern, Prefix) else 0


def num_global(pattern: MaskPattern) -> int:
    """Return how many tokens at the start of a text see all and are seen by all; 0 in all but Longformer's masks."""
    return pattern.spec.num_global if isinstance(pattern, Longformer) else 0


class _Reaching:
    """Reach of masks that reach alike from every query."""

    lookback: int | None = None
    lookahead: int | None = 0

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        start = 0 if self.lookback is None else max(0, first - self.lookback)
        return start, length if self.lookahead is None else min(last + self.lookahead + 1, length)


class Causal(_Reaching):
    """key <= query."""

    def __init__(self, spec: spec.Causal) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return query + 1


class Full(_Reaching):
    """Every key."""

    lookahead: int | None = None

    def __init__(self, spec: spec.Full) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key >= 0) & (query >= 0)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return torch.full_like(query, length)


class Prefix(_Reaching):
    """key < size or key <= query."""

    lookahead: int | None = None

    def __init__(self, spec: spec.Prefix, size: int | Tensor | None = None) -> None:
        self.spec, self.size = spec, spec.size if size is None else size

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) | ((key < self.size) & (query < self.size))

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        inside = first < self.spec.size
        return 0, min(max(last + 1, self.spec.size if inside else 0), length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        size = min(self.spec.size, length)
        return torch.where(query < size, size, query + 1)


class Window(_Reaching):
    """query - size < key <= query: `size` keys, the query's own included."""

    def __init__(self, spec: spec.Window) -> None:
        self.spec, self.lookback = spec, spec.size - 1

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - self.spec.size)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return (query + 1).clamp(max=self.spec.size)


class SymmetricWindow(_Reaching):
    """|query - key| <= radius."""

    def __init__(self, spec: spec.SymmetricWindow) -> None:
        self.spec, self.lookback, self.lookahead = spec, spec.radius, spec.radius

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= self.spec.radius

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        before = query.clamp(max=self.spec.radius)
        return before + 1 + (length - 1 - query).clamp(max=self.spec.radius)


class _Dilated(_Reaching):
    """Windows whose last heads see every d-th key, and whose others see each."""

    def __init__(self, dilation: int, dilated_heads: int | str, num_heads: int) -> None:
        few = num_heads if dilated_heads == "all" else int(dilated_heads)
        self.dilation, self.num_near = dilation, max(0, num_heads - few)
        self.num_heads = num_heads if self.num_near else 1

    def step(self, head: Tensor | int) -> Tensor | int:
        """Return the distance of neighbouring keys in a head."""
        if isinstance(head, int):
            return 1 if head < self.num_near else self.dilation
        return torch.where(head < self.num_near, 1, self.dilation)

    @property
    def steps(self) -> dict[int, float]:
        """The distances of neighbouring keys, each with its share of the heads."""
        if not self.num_near or self.dilation == 1:
            return {self.dilation: 1.0}
        near = self.num_near / self.num_heads
        return {1: near, self.dilation: 1 - near}

    def in_the_mean(self, number: Callable[[int], Tensor]) -> Tensor:
        """Return the mean over the heads of a number that depends on the distance of neighbouring keys."""
        of_heads = [number(step).double() * share for step, share in self.steps.items()]
        return torch.stack(of_heads).sum(0)

    def first_key(self, first: int, last: int, most: int) -> int:
        """Return the first key that queries first .. last see, of up to `most` behind each."""
        return min(
            q - min(q // step, most) * step
            for step in self.steps
            for q in range(first, min(last + 1, first + step))
        )


class DilatedWindow(_Dilated):
    """query - key in {0, d, 2d, ..., (size - 1) d}, with d = 1 in heads that are not dilated."""

    def __init__(self, spec: spec.DilatedWindow, num_heads: int = 1) -> None:
        super().__init__(spec.dilation, spec.dilated_heads, num_heads)
        self.spec = spec
        self.lookback = (spec.size - 1) * max(self.steps)

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        distance, step = query - key, self.step(head)
        near = (distance >= 0) & (distance <= (self.spec.size - 1) * step)
        return near & (distance % step == 0)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        return self.first_key(first, last, self.spec.size - 1), min(last + 1, length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return self.in_the_mean(lambda step: (query // step + 1).clamp(max=self.spec.size))


class Longformer(_Dilated):
    """|query - key| in {0, d, 2d, ..., radius d}, or query or key among the first `num_global`."""

    def __init__(self, spec: spec.Longformer, num_heads: int = 1) -> None:
        super().__init__(spec.dilation, spec.dilated_heads, num_heads)
        self.spec = spec
        reach = spec.radius * max(self.steps)
        self.lookback = self.lookahead = None if spec.num_global else reach

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        distance, step = (query - key).abs(), self.step(head)
        near = (distance <= self.spec.radius * step) & (distance % step == 0)
        return near | (query < self.spec.num_global) | (key < self.spec.num_global)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        if first < self.spec.num_global:
            return 0, length
        # The last key is the first one, counted from the end.
        stop = length - self.first_key(length - 1 - last, length - 1 - first, self.spec.radius)
        seen = self.first_key(first, last, self.spec.radius)
        return 0 if self.spec.num_global else seen, stop

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        radius, few = self.spec.radius, self.spec.num_global

        def number(step: int) -> Tensor:
            behind = (query // step).clamp(max=radius)
            ahead = ((length - 1 - query) // step).clamp(max=radius)
            both = (behind - (query - few) // step).clamp(min=0)  # near keys that are global too
            return torch.where(query < few, length, behind + 1 + ahead + few - both)

        return self.in_the_mean(number)


class Chunked(_Reaching):
    """key <= query, with key's chunk of `size` tokens that of the query or one of the `chunks_before` it."""

    def __init__(self, spec: spec.Chunked) -> None:
        self.spec, self.lookback = spec, spec.size * (1 + spec.chunks_before) - 1

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        between = query // self.spec.size - key // self.spec.size
        return (key <= query) & (between <= self.spec.chunks_before)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        chunk = max(0, first // self.spec.size - self.spec.chunks_before)
        return chunk * self.spec.size, min(last + 1, length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        whole = (query // self.spec.size).clamp(max=self.spec.chunks_before)
        return query % self.spec.size + 1 + whole * self.spec.size


class WindowGlobal(_Reaching):
    """key <= query, and key among the last `size` or the first `num_global`."""

    def __init__(self, spec: spec.WindowGlobal) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        near = key > query - self.spec.size
        return (key <= query) & (near | (key < self.spec.num_global))

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return (query + 1).clamp(max=self.spec.size + self.spec.num_global)


class Strided(_Reaching):
    """0 <= query - key < stride, or query - key a multiple of the stride."""

    def __init__(self, spec: spec.Strided) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        distance, stride = query - key, self.spec.stride
        return (distance >= 0) & ((distance < stride) | (distance % stride == 0))

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        stride = self.spec.stride
        queries = range(first, min(last + 1, first + stride))
        return min(q % stride if q >= stride else 0 for q in queries), min(last + 1, length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return (query + 1).clamp(max=self.spec.stride) + query // self.spec.stride


class Fixed(_Reaching):
    """key <= query, and key in the query's block of `stride` or among the last `num_summary` of its own."""

    def __init__(self, spec: spec.Fixed) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        stride = self.spec.stride
        summary = key % stride >= stride - self.spec.num_summary
        return (key <= query) & ((key // stride == query // stride) | summary)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        stride = self.spec.stride
        own = first // stride * stride
        start = min(own, max(0, stride - self.spec.num_summary)) if own else 0
        return start, min(last + 1, length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        stride = self.spec.stride
        return query % stride + 1 + query // stride * min(self.spec.num_summary, stride)


class BlockSparse(_Reaching):
    """key <= query, and key's block among the last `local_blocks`, or in a column: one of every `stride`
    blocks, which moves by `step` blocks from head to head.

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

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        size = self.spec.block_size
        near = max(0, first // size - self.spec.local_blocks + 1)
        columns = (-(h * self.step + 1) % self.spec.stride for h in range(self.num_heads))
        seen = [near, *(block for block in columns if block <= last // size)]
        return min(seen) * size, min(last + 1, length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        size, stride = self.spec.block_size, self.spec.stride
        near = (query // size - self.spec.local_blocks + 1).clamp(min=0)
        offset = self.step * torch.arange(self.num_heads, device=query.device)[:, None]
        columns = ((near + offset) // stride - offset // stride).double().mean(0)
        return query + 1 + (columns - near) * size


@dataclass  # which makes it unhashable: unlike the others it is not known by what it was made from
class GivenMask(_Reaching):
    """The pairs that a tensor shows: True where a query may see a key, by row, head and column."""

    mask: Bool[Tensor, "rows heads queries keys"]
    """1 row or head stands for all."""
    lookahead: ClassVar[int | None] = None  # type: ignore[misc]

    @property
    def num_rows(self) -> int:
        """Rows whose masks differ."""
        return self.mask.shape[0]

    @property
    def num_heads(self) -> int:
        """Heads whose masks differ."""
        return self.mask.shape[1]

    def shows(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return whether a query sees a key (shapes broadcast)."""
        row = row if self.num_rows > 1 else 0 * row
        head = head if self.num_heads > 1 else 0 * head
        return self.mask[row, head, query, key]


def given_mask(
    attention_mask: Tensor, batch: int, num_heads: int, queries: int, keys: int
) -> GivenMask:
    """Return a mask that is given as a tensor, of shape [batch or 1, heads or 1, queries, keys] or
    [batch or 1, queries, keys]: True where a query may see a key.

    A query that may see no key at all, such as padding, sees every key: what comes out there means nothing, but is
    a number.

    Raises:
        UserError: another shape, or no booleans.
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
    return GivenMask(mask | ~mask.any(-1, keepdim=True))


def pattern_of(mask: spec.Mask, num_heads: int) -> MaskPattern:
    """Return the pattern of a mask, for so many heads."""
    made: MaskPattern = MASKS.make(mask, *[num_heads] * mask.differs_by_head)
    return made


WHOLE: MaskPattern = Full(spec.Full())
"""The pattern of a text that is seen whole."""


def max_length(pattern: MaskPattern) -> int | None:
    """Return how many of the last tokens a pattern can still show; None for all."""
    return None if pattern.lookback is None else pattern.lookback + 1


def sees_all_kept(pattern: MaskPattern) -> bool:
    """Tell whether the last token sees all of the last `max_length` tokens."""
    return isinstance(pattern, Causal | Window)


MASKS = Registry(
    spec.Mask,
    "(spec) or, of a spec whose `differs_by_head`, (spec, num_heads)",
    MaskPattern,
    {
        spec.Causal: Causal,
        spec.Full: Full,
        spec.Prefix: Prefix,
        spec.Window: Window,
        spec.SymmetricWindow: SymmetricWindow,
        spec.DilatedWindow: DilatedWindow,
        spec.Longformer: Longformer,
        spec.Chunked: Chunked,
        spec.WindowGlobal: WindowGlobal,
        spec.Strided: Strided,
        spec.Fixed: Fixed,
        spec.BlockSparse: BlockSparse,
    },
)
"""Patterns, as `MaskPattern` describes them."""


@dataclass(frozen=True)
class AttentionMask:
    """A mask between the queries of one batch and the keys they may see: the batch's own, or those a
    cache has kept. What each query sees, whole or block by block.

    Padding sees itself and is seen by nothing else, so no row of weights is ever empty.
    """

    pattern: MaskPattern | GivenMask
    layout: TokenLayout
    kept: TokenLayout | None = None
    """Where the keys stand, if they are not the batch's own alone. An index below 0 is an empty slot."""
    is_full: bool = False
    """Whether every query is known to see every key."""

    @property
    def keys_at(self) -> TokenLayout:
        """Where the keys stand."""
        return self.layout if self.kept is None else self.kept

    @property
    def is_plain_causal(self) -> bool:
        """Whether this is the causal mask and nothing more, which kernels know by name."""
        own = self.kept is None
        return own and self.layout.plain and isinstance(self.pattern, Causal)

    @cached_property
    def dense(self) -> Bool[Tensor, "rows heads queries keys"]:
        """The whole mask: True where a query (third axis) sees a key (fourth axis); one head stands for all
        where they are alike."""
        return self.block(0, self.layout.length, 0, self.keys_at.length)

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int, rows: range | None = None
    ) -> Bool[Tensor, "rows heads queries keys"]:
        """Return the mask between queries [first, stop) and keys [key_first, key_stop), of some rows or all."""
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
        """Rows whose masks differ; 1 where all are alike."""
        at, kept = self.layout, self.keys_at
        given = (
            at.prefix,
            *(x for p in (at, kept) for x in (p.index, p.segment_ids, p.padding_mask)),
        )
        own = self.pattern.num_rows if isinstance(self.pattern, GivenMask) else 1
        return max((len(x) for x in given if x is not None), default=own)

    @property
    def num_heads(self) -> int:
        """Heads whose masks differ; 1 where all are alike."""
        return self.pattern.num_heads if isinstance(self.pattern, PerHeadPattern) else 1

    def allows(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return whether the query at a column of a row sees the key at a column (shapes broadcast)."""
        at, kept = self.layout, self.keys_at
        here, there = (
            index[row if len(index) > 1 else 0, column]
            for index, column in (
                (at.index_or_range(), query),
                (kept.index_or_range(), key),
            )
        )
        if isinstance(self.pattern, GivenMask):
            seen = self.pattern.shows(row, head, query, key)
        else:
            seen = self.shows(row, head, here, there)
        if self.kept is not None:
            seen = seen & (there >= 0)
        if at.segment_ids is not None and kept.segment_ids is not None:
            seen = seen & (at.segment_ids[row, query] == kept.segment_ids[row, key])
        if kept.padding_mask is not None:
            seen = seen & kept.padding_mask[row, key]
        if at.padding_mask is not None:
            # Padding must see something: itself, or anything where it has no place of its own.
            itself = query == key if self.kept is None else key >= 0
            seen = torch.where(at.padding_mask[row, query], seen, itself)
        return seen

    def shows(self, row: Tensor, head: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """Return whether the pattern shows the key at index `there` of a document to the query at `here` (shapes
        broadcast)."""
        pattern, prefix = self.pattern, self.layout.prefix
        assert not isinstance(pattern, GivenMask)
        if prefix is not None and isinstance(pattern, Prefix):
            pattern = Prefix(pattern.spec, prefix[row])
        return pattern.visible(here, there, *([head] if self.num_heads > 1 else []))

    def keys(self, first: int, stop: int) -> tuple[int, int]:
        """Return the range of keys outside which queries [first, stop) see nothing in any row."""
        ranges = self.keys_of_rows(first, stop)
        return min(start for start, _ in ranges), max(end for _, end in ranges)

    def keys_of_rows(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the range of keys outside which queries [first, stop) see nothing, for each row whose mask
        differs.

        In a packed row index and column differ, but only by what begins before a document; with padding
        only a mask that hides all that follows, and documents, still bound the range.
        """
        length = self.keys_at.length
        if self.kept is not None:
            return [(0, length)] * self.num_rows
        if self.layout.plain and self.layout.index is None:
            return [self.pattern.keys(first, stop - 1, length)] * self.num_rows
        lookback, lookahead = self.pattern.lookback, self.pattern.lookahead
        if self.layout.padding_mask is not None:
            start, end = 0, stop if lookahead == 0 else length
        else:
            start = 0 if lookback is None else max(0, first - lookback)
            end = length if lookahead is None else min(stop + lookahead, length)
        if self.layout.segment_ids is None:
            return [(start, end)] * self.num_rows
        begin, finish = self._documents
        edges = zip(begin[:, first].tolist(), finish[:, stop - 1].tolist(), strict=True)
        return [(max(start, low), min(end, high)) for low, high in edges]

    @cached_property
    def _documents(self) -> tuple[Tensor, Tensor]:
        """Return the columns where the document of each token begins and ends, each [rows, length]."""
        ids, length = self.layout.segment_ids, self.layout.length
        assert ids is not None
        columns = torch.arange(length, device=ids.device)
        border = ids[:, 1:] != ids[:, :-1]
        begin = torch.zeros_like(ids, dtype=torch.long)
        begin[:, 1:] = torch.where(border, columns[1:], 0)
        finish = torch.full_like(begin, length)
        finish[:, :-1] = torch.where(border, columns[1:], length)
        return begin.cummax(-1).values, finish.flip(-1).cummin(-1).values.flip(-1)
