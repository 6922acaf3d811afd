"""States of mixers: KV caches and recurrent states, so that each token is read once.

A state has two operations. `update` extends keys and values, or replaces a recurrent state. It skips padding and
restarts with each document, according to the layout of the pass. `reorder` selects sequences of the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from archwright.parts.token_layout import TokenLayout

FIRST_CAPACITY = 64
"""Initial number of slots of a growing cache."""

EMPTY = -1
"""Index of a slot without a token."""


@runtime_checkable
class LayerState(Protocol):
    """State of one mixer for a batch; the arguments of `update` depend on the class."""

    @property
    def num_bytes(self) -> int:
        """Size of the stored tensors."""

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Select sequences of the batch in a new order; a sequence may occur several times."""


class RecurrentState(LayerState):
    """Tensors [batch, ...] by name, replaced in each pass."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self._held = {name: held[rows] for name, held in self._held.items()}

    def get(self, name: str) -> Tensor | None:
        """Return a tensor of the previous pass; None before the first pass."""
        return self._held.get(name)

    def update(self, **new: Tensor) -> None:
        """Store the tensors of this pass."""
        self._held.update({name: tensor.detach() for name, tensor in new.items()})


class SourceKV(LayerState):
    """Keys and values of the source in cross-attention, computed once."""

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
        """Return the keys and values of the source; the first call computes them with `new`."""
        if self._held is None:
            self._held = new()
        return self._held


@dataclass
class Past:
    """Number of tokens that a batch has read, and the slots of its cached tokens."""

    num_read: int = 0
    """Tokens read before this pass, padding included."""
    tables: "dict[int | None, SlotTable]" = field(default_factory=dict)
    """Slot tables by the length of their caches (None: unbounded)."""

    def slots(self, max_length: int | None, layout: TokenLayout, batch: int) -> "SlotTable":
        """Assign slots to the tokens of a pass and return their table; called once per pass."""
        table = self.tables.setdefault(max_length, SlotTable(max_length))
        table.take(layout, batch, self.num_read)
        return table


class KVCache(LayerState):
    """Keys and values of one layer, or latents for them: [batch, heads, slots, width] each.

    All slots of a head lie together, as a new token reads them.

    Args:
        max_length: number of most recent tokens to store; None: all.
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
        """Store keys and values of new tokens; return all keys and values that these tokens may see.

        Args:
            slots: slot table from `Context.slots(max_length)`.
            new: keys and values of the pass, [batch, length, heads, width] like the result.
        """
        by_head = [x.detach().transpose(1, 2) for x in new]  # [batch, heads, length, width]
        self._reserve(slots.capacity, by_head)
        # Concatenated before new tokens overwrite slots that some queries still see.
        if slots.seen is not None and slots.joins:
            # [batch, slots, heads, width]
            before = [held[:, :, : slots.num_before].transpose(1, 2) for held in self._held]
            shown = [torch.cat((held, x), 1) for held, x in zip(before, new, strict=True)]
        for held, x in zip(self._held, by_head, strict=True):
            slots.store(held, x)
        if slots.seen is None:
            return list(new)
        if slots.joins:
            return shown
        # [batch, heads, slots, width] -> [batch, slots, heads, width]
        return [held[:, :, : slots.num_used].transpose(1, 2) for held in self._held]

    def update_one(self, slots: "SlotTable", *new: Tensor) -> list[Tensor]:
        """Store a further token of each sequence; return all keys and values.

        Shapes: [batch, heads, 1, width], and the result [batch, heads, slots, width].
        """
        self._reserve(slots.capacity, new)
        for held, x in zip(self._held, new, strict=True):
            slots.store(held, x)
        return [held[:, :, : slots.num_used] for held in self._held]

    def _reserve(self, capacity: int, new: Sequence[Tensor]) -> None:
        """Make room for all slots of a table."""
        if not self._held:
            self._held = [_empty(x, capacity) for x in new]
        elif self._held[0].shape[2] <= capacity:
            for i, held in enumerate(self._held):
                self._held[i] = _empty(held, capacity)
                # The last slot collects tokens that are not stored, so it is not copied.
                self._held[i][:, :, : held.shape[2] - 1] = held[:, :, :-1]


def _empty(like: Tensor, capacity: int) -> Tensor:
    batch, heads, _, dim = like.shape
    return like.new_zeros(batch, heads, capacity + 1, dim)


@dataclass
class SlotTable:
    """Slots of cached tokens, shared by all layers with the same max_length.

    The n-th real token of a sequence has slot n, or n modulo max_length, and replaces a token that is out of sight.
    Tokens that are not stored go to an extra slot at the end. While all sequences are alike (no padding, documents or
    positions of their own), their slots follow from the number of tokens read, and no tensors are kept.
    """

    max_length: int | None
    capacity: int = 0
    num_before: int = 0
    """Used slots before this pass, in the fullest sequence."""
    num_used: int = 0
    """Used slots after this pass."""
    joins: bool = False
    """True if the keys are the slots before this pass followed by the new tokens."""
    seen: TokenLayout | None = None
    """Layout of the keys that `KVCache.update` returns; None if these are only the new tokens."""
    _slots: slice | Tensor | None = None
    """Slots of the last tokens of this pass, [stored]; of each token, if sequences differ, [batch, length]."""
    _count: Int[Tensor, " batch"] | None = None
    """Real tokens read by each sequence; None while all are alike."""
    _fields: dict[str, Tensor] = field(default_factory=dict)
    """Index, position, document and text length of the token in each slot, [batch, capacity + 1]."""

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Select sequences of the batch in a new order; a sequence may occur several times."""
        self._fields = {name: values[rows] for name, values in self._fields.items()}
        self._count = None if self._count is None else self._count[rows]

    def store(self, held: Tensor, x: Tensor) -> None:
        """Copy new keys or values x [batch, heads, length, width] into their slots."""
        slots = self._slots
        assert slots is not None
        if isinstance(slots, slice):
            held[:, :, slots] = x
        elif slots.ndim == 1:
            held[:, :, slots] = x[:, :, -len(slots) :]
        else:  # [batch, length] -> [batch, heads, length, width]
            held.scatter_(2, slots[:, None, :, None].expand_as(x), x)

    def take(self, layout: TokenLayout, batch: int, num_read: int) -> None:
        """Assign slots to new tokens, and compute the layout of the keys that they see."""
        self._grow(num_read + layout.length)
        self.num_before = self._limited(num_read)
        self.num_used = self._limited(num_read + layout.length)
        # In a bounded cache, the last tokens of a pass overwrite slots that the first ones see.
        self.joins = self.max_length is not None and layout.length > 1
        fields = (layout.index, layout.position_ids, layout.segment_ids, layout.padding_mask)
        if self._count is None and all(tensor is None for tensor in fields):
            self._take_alike(layout, num_read)
            return
        if self._count is None:
            self._begin_table(layout, batch, num_read)
        new = _fields(layout, batch)
        self._slots = self._assigned(layout, batch)
        shown_beside = bool(num_read) and self.joins
        before = {
            k: v[:, : self.num_before].clone() for k, v in self._fields.items() if shown_beside
        }
        for name, values in new.items():
            if name not in self._fields:
                self._fields[name] = values.new_full((batch, self.capacity + 1), EMPTY)
            if name == "lengths_so_far":  # new tokens lengthen the text of old ones
                self._fields[name].copy_(values[:, :1].expand(-1, self.capacity + 1))
            self._fields[name].scatter_(1, self._slots, values)
        if not num_read:
            self.seen = None
        elif shown_beside:
            joined = {name: torch.cat((before[name], new[name]), 1) for name in new}
            self.seen = _places(joined, layout, before["index"] >= 0)
        else:
            used = {name: values[:, : self.num_used] for name, values in self._fields.items()}
            self.seen = _places(used, layout)

    def _take_alike(self, layout: TokenLayout, num_read: int) -> None:
        """Assign slots where all sequences are alike."""
        total = num_read + layout.length
        size, device = self.max_length, layout.device
        if size is None or total <= size:
            self._slots = slice(num_read, total)
        elif layout.length == 1:
            self._slots = slice(num_read % size, num_read % size + 1)
        else:  # the last tokens of a long pass only
            self._slots = torch.arange(max(num_read, total - size), total, device=device) % size
        if not num_read:
            self.seen = None
        elif size is None or total <= size:
            self.seen = TokenLayout(total, device)
        else:
            # [1, slots], then the new tokens
            index = _in_slots(num_read if self.joins else total, self.num_before, size, device)
            if self.joins:
                index = torch.cat((index, torch.arange(num_read, total, device=device)[None]), 1)
            so_far = torch.full_like(index, total)
            self.seen = TokenLayout(
                index.shape[1], device, position_ids=index, index=index, lengths_so_far=so_far
            )

    def _begin_table(self, layout: TokenLayout, batch: int, num_read: int) -> None:
        """Begin to keep the fields of each slot, because sequences begin to differ."""
        self._count = torch.full((batch,), num_read, device=layout.device)
        if not num_read:
            return
        index = torch.full((batch, self.capacity + 1), EMPTY, device=layout.device)
        size = num_read if self.max_length is None else self.max_length
        index[:, : self.num_before] = _in_slots(num_read, self.num_before, size, layout.device)
        self._fields = {name: index.clone() for name in ("index", "position_ids", "lengths_so_far")}

    def _limited(self, number: int) -> int:
        return number if self.max_length is None else min(number, self.max_length)

    def _grow(self, needed: int) -> None:
        """Double the number of slots until it suffices, up to `max_length`."""
        before = self.capacity
        while self.capacity < self._limited(needed):
            self.capacity = self._limited(max(FIRST_CAPACITY, 2 * self.capacity, needed))
        if before and self.capacity > before:
            for name, values in self._fields.items():
                grown = values.new_full((values.shape[0], self.capacity + 1), EMPTY)
                grown[:, :before] = values[:, :before]
                self._fields[name] = grown

    def _assigned(self, layout: TokenLayout, batch: int) -> Tensor:
        """Return the slot of each new token; the last slot if it is not stored."""
        real = torch.ones(batch, layout.length, dtype=torch.long, device=layout.device)
        if layout.padding_mask is not None:
            real = layout.padding_mask.long()
        assert self._count is not None
        # Number of each token among the real tokens of its sequence, from 0.
        order = self._count[:, None] + real.cumsum(-1) - real
        self._count = self._count + real.sum(-1)
        stored = real.bool()
        if self.max_length is not None:
            # A long pass stores its last tokens only: two tokens must not share a slot.
            stored = stored & (order >= self._count[:, None] - self.max_length)
            order = order % self.max_length
        return torch.where(stored, order, self.capacity)


def _in_slots(num_read: int, used: int, size: int, device: torch.device) -> Tensor:
    """Return the index of the latest of `num_read` tokens in each slot, [1, used]."""
    slots = torch.arange(used, device=device)[None]
    return num_read - 1 - (num_read - 1 - slots) % size


def _fields(layout: TokenLayout, batch: int) -> dict[str, Tensor]:
    """Return the fields of new tokens, [batch, length] each."""
    fields = {
        "index": layout.index_or_range(),
        "position_ids": layout.position_ids_or_range(),
        "lengths_so_far": layout.lengths_so_far_or_end(),
    }
    if layout.segment_ids is not None:
        fields["segment_ids"] = layout.segment_ids
    return {name: values.expand(batch, -1).long() for name, values in fields.items()}


def _places(
    fields: dict[str, Tensor], layout: TokenLayout, held: Tensor | None = None
) -> TokenLayout:
    """Return the layout of keys in slots, followed by new tokens if `held` marks the filled slots."""
    valid = None
    if held is not None:
        new = layout.padding_mask
        new = held.new_ones(held.shape[0], layout.length) if new is None else new
        valid = torch.cat((held, new), 1)
    return TokenLayout(
        fields["index"].shape[1],
        layout.device,
        position_ids=fields["position_ids"],
        index=fields["index"],
        segment_ids=fields.get("segment_ids"),
        padding_mask=valid,
        lengths_so_far=fields["lengths_so_far"],
    )
