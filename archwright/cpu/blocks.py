"""Blocks of a mask: a range of rows, a range of queries, and ranges of the keys that they may see."""

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
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


def blocks_of(mask: AttentionMask) -> Blocks:
    """Return the blocks of a mask, computed once for all layers."""
    return mask.once(f"blocks of {BLOCK}", _cut)


def has_blocks(mask: AttentionMask) -> bool:
    """True if the blocks of a mask are computed."""
    return f"blocks of {BLOCK}" in mask.made


def _cut(mask: AttentionMask) -> Blocks:
    length, device = mask.layout.length, mask.layout.device
    table: list[Block] = []
    stretches: list[Tensor] = []
    used = pairs = 0
    for first in range(0, length, BLOCK):
        stop = min(first + BLOCK, length)
        for rows, ranges in _joined(mask.ranges_of_rows(first, stop)):
            # [rows, heads, queries, keys]
            hidden = ~torch.cat([mask.block(first, stop, *keys, rows) for keys in ranges], -1)
            low, high = _masked_columns(hidden)
            stretch = hidden[..., low:high]
            if low < high and not (stretches and torch.equal(stretch, stretches[-1])):
                stretches.append(stretch)
                used += stretch.numel()
            # A stretch equal to the last one shares its memory.
            at = used - stretch.numel()
            row_range = (0, 0) if mask.num_rows == 1 else (rows.start, rows.stop)
            further = tuple(end for keys in ranges[1:] for end in keys)
            where = (*row_range, first, stop, *ranges[0], low, high, at, *hidden.shape[:2])
            table.append(Block._make([*where, further]))
            pairs += len(rows) * (stop - first) * table[-1].num_keys
    flat = [stretch.flatten() for stretch in stretches]
    hides = torch.cat(flat) if flat else torch.zeros(0, dtype=torch.bool, device=device)
    mask_bias = torch.zeros(hides.shape, dtype=torch.bfloat16, device=device)
    mask_bias.masked_fill_(hides, -torch.inf)
    workspace = torch.empty((), device=device).expand(pairs)
    blocks = Blocks(_as_tensor(table), mask_bias, workspace, mask.num_rows)
    dynamo = sys.modules.get("torch._dynamo")  # its import takes seconds
    if dynamo is not None and not mask.is_plain:
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


class Tile(NamedTuple):
    """A block with the slices of its tensors."""

    block: Block
    rows: slice
    queries: slice
    keys: tuple[slice, ...]
    """Ranges of keys; columns run through them in order."""
    kept: slice
    """Slice of the saved weights."""
    shape: tuple[int, int, int, int]
    """[rows, heads, queries, keys], including the columns of a sink."""

    @property
    def size(self) -> int:
        rows, heads, queries, keys = self.shape
        return rows * heads * queries * keys


def tiles_of(query: Tensor, table: Tensor, sinks: Tensor | None) -> Iterator[Tile]:
    """Yield the blocks in order. A sink takes `ALIGNED` further keys, so that rows remain aligned."""
    batch, _, heads, _ = query.shape
    used, more = 0, 0 if sinks is None else ALIGNED
    for line in table.tolist():
        block = block_of(line)
        rows = slice(block.row_first, block.row_stop or batch)
        queries, keys = slice(block.first, block.stop), block.keys
        shape = (rows.stop - rows.start, heads, block.stop - block.first, block.num_keys + more)
        size = shape[0] * shape[1] * shape[2] * shape[3]
        yield Tile(block, rows, queries, keys, slice(used, used + size), shape)
        used += size


def matrix_of(flat: Tensor, tile: Tile, kv: int) -> Tensor:
    """View a block's memory as [rows * kv, group * queries, keys]."""
    rows, heads, queries, keys = tile.shape
    # [rows * kv, group * queries, keys]
    return flat.view(rows * kv, heads // kv * queries, keys)


def queries_of(x: Tensor, tile: Tile, kv: int) -> Tensor:
    """Return a block's queries by group, [rows * kv, group * queries, d]."""
    rows, heads, queries, _ = tile.shape
    # [rows * kv, group * queries, d]
    return x[tile.rows, :, tile.queries].reshape(rows * kv, heads // kv * queries, -1)


def keys_of(x: Tensor, tile: Tile, sinks: Tensor | None) -> Tensor:
    """Return a block's keys [rows * kv, keys, d], contiguous for fast matmuls, with zeros for a sink."""
    parts = [x[tile.rows, :, keys] for keys in tile.keys]
    # [rows, kv, keys, d]
    seen = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    if sinks is not None:
        seen = F.pad(seen, (0, 0, 0, ALIGNED))
    # [rows * kv, keys, d]
    return seen.flatten(0, 1).contiguous()


def strips_of(bias_band: Tensor, block: Block, least: int) -> list[Tensor]:
    """Return views of the bias for each range of a block's keys, each [heads, queries, keys]."""
    queries, origin = block.stop - block.first, block.first + least
    return [bias_band[:, :queries, keys.start - origin : keys.stop - origin] for keys in block.keys]


def grouped(x: Tensor, kv: int) -> Tensor:
    """View [b, t, h, d] as [b, kv, group, t, d]."""
    # [b, t, kv, group, d]
    grouped: Tensor = x.unflatten(2, (kv, x.shape[2] // kv))
    # [b, kv, group, t, d]
    return grouped.permute(0, 2, 3, 1, 4)


def shaped(rows: Tensor, like: Tensor, kv: int) -> Tensor:
    """View [b * kv, group * t, d] as [b, kv, group, t, d] for the heads of `like`."""
    batch, _, heads, dim = like.shape
    # [b, kv, group, t, d]
    return rows.view(batch, kv, heads // kv, -1, dim)
