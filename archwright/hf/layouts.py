"""Layouts: how one foreign tensor holds some of ours.

Each gives the foreign shape, and views of the foreign tensor with the views of ours that hold the same
numbers. Copying one way reads, copying the other way writes.
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
    """How a foreign tensor holds `ours`."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        """Return the shape of the foreign tensor."""

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        """Yield views of the foreign tensor, each with the view of ours that equals it."""


@dataclass(frozen=True)
class Same:
    """Our tensor as it is."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return tuple(ours[0].shape)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign, ours[0]


@dataclass(frozen=True)
class View:
    """A view of our tensor."""

    of: Callable[[Tensor], Tensor]

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return tuple(self.of(ours[0]).shape)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign, self.of(ours[0])


@dataclass(frozen=True)
class Rows:
    """Our tensors one below the other, [a ‖ b ‖ c]."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return (sum(len(o) for o in ours), *ours[0].shape[1:])

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield from zip(foreign.split([len(o) for o in ours]), ours, strict=True)


@dataclass(frozen=True)
class Transposed:
    """Another layout whose last two axes are exchanged, as that of a Conv1D; a bias stays as it is."""

    inner: Layout = Same()

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        *before, rows, columns = (1, *self.inner.shape(ours))
        return (*before, columns, rows)[1:] if before else (columns,)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield from self.inner.pairs(foreign.mT if foreign.ndim > 1 else foreign, ours)


@dataclass(frozen=True)
class Stacked:
    """Our stack of matrices, all in one tensor: below each other within each matrix, [number, a ‖ b, ...].

    Args:
        interleaved: rows of a and b take turns.
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
    """Our stack of matrices below each other, [number * rows, columns].

    Args:
        transposed: each of them turned.
    """

    transposed: bool = False

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        number, rows, columns = ours[0].shape
        return (number * columns, rows) if self.transposed else (number * rows, columns)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        each = foreign.unflatten(0, (len(ours[0]), -1))
        yield each.mT if self.transposed else each, ours[0]


@dataclass(frozen=True)
class ByGroup(Rows):
    """Our tensors cut into groups of rows that take turns: in each group some rows of a, of b and of c.

    Query, key and value of each key-value head together (GPT-NeoX, Falcon), or of each of a few shards.

    Args:
        groups: how many there are; 0: as many as heads of `head_dim` in our last tensor.
        head_dim: rows of a head.
    """

    groups: int = 0
    head_dim: int = 0

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        number = self.groups or len(ours[-1]) // self.head_dim
        sizes = [len(o) // number for o in ours]
        pieces = foreign.unflatten(0, (number, sum(sizes))).split(sizes, 1)
        for piece, own, size in zip(pieces, ours, sizes, strict=True):
            yield piece, own.unflatten(0, (number, size))


@dataclass(frozen=True)
class HalvesSwapped(Same):
    """Our rows with the two halves of each head exchanged: what turns the other way (nanochat)."""

    head_dim: int = 0

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        theirs, own = (t.unflatten(0, (-1, 2, self.head_dim // 2)) for t in (foreign, ours[0]))
        yield theirs[:, 0], own[:, 1]
        yield theirs[:, 1], own[:, 0]


@dataclass(frozen=True)
class FirstRow:
    """Our vector as the first row of a table, whose other rows mean nothing here."""

    def shape(self, ours: Sequence[Tensor]) -> Shape:
        return (1, *ours[0].shape)

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign[0], ours[0]


@dataclass(frozen=True)
class FirstRowLast(Same):
    """Our first row behind all others."""

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign[-1], ours[0][0]
        yield foreign[:-1], ours[0][1:]


@dataclass(frozen=True)
class TurnsSwapped(Same):
    """Our groups of rows cut the other way: the first rows of all groups, then the second ones, ...

    Args:
        groups: how many there are.
    """

    groups: int

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        # [rows of a group, groups, ...] each
        theirs = foreign.unflatten(0, (-1, self.groups))
        yield theirs, ours[0].unflatten(0, (self.groups, -1)).transpose(0, 1)
