"""Blocks of a mask: a range of rows, a range of queries, and ranges of the keys that they may see."""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archwright.parts.masks import AttentionMask, Ranges, united

BLOCK = 128
"""Queries per block: enough for fast matmuls, few enough to skip hidden keys."""

ALIGNED = 32
"""Alignment of key ranges and masked stretches, for vector instructions. One more block costs about this many keys."""


class Block(NamedTuple):
    """Rows [row_first, row_stop), their queries [first, stop), and ranges of visible keys."""

    row_first: int
    row_stop: int
    """0 for all rows of the batch, if their masks are equal."""
    first: int
    stop: int
    key_first: int
    key_stop: int
    """The first range of keys, [key_first, key_stop)."""
    masked_first: int
    masked_stop: int
    """Columns of the block with hidden keys, [masked_first, masked_stop)."""
    mask_at: int
    """Offset of these columns in `Blocks.mask_bias`."""
    mask_rows: int
    mask_heads: int
    """Their shape is [mask_rows, mask_heads, queries, columns]; a size of 1 broadcasts."""
    further: tuple[int, ...] = ()
    """Start and stop of each further range of keys. Columns of a block run through all ranges in order."""

    @property
    def keys(self) -> tuple[slice, ...]:
        """Ranges of keys, in order."""
        ends = (self.key_first, self.key_stop, *self.further)
        pairs = zip(ends[::2], ends[1::2], strict=True)
        return tuple(slice(start, stop) for start, stop in pairs if start < stop)

    @property
    def num_keys(self) -> int:
        """Number of keys in all ranges."""
        return sum(keys.stop - keys.start for keys in self.keys)


FIELDS = len(Block._fields) - 1
"""Numbers of a block with one range of keys."""


class Blocks(NamedTuple):
    """All blocks of a mask as tensors, which compiled layers take as inputs."""

    table: Int[Tensor, "blocks fields"]
    """One `Block` per row, padded with empty ranges of keys."""
    mask_bias: Float[Tensor, " hidden"]
    """Additive scores, 0 or -inf, of all masked stretches; bfloat16 represents both exactly."""
    workspace: Float[Tensor, " pairs"]
    """Tensor without memory, with one entry per (row, query, key) of all blocks."""
    rows: int
    """Number of rows with different blocks."""


def blocks_of(view: AttentionMask) -> Blocks:
    """Return the blocks of a mask, computed once for all layers."""
    return view.once(f"blocks of {BLOCK}", _cut)


def has_blocks(view: AttentionMask) -> bool:
    """True if the blocks of a mask are computed."""
    return f"blocks of {BLOCK}" in view.made


def _cut(view: AttentionMask) -> Blocks:
    length, device = view.layout.length, view.layout.device
    table: list[Block] = []
    stretches: list[Tensor] = []
    used = pairs = 0
    for first in range(0, length, BLOCK):
        stop = min(first + BLOCK, length)
        for rows, ranges in _joined(view.ranges_of_rows(first, stop)):
            # [rows, heads, queries, keys]
            hidden = ~torch.cat([view.block(first, stop, *keys, rows) for keys in ranges], -1)
            low, high = _masked_columns(hidden)
            stretch = hidden[..., low:high]
            if low < high and not (stretches and torch.equal(stretch, stretches[-1])):
                stretches.append(stretch)
                used += stretch.numel()
            # A stretch equal to the last one shares its memory.
            at = used - stretch.numel()
            row_range = (0, 0) if view.num_rows == 1 else (rows.start, rows.stop)
            further = tuple(end for keys in ranges[1:] for end in keys)
            where = (*row_range, first, stop, *ranges[0], low, high, at, *hidden.shape[:2])
            table.append(Block._make([*where, further]))
            pairs += len(rows) * (stop - first) * table[-1].num_keys
    flat = [stretch.flatten() for stretch in stretches]
    hides = torch.cat(flat) if flat else torch.zeros(0, dtype=torch.bool, device=device)
    mask_bias = torch.zeros(hides.shape, dtype=torch.bfloat16, device=device)
    mask_bias.masked_fill_(hides, -torch.inf)
    workspace = torch.empty((), device=device).expand(pairs)
    blocks = Blocks(_as_tensor(table), mask_bias, workspace, view.num_rows)
    dynamo = sys.modules.get("torch._dynamo")  # its import takes seconds
    if dynamo is not None and not view.is_plain:
        # The next batch has another number of blocks.
        for tensor in (blocks.table, blocks.mask_bias, blocks.workspace):
            dynamo.maybe_mark_dynamic(tensor, 0)
        dynamo.maybe_mark_dynamic(blocks.table, 1)
    return blocks


def _as_tensor(table: list[Block]) -> Tensor:
    """Return blocks as rows of equal length, [blocks, fields]."""
    most = max(len(block.further) for block in table)
    return torch.tensor([[*b[:FIELDS], *b.further, *[0] * (most - len(b.further))] for b in table])


def block_of(line: list[int]) -> Block:
    """Return the block of a row of `Blocks.table`."""
    return Block._make([*line[:FIELDS], tuple(line[FIELDS:])])


def _joined(ranges: list[Ranges]) -> Iterator[tuple[range, Ranges]]:
    """Yield groups of adjacent rows with common ranges of keys, which minimize the cost."""
    aligned = [_aligned(row) for row in ranges]
    if all(len(row) == 1 for row in aligned):
        yield from _joined_single([row[0] for row in aligned])
        return
    first = 0
    for alike, rows in groupby(aligned):
        number = len([*rows])
        yield range(first, first + number), alike
        first += number


def _aligned(ranges: Ranges) -> Ranges:
    """Extend ranges to multiples of `ALIGNED`, except the end of the last one."""
    last = ranges[-1][1]
    whole = [(s // ALIGNED * ALIGNED, -(-stop // ALIGNED) * ALIGNED) for s, stop in ranges]
    # A gap of one vector costs less than another range.
    return [(start, min(stop, last)) for start, stop in united(whole, ALIGNED)]


def _joined_single(aligned: Ranges) -> Iterator[tuple[range, Ranges]]:
    """Group rows with one range each, greedily."""
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
        yield range(row, end), [(start, stop)]
        row = end


def _masked_columns(hidden: Tensor) -> tuple[int, int]:
    """Return one aligned range of columns with all hidden keys of any row, head and query."""
    masked = hidden.any(-2).flatten(0, 1).any(0).nonzero()  # [masked columns, 1]
    if not len(masked):
        return 0, 0
    first, last = masked[[0, -1], 0].tolist()
    return first // ALIGNED * ALIGNED, min(-(-(last + 1) // ALIGNED) * ALIGNED, hidden.shape[-1])
