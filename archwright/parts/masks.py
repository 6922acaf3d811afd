"""Masks. One description each: a predicate on (query, key), how far it reaches, and how many keys a query
sees. The dense mask, the block structure of fast kernels, what a cache keeps and the FLOP count follow."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
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


PIECE = 2**20
"""Queries whose keys are counted at once, where a pattern has no formula for all of them."""
Ranges = list[tuple[int, int]]
"""Ranges [start, stop) of keys, in order, none of which touches the next."""


@runtime_checkable
class ScatteredPattern(Protocol):
    """A pattern by which queries see keys in several places, with others between that none of them sees."""

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        """Return the ranges outside which queries first .. last see no key."""


@runtime_checkable
class WholeTextPattern(Protocol):
    """A pattern by which the end of a text counts, too; `visible` is that of a text whose end is not in sight."""

    def visible_in(
        self, query: Tensor, key: Tensor, length: Tensor, longest: int, head: Tensor | int = 0
    ) -> Tensor:
        """Return True where the query at `query` of a text of `length` tokens, `longest` at most, may see the key at
        `key` (shapes broadcast)."""

    @property
    def repeats(self) -> bool:
        """Whether some keys count several times."""

    def times(self, query: Tensor, key: Tensor, length: Tensor) -> Tensor:
        """Return how many times a key counts that is seen."""


@runtime_checkable
class CountedPattern(Protocol):
    """A pattern whose pairs follow from a formula, however long a text is."""

    def num_pairs(self, length: int) -> float:
        """Return the number of (query, key) pairs of a text, in the mean of its heads."""


def key_ranges(pattern: "MaskPattern | GivenMask", first: int, last: int, length: int) -> Ranges:
    """Return the ranges outside which queries first .. last of a text see no key."""
    if isinstance(pattern, ScatteredPattern):
        return pattern.ranges(first, last, length)
    return [pattern.keys(first, last, length)]


def united(ranges: Ranges, gap: int = 0) -> Ranges:
    """Return ranges in order, those as one between which lie at most `gap` keys."""
    found: Ranges = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def pairs(pattern: MaskPattern, length: int) -> float:
    """Return how many (query, key) pairs a text of `length` tokens has, in the mean of its heads."""
    return _pairs(_Itself(pattern), length)


@lru_cache(maxsize=256)
def _pairs(of: "_Itself", length: int) -> float:
    """Count once for all layers with one pattern; without a formula, in pieces."""
    if isinstance(of.pattern, CountedPattern):
        return float(of.pattern.num_pairs(length))
    starts = range(0, length, PIECE)
    pieces = (torch.arange(start, min(start + PIECE, length)) for start in starts)
    return float(sum(of.pattern.num_keys(piece, length).sum().item() for piece in pieces))


@dataclass(frozen=True, eq=False)
class _Itself:
    """A pattern that equals no other; one from outside may have no hash."""

    pattern: MaskPattern

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.pattern is other.pattern

    def __hash__(self) -> int:
        return id(self.pattern)


def as_seen(mask: spec.Mask, num_heads: int, length: int) -> spec.Mask:
    """Return the causal or full mask if it shows as many pairs in texts of `length`."""
    seen = pairs(pattern_of(mask, num_heads), length)
    if seen == length * (length + 1) / 2 and (mask.causal or length == 1):
        return spec.Causal()
    return spec.Full() if seen == length**2 else mask


def is_full(mask: spec.Mask, num_heads: int, length: int) -> bool:
    """True if a mask that could hide more shows all that a causal or full mask does."""
    return not mask.shows_all and as_seen(mask, num_heads, length).shows_all


def without_global_queries(pattern: MaskPattern) -> MaskPattern:
    """Return what a pattern shows where queries of global tokens see no more than those of others."""
    return (
        LongformerKeys(pattern.spec, pattern.num_heads)
        if isinstance(pattern, Longformer)
        else pattern
    )


def prefix_size(pattern: MaskPattern) -> int:
    """Return how many tokens at the start of a text see each other whole; 0 in all but prefix masks."""
    return pattern.spec.size if isinstance(pattern, Prefix) else 0


def num_global(pattern: MaskPattern) -> int:
    """Return how many tokens at the start of a text see all and are seen by all; 0 in all but Longformer's masks."""
    return pattern.spec.num_global if isinstance(pattern, Longformer) else 0


def _triangle(number: int) -> int:
    """Return 1 + 2 + ... + number."""
    return number * (number + 1) // 2


def _up_to(number: int, most: int) -> int:
    """Return the sum of min(i, most) over i from 1 to a number."""
    return _triangle(min(number, most)) + most * max(0, number - most)


def _sum_of_quotients(number: int, divisor: int) -> int:
    """Return the sum of i // divisor over i from 0 to number - 1."""
    whole, rest = divmod(number, divisor)
    return divisor * _triangle(whole - 1) + rest * whole


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

    def num_pairs(self, length: int) -> int:
        return _triangle(length)


class Full(_Reaching):
    """Every key."""

    lookahead: int | None = None

    def __init__(self, spec: spec.Full) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key >= 0) & (query >= 0)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return torch.full_like(query, length)

    def num_pairs(self, length: int) -> int:
        return length**2


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

    def num_pairs(self, length: int) -> int:
        size = min(self.spec.size, length)
        return size**2 + _triangle(length) - _triangle(size)


class Window(_Reaching):
    """query - size < key <= query: `size` keys, the query's own included."""

    def __init__(self, spec: spec.Window) -> None:
        self.spec, self.lookback = spec, spec.size - 1

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - self.spec.size)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return (query + 1).clamp(max=self.spec.size)

    def num_pairs(self, length: int) -> int:
        return _up_to(length, self.spec.size)


class SymmetricWindow(_Reaching):
    """|query - key| <= radius."""

    def __init__(self, spec: spec.SymmetricWindow) -> None:
        self.spec, self.lookback, self.lookahead = spec, spec.radius, spec.radius

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= self.spec.radius

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        before = query.clamp(max=self.spec.radius)
        return before + 1 + (length - 1 - query).clamp(max=self.spec.radius)

    def num_pairs(self, length: int) -> int:
        # On each side, beside its own key, up to as many as the radius.
        return 2 * (_up_to(length, self.spec.radius + 1) - length) + length


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

    def num_pairs(self, length: int) -> float:
        def number(step: int) -> int:
            whole, rest = divmod(length, step)
            return step * _up_to(whole, self.spec.size) + rest * min(whole + 1, self.spec.size)

        return sum(number(step) * share for step, share in self.steps.items())


class Longformer(_Dilated):
    """|query - key| in {0, d, 2d, ..., radius d}, or query or key among the first `num_global`."""

    def __init__(self, spec: spec.Longformer, num_heads: int = 1) -> None:
        super().__init__(spec.dilation, spec.dilated_heads, num_heads)
        self.spec = spec
        reach = spec.radius * max(self.steps)
        self.lookback = self.lookahead = None if spec.num_global else reach

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        globals_ = (query < self.spec.num_global) | (key < self.spec.num_global)
        return self.near(query, key, head) | globals_

    def near(self, query: Tensor, key: Tensor, head: Tensor | int) -> Tensor:
        """Return whether a key is in a query's window."""
        distance, step = (query - key).abs(), self.step(head)
        return (distance <= self.spec.radius * step) & (distance % step == 0)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        found = self.ranges(first, last, length)
        return found[0][0], found[-1][1]

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        if first < self.spec.num_global:
            return [(0, length)]
        return self.ranges_of_windows(first, last, length)

    def ranges_of_windows(self, first: int, last: int, length: int) -> Ranges:
        """Return the ranges of windows and of global keys."""
        few = min(self.spec.num_global, length)
        # The last key is the first one, counted from the end.
        stop = length - self.first_key(length - 1 - last, length - 1 - first, self.spec.radius)
        near = (self.first_key(first, last, self.spec.radius), stop)
        return united([(0, few), near] if few else [near])

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        radius, few = self.spec.radius, self.spec.num_global

        def number(step: int) -> Tensor:
            behind = (query // step).clamp(max=radius)
            ahead = ((length - 1 - query) // step).clamp(max=radius)
            both = (behind - (query - few) // step).clamp(min=0)  # near keys that are global too
            return torch.where(query < few, length, behind + 1 + ahead + few - both)

        return self.in_the_mean(number)


class LongformerKeys(Longformer):
    """|query - key| in {0, d, 2d, ..., radius d}, or key among the first `num_global`: Longformer's mask for the
    queries of most tokens."""

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        return self.near(query, key, head) | (key < self.spec.num_global)

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        return self.ranges_of_windows(first, last, length)


class SegmentMemory(_Reaching):
    """start - memory <= key <= query, with the start of the query's segment or chunk of `size` tokens."""

    def __init__(self, spec: spec.SegmentMemory | spec.Chunked) -> None:
        self.spec, self.lookback = spec, spec.size - 1 + spec.memory

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= query - query % self.spec.size - self.spec.memory)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        start = first - first % self.spec.size
        return max(0, start - self.spec.memory), min(last + 1, length)

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        start = query - query % self.spec.size
        return query + 1 - (start - self.spec.memory).clamp(min=0)

    def num_pairs(self, length: int) -> int:
        size, memory = self.spec.size, self.spec.memory
        whole, rest = divmod(length, size)
        # Segments from this one on begin behind more tokens than they remember.
        first = min(whole, -(-memory // size))
        segments = _triangle(whole - 1) - _triangle(first - 1)
        hidden = size * (size * segments - memory * (whole - first))
        return _triangle(length) - hidden - rest * max(0, whole * size - memory)


class WindowGlobal(_Reaching):
    """key <= query, and key among the last `size` or the first `num_global`."""

    def __init__(self, spec: spec.WindowGlobal) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        near = key > query - self.spec.size
        return (key <= query) & (near | (key < self.spec.num_global))

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        near = (max(0, first - self.spec.size + 1), min(last + 1, length))
        return united([(0, min(self.spec.num_global, near[1])), near])

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        return (query + 1).clamp(max=self.spec.size + self.spec.num_global)

    def num_pairs(self, length: int) -> int:
        return _up_to(length, self.spec.size + self.spec.num_global)


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

    def num_pairs(self, length: int) -> int:
        stride = self.spec.stride
        return _up_to(length, stride) + _sum_of_quotients(length, stride)


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

    def num_pairs(self, length: int) -> int:
        stride = self.spec.stride
        whole, rest = divmod(length, stride)
        own = whole * _triangle(stride) + _triangle(rest)
        return own + min(self.spec.num_summary, stride) * _sum_of_quotients(length, stride)


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


class BlockLocal(_Reaching):
    """query and key in one block of `block_size`, counted behind the first `num_global`, where the first block is
    `shift` shorter; or query or key among the first `num_global`."""

    def __init__(self, spec: spec.BlockLocal) -> None:
        self.spec, self.offset = spec, spec.shift - spec.num_global
        self.lookback = self.lookahead = None if spec.num_global else spec.block_size - 1

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        size, few = self.spec.block_size, self.spec.num_global
        together = (query + self.offset) // size == (key + self.offset) // size
        return together | (query < few) | (key < few)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        found = self.ranges(first, last, length)
        return found[0][0], found[-1][1]

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        size, few = self.spec.block_size, self.spec.num_global
        if first < few:
            return [(0, length)]
        start = (first + self.offset) // size * size - self.offset
        stop = ((last + self.offset) // size + 1) * size - self.offset
        near = (max(start, few), min(stop, length))
        return united([(0, few), near]) if few else [near]

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        size, few = self.spec.block_size, self.spec.num_global
        start = (query + self.offset) // size * size - self.offset
        own = (start + size).clamp(max=length) - start.clamp(min=few)
        return torch.where(query < few, length, few + own)


class BigBird(_Reaching):
    """Blocks that see their neighbours, the first and the last block, and random ones; the first and the last see all.

    Random blocks are those of the published code in training, for texts of other lengths than 1,024, 3,072 and 4,096,
    for which it has another plan: in the order of blocks, then heads, the first r of a permutation of the first 2 r + 5
    blocks that the block does not see already, drawn by numpy's legacy generator, whose seed is the number of the
    layer, counted from 0.

    Zaheer et al., 2020, section 2, and appendix D; transformers, modeling_big_bird.py.
    """

    lookahead: int | None = None

    def __init__(self, spec: spec.BigBird, num_heads: int = 1, layer: int = 1) -> None:
        self.spec, self.layer = spec, layer
        self.num_heads = num_heads if spec.differs_by_head else 1
        self._drawn = torch.zeros(num_heads, 0, spec.num_random, dtype=torch.long)

    @property
    def shortest(self) -> int:
        """The longest text that is seen whole, in tokens."""
        return (5 + 2 * self.spec.num_random) * self.spec.block_size

    def visible(self, query: Tensor, key: Tensor, head: Tensor | int = 0) -> Tensor:
        places = [torch.as_tensor(place) for place in (query, key)]
        # Places without values have shapes alone, which are the same however long a text is.
        last = sum(0 if place.is_meta else int(place.max()) for place in places)
        endless = torch.as_tensor(last + 2 * self.shortest)
        return self.visible_in(query, key, endless, int(endless), head)

    def visible_in(
        self, query: Tensor, key: Tensor, length: Tensor, longest: int, head: Tensor | int = 0
    ) -> Tensor:
        size = self.spec.block_size
        asking, seen, last = query // size, key // size, (length - 1) // size
        near = (asking - seen).abs() <= 1
        outer = (asking == 0) | (seen == 0) | (asking == last) | (seen == last)
        shown = near | outer | (length <= self.shortest)
        if self.spec.differs_by_head:
            drawn = self.drawn(-(-longest // size)).to(key.device)
            for number in range(self.spec.num_random):
                shown = shown | (drawn[head, asking, number] == seen)
        return shown

    @property
    def repeats(self) -> bool:
        return self.spec.num_random > 0 and not self.spec.differs_by_head

    def times(self, query: Tensor, key: Tensor, length: Tensor) -> Tensor:
        size = self.spec.block_size
        asking, last = query // size, (length - 1) // size
        repeated = (key // size == 0) & (asking > 0) & (asking < last) & (length > self.shortest)
        return torch.where(repeated, 1 + self.spec.num_random, 1)

    def drawn(self, num_blocks: int) -> Tensor:
        """Return the random blocks of at least so many blocks, [heads, blocks, num_random]."""
        if self._drawn.shape[1] < num_blocks:
            self._drawn = _drawn_blocks(
                max(16, 2 * num_blocks), self.num_heads, self.spec.num_random, self.layer - 1
            )
        return self._drawn

    def ranges(self, first: int, last: int, length: int) -> Ranges:
        size = self.spec.block_size
        end = (length - 1) // size
        if length <= self.shortest or first < size or last // size == end:
            return [(0, length)]
        near = ((first // size - 1) * size, min((last // size + 2) * size, length))
        # Random blocks are among the first 2 r + 4, of which no head sees all.
        few = 2 * self.spec.num_random + 4 if self.spec.differs_by_head else 1
        return united([(0, few * size), near, (end * size, length)])

    def num_keys(self, query: Tensor, length: int) -> Tensor:
        size, few = self.spec.block_size, self.spec.num_random * self.spec.differs_by_head
        last = (length - 1) // size
        block = query // size
        blocks = 5 + few - ((block == 1) | (block == last - 1)).long()
        missing = (last + 1) * size - length  # of the last block
        outer = (block == 0) | (block == last) | (length <= self.shortest)
        return torch.where(outer, length, blocks * size - missing)


def _drawn_blocks(num_blocks: int, num_heads: int, number: int, seed: int) -> Tensor:
    """Return random blocks [heads, blocks, number], as the published code draws them."""
    import numpy as np

    dice, among = np.random.RandomState(seed), 2 * number + 5
    found = torch.zeros(num_heads, num_blocks, number, dtype=torch.long)
    for block in range(1, num_blocks):
        seen = {0, block - 1, block, block + 1, among - 1}
        seen |= {among - 2} if block == 1 else {1} if block == among - 2 else set()
        for head in range(num_heads):
            order = dice.permutation(np.arange(among, dtype=np.int32))
            chosen = [int(one) for one in order if int(one) not in seen]
            found[head, block] = torch.tensor(chosen[:number])
    return found


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


def pattern_of(mask: spec.Mask, num_heads: int, layer: int = 1) -> MaskPattern:
    """Return the pattern of a mask, for so many heads, in a layer of this number, counted from 1."""
    sizes = [num_heads] * mask.differs_by_head + [layer] * mask.differs_by_layer
    made: MaskPattern = MASKS.make(mask, *sizes)
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
        spec.Longformer: Longformer,
        spec.Chunked: SegmentMemory,
        spec.SegmentMemory: SegmentMemory,
        spec.WindowGlobal: WindowGlobal,
        spec.Strided: Strided,
        spec.Fixed: Fixed,
        spec.BlockSparse: BlockSparse,
        spec.BlockLocal: BlockLocal,
        spec.BigBird: BigBird,
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
    first_column: int = 0
    """The column among the keys at which the first query stands, where queries are among them."""
    counts: bool = field(init=False, default=False)
    """Whether some keys count several times; known before a compiled layer asks."""

    def __post_init__(self) -> None:
        pattern = self.pattern
        counts = isinstance(pattern, WholeTextPattern) and pattern.repeats
        object.__setattr__(self, "counts", counts)

    def of_columns(self, first: int, stop: int) -> "AttentionMask":
        """Return what queries [first, stop) see of all keys."""
        return _SomeQueries(
            self.pattern, self.layout.columns(first, stop), whole=self, first_column=first
        )

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
        """The whole mask, True where a query sees a key; one head for all if they are alike."""
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
        elif isinstance(self.pattern, WholeTextPattern):
            long, longest = self._lengths(row, query), self.keys_at.length
            head_index = (head,) if self.num_heads > 1 else ()
            seen = self.pattern.visible_in(here, there, long, longest, *head_index)
        else:
            seen = self.shows(row, head, here, there)
        if self.kept is not None:
            seen = seen & (there >= 0)
        if at.segment_ids is not None and kept.segment_ids is not None:
            seen = seen & (at.segment_ids[row, query] == kept.segment_ids[row, key])
        if kept.padding_mask is not None:
            seen = seen & kept.padding_mask[row, key]
        if kept.text is not None:
            # Vectors of streams, the last among keys as among queries, are seen by themselves alone.
            itself = key - kept.length == query - at.length
            seen = torch.where(key < kept.text.length, seen, itself)
        if at.padding_mask is not None:
            # Padding must see something: itself, or anything where it has no place of its own.
            itself = query == key if self.kept is None else key >= 0
            seen = torch.where(at.padding_mask[row, query], seen, itself)
        return seen

    def _lengths(self, row: Tensor, query: Tensor) -> Tensor:
        """Return how long the texts are in which queries stand."""
        lengths = self.layout.text_lengths
        return lengths[row if len(lengths) > 1 else 0, query]

    def log_times(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        """Return the logarithm of how many times keys count, which adds to scores: [rows, 1, queries, keys]."""
        at, kept = self.layout.index_or_range(), self.keys_at.index_or_range()
        assert isinstance(self.pattern, WholeTextPattern)
        times = self.pattern.times(
            at[:, first:stop, None],
            kept[:, None, key_first:key_stop],
            self.layout.text_lengths[:, first:stop, None],
        )
        # [rows, 1, queries, keys]
        return times[:, None].log()

    def shows(self, row: Tensor, head: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """True if the pattern shows the key at `there` to the query at `here` (shapes broadcast)."""
        pattern, prefix = self.pattern, self.layout.prefix
        assert not isinstance(pattern, GivenMask)
        if prefix is not None and isinstance(pattern, Prefix):
            pattern = Prefix(pattern.spec, prefix[row])
        return pattern.visible(here, there, *([head] if self.num_heads > 1 else []))

    def keys(self, first: int, stop: int) -> tuple[int, int]:
        """Return the range of keys outside which queries [first, stop) see nothing in any row."""
        ranges = self.ranges_of_rows(first, stop)
        return min(row[0][0] for row in ranges), max(row[-1][1] for row in ranges)

    def ranges_of_rows(self, first: int, stop: int) -> list[Ranges]:
        """Return the key ranges of queries [first, stop), for each row whose mask differs."""
        at, length = self.layout, self.keys_at.length
        if self.kept is not None:
            return [[(0, length)]] * self.num_rows
        if self._text is not None:
            return self._of_streams(self._text, first, stop)
        if at.prefix is not None and isinstance(self.pattern, Prefix):
            return self._bounds(first, stop)
        if at.segment_ids is None and at.padding_mask is None:
            return [self._within(0, length, first, stop)] * self.num_rows
        if at.padding_mask is None:
            begin, finish = (edge[:, [first, stop - 1]].tolist() for edge in self._documents)
            rows = zip(begin, finish, strict=True)
            return [self._in_documents(*texts, first, stop) for texts in rows]
        if at.segment_ids is None and self._texts is not None:
            return [self._beside_padding(*text, first, stop) for text in self._texts]
        return self._bounds(first, stop)

    def _within(self, begin: int, end: int, first: int, stop: int) -> Ranges:
        """Return what queries [first, stop) see of a text in columns [begin, end), in which they stand."""
        seen = key_ranges(self.pattern, first - begin, stop - 1 - begin, end - begin)
        return [(begin + start, begin + last) for start, last in seen]

    def _of_streams(self, text: "AttentionMask", first: int, stop: int) -> list[Ranges]:
        """Return the ranges of a text and of the vectors of predicting streams."""
        length = text.layout.length
        found: list[Ranges] = [[] for _ in range(self.num_rows)]
        for stream in range(first // length, (stop - 1) // length + 1):
            begin, end = stream * length, (stream + 1) * length
            low, high = max(first, begin) - begin, min(stop, end) - begin
            # The i-th stream's vectors see what the tokens i - 1 places before do.
            seen = text.ranges_of_rows(max(0, low - max(0, stream - 1)), high)
            own = [(begin + low, begin + high)] if stream else []
            for row, ranges in enumerate(found):
                ranges += [*seen[row if len(seen) > 1 else 0], *own]
        return [united(ranges) for ranges in found]

    def _in_documents(self, begins: list[int], ends: list[int], first: int, stop: int) -> Ranges:
        """Return the ranges of queries [first, stop) from the documents of both ends."""
        (begin, last_begin), (end, last_end) = begins, ends
        if begin == last_begin:
            return self._within(begin, end, first, stop)
        between = [(end, last_begin)] if end < last_begin else []  # documents that are seen whole
        last = self._within(last_begin, last_end, last_begin, stop)
        return united([*self._within(begin, end, first, end), *between, *last])

    def _beside_padding(self, begin: int, end: int, first: int, stop: int) -> Ranges:
        """Return what queries [first, stop) see of a text in columns [begin, end), and of itself what is padding."""
        low, high = max(first, begin), min(stop, end)
        seen = self._within(begin, end, low, high) if low < high else []
        return united(seen if (low, high) == (first, stop) else [*seen, (first, stop)])

    def _bounds(self, first: int, stop: int) -> list[Ranges]:
        """Return a range for each row, where tokens of one text may have padding between them, or bring a prefix.

        Index and column then differ by any number: only a mask that hides all that follows, and documents, bound it.
        """
        length, lookahead = self.keys_at.length, self.pattern.lookahead
        start, end = 0, stop if lookahead == 0 else length
        if self.layout.segment_ids is None:
            return [[(start, end)]] * self.num_rows
        begin, finish = self._documents
        edges = zip(begin[:, first].tolist(), finish[:, stop - 1].tolist(), strict=True)
        return [[(max(start, low), min(end, high))] for low, high in edges]

    @cached_property
    def _text(self) -> "AttentionMask | None":
        """The mask of the text alone, where vectors of predicting streams stand behind it."""
        at = self.layout
        return None if at.text is None else AttentionMask(self.pattern, at.text)

    @cached_property
    def _texts(self) -> list[tuple[int, int]] | None:
        """Columns [begin, end) of each row's text; None if padding is inside or not given."""
        real = self.layout.padding_mask
        if real is None:
            return None
        number, begin = real.sum(-1), real.long().argmax(-1)
        last = real.shape[1] - 1 - real.flip(-1).long().argmax(-1)
        if not bool(((last - begin + 1 == number) | (number == 0)).all()):
            return None
        return list(zip(begin.tolist(), (begin + number).tolist(), strict=True))

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


@dataclass(frozen=True, kw_only=True)
class _SomeQueries(AttentionMask):
    """A mask of some neighbouring queries, which see the keys of all."""

    whole: AttentionMask

    @property
    def keys_at(self) -> TokenLayout:
        return self.whole.layout

    @property
    def is_plain_causal(self) -> bool:
        return False

    @property
    def num_rows(self) -> int:
        return self.whole.num_rows

    def allows(self, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.whole.allows(row, head, query + self.first_column, key)

    def ranges_of_rows(self, first: int, stop: int) -> list[Ranges]:
        return self.whole.ranges_of_rows(first + self.first_column, stop + self.first_column)

    def log_times(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        first, stop = first + self.first_column, stop + self.first_column
        return self.whole.log_times(first, stop, key_first, key_stop)
