"""Blocks of a mask: some rows of the batch, some queries, and the keys they may see."""

import sys
from collections.abc import Hashable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.masks import AttentionMask, Ranges, united
from archwright.parts.token_layout import TokenLayout

BLOCK = 128
"""Queries per block: long enough for fast matrix products, short enough to skip what is hidden."""

ALIGNED = 32
"""Ranges of keys, and masked stretches of them, begin and end at multiples of this, so that vector
instructions fill them. A block of its own costs about as much as this many keys more in another."""


class Block(NamedTuple):
    """Rows [row_first, row_stop), their queries [first, stop), the keys [key_first, key_stop) these may see."""

    row_first: int
    row_stop: int
    """0: all rows of the batch, whose masks are alike."""
    first: int
    stop: int
    key_first: int
    key_stop: int
    masked_first: int
    """Where the stretch of keys begins that holds all that is hidden, counted from key_first."""
    masked_stop: int
    mask_at: int
    """Where what hides that stretch begins in `Blocks.mask_bias`."""
    mask_rows: int
    mask_heads: int
    """The stretch is [mask_rows, mask_heads, queries, keys]; 1 stands for all alike."""
    further: tuple[int, ...] = ()
    """Further ranges of keys behind the first, start and stop of each; columns of a block run through all in order."""

    @property
    def keys(self) -> tuple[slice, ...]:
        """The ranges of keys, in order."""
        ends = (self.key_first, self.key_stop, *self.further)
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return tuple(slice(start, stop) for start, stop in pairs if start < stop)

    @property
    def num_keys(self) -> int:
        """How many keys there are in all ranges."""
        return sum(keys.stop - keys.start for keys in self.keys)


FIELDS = len(Block._fields) - 1
"""Numbers of a block with one range of keys."""


class Blocks(NamedTuple):
    """All blocks of a view, as tensors: so a compiled layer takes them as inputs like any others."""

    table: Int[Tensor, "blocks fields"]
    """One `Block` in each line, with empty ranges behind where others have more."""
    mask_bias: Float[Tensor, " hidden"]
    """Added to scores: 0 or -inf, stretch by stretch; bfloat16 holds both."""
    workspace: Float[Tensor, " pairs"]
    """As long as the blocks have pairs (row, query, key), without memory of its own."""
    rows: int
    """Rows that these are: 1 where those of the batch are alike."""


def blocks_of(view: AttentionMask) -> Blocks:
    """Return the blocks of a view; computed once for all layers that share it."""
    known: dict[str, Blocks] = view.__dict__.setdefault("blocks", {})
    if "cut" not in known:
        at = view.layout.text or view.layout
        alike = at.plain and at.index is None and at.start == 0 and type(view) is AttentionMask
        if alike and isinstance(view.pattern, Hashable):
            streams = view.layout.num_predicting // at.length
            known["cut"] = _cut_plain(view.pattern, at.length, streams, at.device, BLOCK)
        else:
            known["cut"] = _varying(_cut(view, BLOCK))
    return known["cut"]


@lru_cache(maxsize=32)
def _cut_plain(pattern: Any, length: int, streams: int, device: torch.device, size: int) -> Blocks:
    """Cut what the mask alone decides, the same in every batch."""
    # Also where an evaluation cuts them first: training saves them for its backward pass.
    with torch.inference_mode(False):
        layout = TokenLayout(length, device)
        layout = layout.with_streams(streams) if streams else layout
        return _cut(AttentionMask(pattern, layout), size)


def _varying(blocks: Blocks) -> Blocks:
    """Tell the compiler, if it is at work, that the next batch's blocks are others in number and size."""
    dynamo = sys.modules.get("torch._dynamo")  # to import it takes seconds
    if dynamo is not None:
        for tensor in (blocks.table, blocks.mask_bias, blocks.workspace):
            dynamo.maybe_mark_dynamic(tensor, 0)
        dynamo.maybe_mark_dynamic(blocks.table, 1)
    return blocks


def _cut(view: AttentionMask, size: int) -> Blocks:
    length, device = view.layout.length, view.layout.device
    table: list[Block] = []
    mask_bias: list[Tensor] = []
    used = pairs = 0
    for first in range(0, length, size):
        stop = min(first + size, length)
        for rows, ranges in _joined(view.ranges_of_rows(first, stop)):
            seen = [view.block(first, stop, *keys, rows) for keys in ranges]
            hidden = ~torch.cat(seen, -1)
            low, high = _stretch(hidden)
            part = hidden[..., low:high]
            if low < high and mask_bias and torch.equal(part, mask_bias[-1]):
                used -= part.numel()  # the same as in the block before
            elif low < high:
                mask_bias.append(part)
            row_range = (0, 0) if view.num_rows == 1 else (rows.start, rows.stop)
            further = tuple(end for keys in ranges[1:] for end in keys)
            where = (*row_range, first, stop, *ranges[0], low, high, used, *hidden.shape[:2])
            block = Block._make([*where, further])
            table.append(block)
            used += part.numel()
            pairs += len(rows) * (stop - first) * block.num_keys
    # Stretch after stretch: [hidden].
    flat = [part.flatten() for part in mask_bias]
    hides = torch.cat(flat) if flat else torch.zeros(0, dtype=torch.bool, device=device)
    added = torch.zeros(hides.shape, dtype=torch.bfloat16, device=device)
    workspace = torch.empty((), device=device).expand(pairs)
    return Blocks(
        _as_tensor(table), added.masked_fill_(hides, -torch.inf), workspace, view.num_rows
    )


def _as_tensor(table: list[Block]) -> Tensor:
    """Return blocks as lines of one length."""
    most = max(len(block.further) for block in table)
    # [blocks, fields]
    return torch.tensor([[*b[:FIELDS], *b.further, *[0] * (most - len(b.further))] for b in table])


def block_of(line: list[int]) -> Block:
    """Return the block of a line."""
    return Block._make([*line[:FIELDS], tuple(line[FIELDS:])])


def _joined(ranges: list[Ranges]) -> Iterator[tuple[range, Ranges]]:
    """Yield neighbouring rows with the ranges of keys of all of them, as few as do not cost more together."""
    aligned = [_aligned(row) for row in ranges]
    if all(len(row) == 1 for row in aligned):
        for together, start, stop in _joined_whole([row[0] for row in aligned]):
            yield together, [(start, stop)]
        return
    first = 0
    for alike, rows in groupby(aligned):
        number = len([*rows])
        yield range(first, first + number), alike
        first += number


def _aligned(ranges: Ranges) -> Ranges:
    """Return ranges that begin at whole vectors, and of which all but the last end there."""
    last = ranges[-1][1]
    whole = [(s // ALIGNED * ALIGNED, -(-stop // ALIGNED) * ALIGNED) for s, stop in ranges]
    # A gap of one vector costs less than another range.
    return [(start, min(stop, last)) for start, stop in united(whole, ALIGNED)]


def _joined_whole(aligned: Ranges) -> Iterator[tuple[range, int, int]]:
    row = 0
    while row < len(aligned):
        (start, stop), cost, end = aligned[row], aligned[row][1] - aligned[row][0], row + 1
        for low, high in aligned[row + 1 :]:
            both = (min(start, low), max(stop, high))
            apart = cost + high - low + ALIGNED
            if (end + 1 - row) * (both[1] - both[0]) > apart:
                break
            (start, stop), end = both, end + 1
            cost = (end - row) * (stop - start)
        yield range(row, end), start, stop
        row = end


def _stretch(hidden: Tensor) -> tuple[int, int]:
    """Return the range of keys that holds all that is hidden, in whole vectors."""
    # Columns that any row, head or query does not see: [keys].
    masked = hidden.any(-2).flatten(0, 1).any(0).nonzero()
    if not len(masked):
        return 0, 0
    first, last = masked[[0, -1], 0].tolist()
    return first // ALIGNED * ALIGNED, min(-(-(last + 1) // ALIGNED) * ALIGNED, hidden.shape[-1])
