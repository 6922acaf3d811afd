"""Layouts: arrangements of the model's tensors (`ours`) in one checkpoint tensor (`foreign`).

A layout pairs views of the checkpoint tensor with equal views of the model's tensors, for copying in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

Shape = tuple[int, ...]

if TYPE_CHECKING:
    from torch import Tensor

    Pairs = Iterator[tuple[Tensor, Tensor]]


class Layout(Protocol):
    """Arrangement of the model's tensors in a checkpoint tensor."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        """Return the shape of the checkpoint tensor."""

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        """Yield pairs of equal views: checkpoint tensor, model tensor."""


@dataclass(frozen=True)
class Same:
    """One tensor, unchanged."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return tuple(ours[0].shape)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign, ours[0]


@dataclass(frozen=True)
class View:
    """A view of one tensor, returned by `of`."""

    of: Callable[[Tensor], Tensor]

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return tuple(self.of(ours[0]).shape)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign, self.of(ours[0])


@dataclass(frozen=True)
class Rows:
    """Tensors concatenated along the first axis, [a ‖ b ‖ c]."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return (sum(len(o) for o in ours), *ours[0].shape[1:])

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield from zip(foreign.split([len(o) for o in ours]), ours, strict=True)


@dataclass(frozen=True)
class Chunk:
    """A chunk of concatenated tensors, cut into as many equal chunks as tensors; the last chunk may be shorter.

    Args:
        index: Number of the chunk, from 0.
    """

    index: int

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        rows = self._rows(ours)
        return (rows.stop - rows.start, *ours[0].shape[1:])

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        rows, start = self._rows(ours), 0
        for tensor in ours:
            first, last = max(rows.start, start), min(rows.stop, start + len(tensor))
            if first < last:
                yield (
                    foreign[first - rows.start : last - rows.start],
                    tensor[first - start : last - start],
                )
            start += len(tensor)

    def _rows(self, ours: Sequence[Tensor]) -> range:
        total = sum(map(len, ours))
        size = -(-total // len(ours))
        return range(size * self.index, min(total, size * (self.index + 1)))


@dataclass(frozen=True)
class Transposed:
    """A layout with transposed matrices, as in Conv1D; vectors are unchanged."""

    inner: Layout = Same()

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        *before, rows, columns = (1, *self.inner.shape(ours))
        return (*before, columns, rows)[1:] if before else (columns,)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield from self.inner.pairs(foreign.mT if foreign.ndim > 1 else foreign, ours)


@dataclass(frozen=True)
class Stacked:
    """Stacks of matrices, concatenated within each matrix: [number, a ‖ b, ...].

    Args:
        interleaved: True if rows of a and b alternate.
    """

    interleaved: bool = False

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        first = ours[0].shape
        return (first[0], sum(o.shape[1] for o in ours), *first[2:])

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        number = len(ours)
        if self.interleaved:
            yield from ((foreign[:, i::number], o) for i, o in enumerate(ours))
        else:
            yield from zip(foreign.split([o.shape[1] for o in ours], 1), ours, strict=True)


@dataclass(frozen=True)
class Flattened:
    """A stack of matrices as one matrix, [number * rows, columns].

    Args:
        transposed: True if matrices are transposed: [number * columns, rows].
    """

    transposed: bool = False

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        number, rows, columns = ours[0].shape
        return (number * columns, rows) if self.transposed else (number * rows, columns)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        matrices = foreign.unflatten(0, (len(ours[0]), -1))
        yield matrices.mT if self.transposed else matrices, ours[0]


@dataclass(frozen=True)
class ByGroup(Rows):
    """Tensors concatenated group by group, [a1 ‖ b1 ‖ a2 ‖ b2 ‖ ...].

    Examples: query, key and value of each key-value head (GPT-NeoX, Falcon), or of each shard.

    Args:
        groups: Number of groups; 0: number of heads in the last tensor.
        head_dim: Rows per head.
    """

    groups: int = 0
    head_dim: int = 0

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        number = self.groups or len(ours[-1]) // self.head_dim
        sizes = [len(o) // number for o in ours]
        pieces = foreign.unflatten(0, (number, sum(sizes))).split(sizes, 1)
        for piece, tensor, size in zip(pieces, ours, sizes, strict=True):
            yield piece, tensor.unflatten(0, (number, size))


@dataclass(frozen=True)
class HalvesSwapped(Same):
    """Rows with the two halves of each head swapped, because RoPE rotates in the opposite direction (nanochat)."""

    head_dim: int = 0

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        theirs, rows = (t.unflatten(0, (-1, 2, self.head_dim // 2)) for t in (foreign, ours[0]))
        yield theirs[:, 0], rows[:, 1]
        yield theirs[:, 1], rows[:, 0]


@dataclass(frozen=True)
class FirstRow:
    """A vector as first row of a table; other rows are unused."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return (1, *ours[0].shape)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign[0], ours[0]
