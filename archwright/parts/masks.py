"""Masks. One description each: a predicate on (query, key), from which the dense mask, the block
structure of a fast kernel and the FLOP count follow."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from archwright.parts.places import Places
from archwright.spec import masks as spec


@runtime_checkable
class Pattern(Protocol):
    """Which keys a query may see, by their index in the row."""

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True where the query at `query` may see the key at `key` (shapes broadcast)."""

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        """Return the range [start, stop) outside which queries first .. last see no key."""

    def pairs(self, length: int) -> int:
        """Return how many (query, key) pairs a text of `length` tokens has."""


class Causal:
    """key <= query."""

    def __init__(self, spec: spec.Causal) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        return 0, min(last + 1, length)

    def pairs(self, length: int) -> int:
        return length * (length + 1) // 2


class Window:
    """query - size < key <= query: `size` keys, the query's own included."""

    def __init__(self, spec: spec.Window) -> None:
        self.spec = spec

    def visible(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - self.spec.size)

    def keys(self, first: int, last: int, length: int) -> tuple[int, int]:
        return max(0, first - self.spec.size + 1), min(last + 1, length)

    def pairs(self, length: int) -> int:
        size = min(self.spec.size, length)
        return size * length - size * (size - 1) // 2


MASKS: dict[type[spec.Mask], Any] = {spec.Causal: Causal, spec.Window: Window}


@dataclass(frozen=True)
class View:
    """A mask over the places of one batch: what each query sees, whole or block by block.

    Padding sees itself and is seen by nothing else, so no row of weights is ever empty.
    """

    pattern: Pattern
    places: Places

    @property
    def is_plain_causal(self) -> bool:
        """Whether this is the causal mask and nothing more, which kernels know by name."""
        return self.places.plain and isinstance(self.pattern, Causal)

    @cached_property
    def dense(self) -> Bool[Tensor, "rows 1 length length"]:
        """The whole mask: True where a query (third axis) sees a key (fourth axis)."""
        return self.block(0, self.places.length, 0, self.places.length)

    def block(
        self, first: int, stop: int, key_first: int, key_stop: int
    ) -> Bool[Tensor, "rows 1 queries keys"]:
        """Return the mask between queries [first, stop) and keys [key_first, key_stop)."""
        index = self.places.index_or_range()
        queries, keys = slice(first, stop), slice(key_first, key_stop)
        seen = self.pattern.visible(index[:, queries, None], index[:, None, keys])
        if self.places.documents is not None:
            documents = self.places.documents
            seen = seen & (documents[:, queries, None] == documents[:, None, keys])
        if self.places.valid is not None:
            valid = self.places.valid
            seen = seen & valid[:, queries, None] & valid[:, None, keys]
            seen = seen | _diagonal(seen, first, key_first)
        return seen[:, None]

    def keys(self, first: int, stop: int) -> tuple[int, int]:
        """Return the range of keys outside which queries [first, stop) see nothing.

        With padding, index and place in the row differ, and only a mask that hides all that follows
        still bounds the range.
        """
        length = self.places.length
        start, end = self.pattern.keys(first, stop - 1, length)
        if self.places.valid is not None:
            return 0, stop if end <= stop else length
        return start, end


def _diagonal(like: Tensor, first: int, key_first: int) -> Tensor:
    rows = torch.arange(first, first + like.shape[-2], device=like.device)
    columns = torch.arange(key_first, key_first + like.shape[-1], device=like.device)
    return rows[:, None] == columns[None]
