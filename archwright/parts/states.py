"""States of mixers: KV caches and recurrent states, so that tokens need not be read again.

The contract is two verbs. By `update`, keys and values are extended, a recurrent state is replaced; both skip padding
and begin again with a document, as the layout of the pass says. By `reorder`, rows change places.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from archwright.parts.token_layout import TokenLayout

FIRST_CAPACITY = 64
"""Slots that a growing cache begins with."""

EMPTY = -1
"""The index of a slot without a token."""


@runtime_checkable
class LayerState(Protocol):
    """State of one mixer for a batch of texts; its own `update` says what it takes."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors that are held."""

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Go on with some of the texts, in a new order; a text may come more than once."""


class RecurrentState(LayerState):
    """Tensors [batch, ...] by name, which new tokens replace."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self._held = {name: held[rows] for name, held in self._held.items()}

    def get(self, name: str) -> Tensor | None:
        """Return a tensor as the tokens read before have left it; None before the first."""
        return self._held.get(name)

    def update(self, **new: Tensor) -> None:
        """Keep tensors as the tokens of this pass leave them."""
        self._held.update({name: tensor.detach() for name, tensor in new.items()})


class SourceKV(LayerState):
    """The keys and values of one layer's cross-attention: those of the source, made once and read for each token."""

    def __init__(self) -> None:
        self._held: tuple[Tensor, Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        return sum(held.nbytes for held in self._held or ())

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        if self._held is not None:
            keys, values = self._held
            self._held = keys[rows], values[rows]

    def update(self, new: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the source, which `new` makes the first time."""
        if self._held is None:
            self._held = new()
        return self._held


@dataclass
class Past:
    """How much of a batch of texts was read before a pass, and where its tokens are kept."""

    num_read: int = 0
    """Tokens read before, padding included."""
    tables: "dict[int | None, SlotTable]" = field(default_factory=dict)
    """By how many of the last tokens are kept."""

    def slots(self, max_length: int | None, layout: TokenLayout, batch: int) -> "SlotTable":
        """Return the slots of `max_length`, with room made for the tokens of a pass; once for each pass."""
        table = self.tables.setdefault(max_length, SlotTable(max_length))
        table.take(layout, batch, self.num_read)
        return table


class KVCache(LayerState):
    """The keys and values of one layer, or what they are made from, [batch, slots, heads, width] each.

    Args:
        max_length: how many of the last tokens are kept; None for all.
    """

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = max_length
        self._held: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        return sum(held.nbytes for held in self._held)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self._held = [held[rows] for held in self._held]

    def update(self, slots: "SlotTable", *new: Tensor) -> list[Tensor]:
        """Keep keys and values of new tokens; return those of all tokens that these may see.

        Args:
            slots: where tokens are kept, from `Context.slots(max_length)`.
            new: of the tokens of a pass, behind which those of predicting streams may stand, which are not kept.
        """
        assert slots.slots is not None
        number = slots.slots.shape[1]
        beside = [x[:, number:] for x in new]
        shown = self._update(slots, [x[:, :number] for x in new])
        if not beside[0].shape[1]:
            return shown
        return [torch.cat(both, 1) for both in zip(shown, beside, strict=True)]

    def _update(self, slots: "SlotTable", new: Sequence[Tensor]) -> list[Tensor]:
        if not self._held:
            self._held = [_empty(x, slots.capacity) for x in new]
        elif self._held[0].shape[1] <= slots.capacity:
            for i, held in enumerate(self._held):
                self._held[i] = _empty(held, slots.capacity)
                # The slot more than the capacity, the last, holds nothing that is kept.
                self._held[i][:, : held.shape[1] - 1] = held[:, :-1]
        before = [held[:, : slots.num_before] for held in self._held]
        if slots.seen is not None and slots.joins:
            shown = [torch.cat((held, x), 1) for held, x in zip(before, new, strict=True)]
        assert slots.slots is not None
        for held, x in zip(self._held, new, strict=True):
            held.scatter_(1, slots.slots[:, :, None, None].expand_as(x), x.detach())
        if slots.seen is None:
            return list(new)
        return shown if slots.joins else [held[:, : slots.num_used] for held in self._held]


def _empty(like: Tensor, capacity: int) -> Tensor:
    batch, _, heads, dim = like.shape
    return like.new_zeros(batch, capacity + 1, heads, dim)


@dataclass
class SlotTable:
    """The slots in which all layers of one max_length keep their tokens.

    The n-th real token of a row lies in slot n, or n modulo the max_length: what it replaces there is out of
    sight. One slot more, the last, takes what is not kept.
    """

    max_length: int | None
    capacity: int = 0
    slots: Int[Tensor, "batch length"] | None = None
    """Where the tokens of this call go."""
    num_before: int = 0
    """Slots in use before this call, in the fullest row."""
    num_used: int = 0
    """Slots in use after it."""
    seen: TokenLayout | None = None
    """Where the keys stand that `KVCache.update` returns; None for the new tokens alone."""
    _count: Int[Tensor, " batch"] | None = None
    """Real tokens that each row has read."""
    _fields: dict[str, Tensor] = field(default_factory=dict)
    """Index, position, document and span of the token in each slot, [batch, capacity + 1]."""

    @property
    def joins(self) -> bool:
        """Whether new tokens see more than the table holds, and so are shown beside it."""
        assert self.slots is not None
        return self.max_length is not None and self.slots.shape[1] > 1

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Go on with some of the texts, in a new order; a text may come more than once."""
        self._fields = {name: values[rows] for name, values in self._fields.items()}
        self._count = None if self._count is None else self._count[rows]

    def take(self, where: TokenLayout, batch: int, num_read: int) -> None:
        """Decide where new tokens go, and where the keys stand that they will see."""
        self._grow(num_read + where.length)
        self.num_before = self._limited(num_read)
        self.num_used = self._limited(num_read + where.length)
        new = _fields(where, batch)
        self.slots = self._assigned(where, batch)
        shown_beside = bool(num_read) and self.joins
        before = {
            k: v[:, : self.num_before].clone() for k, v in self._fields.items() if shown_beside
        }
        for name, values in new.items():
            if name not in self._fields:
                self._fields[name] = values.new_full((batch, self.capacity + 1), EMPTY)
            if name == "lengths_so_far":  # what was read of a text grows with it
                self._fields[name].copy_(values[:, :1].expand(-1, self.capacity + 1))
            self._fields[name].scatter_(1, self.slots, values)
        if not num_read:
            self.seen = None
        elif shown_beside:
            joined = {name: torch.cat((before[name], new[name]), 1) for name in new}
            self.seen = _places(joined, where, before["index"] >= 0)
        else:
            kept = {name: values[:, : self.num_used] for name, values in self._fields.items()}
            self.seen = _places(kept, where)

    def _limited(self, number: int) -> int:
        return number if self.max_length is None else min(number, self.max_length)

    def _grow(self, needed: int) -> None:
        """Double the slots until they suffice; a max_length needs no more than itself."""
        before = self.capacity
        while self.capacity < self._limited(needed):
            self.capacity = self._limited(max(FIRST_CAPACITY, 2 * self.capacity, needed))
        if before and self.capacity > before:
            for name, kept in self._fields.items():
                grown = kept.new_full((kept.shape[0], self.capacity + 1), EMPTY)
                grown[:, :before] = kept[:, :before]
                self._fields[name] = grown

    def _assigned(self, where: TokenLayout, batch: int) -> Tensor:
        """Return the slot of each new token: by its number in the row, or the last for what is not kept."""
        real = torch.ones(batch, where.length, dtype=torch.long, device=where.device)
        if where.padding_mask is not None:
            real = where.padding_mask.long()
        count = real.new_zeros(batch) if self._count is None else self._count
        order = count[:, None] + real.cumsum(-1) - real
        self._count = count + real.sum(-1)
        kept = real.bool()
        if self.max_length is not None:
            kept = kept & (order >= self._count[:, None] - self.max_length)
            order = order % self.max_length
        return torch.where(kept, order, self.capacity)


def _fields(where: TokenLayout, batch: int) -> dict[str, Tensor]:
    """Return all that is known of new tokens, [batch, length] each."""
    fields = {
        "index": where.index_or_range(),
        "position_ids": where.position_ids_or_range(),
        "lengths_so_far": where.lengths_so_far_or_end(),
    }
    if where.segment_ids is not None:
        fields["segment_ids"] = where.segment_ids
    return {name: values.expand(batch, -1).long() for name, values in fields.items()}


def _places(
    fields: dict[str, Tensor], where: TokenLayout, held: Tensor | None = None
) -> TokenLayout:
    """Return where keys stand: those in slots, followed by new ones where `held` says which slots are full."""
    valid = None
    if held is not None:
        new = where.padding_mask
        new = held.new_ones(held.shape[0], where.length) if new is None else new
        valid = torch.cat((held, new), 1)
    return TokenLayout(
        fields["index"].shape[1],
        where.device,
        position_ids=fields["position_ids"],
        index=fields["index"],
        segment_ids=fields.get("segment_ids"),
        padding_mask=valid,
        lengths_so_far=fields["lengths_so_far"],
    )
