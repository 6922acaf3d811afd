"""KV cache.

Its contract is one verb, `update`: a layer hands over the keys and values of new tokens, or what it makes
them from, and gets back those of all tokens that they may see. How much is kept follows from the layer's
mask: all, or as many of the last tokens as the mask reaches back.

Read in pieces, a text gives what it gives in one piece, but where angles depend on its length. LongRoPE has
other angles for all positions of a text longer than its original length, so that what was read of a shorter
one counts no more: a cache refuses to be carried over that length, and the whole text goes into a new one.
Dynamic NTK has slightly other angles for every further token: kept keys turn by those of the text so far, as
its authors advise, while what deeper layers made of earlier tokens stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from archwright.parts.masks import AttentionMask, Causal, MaskPattern, Prefix, Window
from archwright.parts.token_layout import Read, TokenLayout, places
from archwright.spec.errors import UserError

FIRST_CAPACITY = 64
"""Slots that a growing cache begins with."""

EMPTY = -1
"""The index of a slot without a token."""


class Cache:
    """What a model has read of a batch of texts; `Decoder.new_cache` makes one, `forward` fills it.

    Rows may have padding on either side, in any call. What is kept of a row is its real tokens.

    Args:
        switch_lengths: lengths of a text that it may not grow beyond between calls; see
            `Decoder.switch_lengths`.
    """

    def __init__(
        self,
        masks: Mapping[str, MaskPattern],
        mask_of_layer: Iterable[str],
        switch_lengths: Sequence[int] = (),
    ) -> None:
        for pattern in masks.values():
            if pattern.lookahead != 0 and not isinstance(pattern, Prefix):
                raise UserError(
                    f"attention.mask: {type(pattern).__name__} lets tokens see what follows them, so "
                    "that nothing can be written token by token; read texts whole, without a cache"
                )
        self.num_read = 0
        """Tokens read, padding included."""
        self._masks, self._switch_lengths = masks, switch_lengths
        self._read: Read | None = None
        self._lengths_so_far: Tensor | None = None
        """How long the text of each row is that was read last, where that is asked for."""
        self._shelves: dict[int | None, SlotTable] = {}
        names = list(mask_of_layer)
        for name in filter(None, names):
            max_length = _max_length(masks[name])
            self._shelves.setdefault(max_length, SlotTable(max_length))
        self._layers = [
            LayerCache(self._shelves[_max_length(masks[name])]) if name else None for name in names
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values that are held."""
        return sum(layer.num_bytes for layer in self._layers if layer is not None)

    def layer(self, number: int) -> LayerCache | None:
        """Return the memory of one layer; a layer without attention has none."""
        return self._layers[number]

    def places(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        segment_ids: Tensor | None,
        padding_mask: Tensor | None,
        prefix_lengths: Tensor | None,
    ) -> TokenLayout:
        """Return where new tokens stand behind those that were read, and make room for them.

        Raises:
            ValueError: shapes that do not fit, a prefix that is not read in one piece, or a text that grows
                beyond a switch length.
        """
        self._check(tokens, segment_ids, prefix_lengths)
        ragged = self._read is not None or padding_mask is not None or segment_ids is not None
        if ragged and self._read is None:  # so far all rows were alike
            so_far = torch.full_like(tokens[:, 0], self.num_read)
            self._read = Read(so_far, None)
        where = places(
            tokens,
            positions,
            segment_ids,
            padding_mask,
            prefix_lengths,
            start=self.num_read,
            read=self._read,
        )
        if self._switch_lengths:
            self._check_lengths(where, tokens.shape[0])
        for shelf in self._shelves.values():
            shelf.take(where, tokens.shape[0], self.num_read)
        self.num_read += tokens.shape[1]
        if ragged:
            self._read = _after(where)
        return where

    def view(self, name: str, where: TokenLayout) -> AttentionMask:
        """Return what new tokens see through a mask."""
        pattern = self._masks[name]
        # Where all rows are alike, one new token sees all that is kept for a mask without gaps.
        alone = where.length == 1 and self._read is None
        whole = alone and isinstance(pattern, Causal | Window)
        return AttentionMask(
            pattern, where, self._shelves[_max_length(pattern)].seen, is_full=whole
        )

    def _check(
        self, tokens: Tensor, segment_ids: Tensor | None, prefix_lengths: Tensor | None
    ) -> None:
        told_apart = self._read is not None and self._read.document is not None
        if self.num_read and (segment_ids is None) == told_apart:
            found, before = ("none", "some") if told_apart else ("some", "none")
            raise ValueError(
                f"segment_ids: found {found} beside a cache that was filled with {before}; "
                "expected them in every call or in none"
            )
        if not self.num_read:
            self._batch = tokens.shape[0]
        elif tokens.shape[0] != self._batch:
            raise ValueError(f"tokens: found {tokens.shape[0]} rows; the cache holds {self._batch}")
        self._check_prefix(prefix_lengths)

    def _check_lengths(self, where: TokenLayout, batch: int) -> None:
        """What was read of a text before it grew beyond a switch length was read with other angles."""
        lengths_so_far = where.lengths_so_far_or_end().expand(batch, -1)
        first, before = lengths_so_far[:, 0], self._lengths_so_far
        if before is not None:
            same = torch.ones_like(first, dtype=torch.bool)
            if where.segment_ids is not None:
                assert self._read is not None
                same &= where.segment_ids[:, 0] == self._read.document
            for length in self._switch_lengths:
                crossed = same & (before > 0) & (before <= length) & (first > length)
                if crossed.any():
                    row = int(crossed.nonzero()[0])
                    raise ValueError(
                        f"tokens: row {row} has {int(before[row])} tokens in the cache and grows to "
                        f"{int(first[row])}; beyond {length} tokens LongRoPE has other angles for the whole "
                        "text: give all of it to a new cache"
                    )
        last = lengths_so_far[:, -1]
        self._lengths_so_far = last if before is None else torch.where(last > 0, last, before)

    def _check_prefix(self, prefix_lengths: Tensor | None) -> None:
        """A prefix sees itself whole, so it must come whole, in the first call."""
        if not self.num_read:
            self._prefix = prefix_lengths
        elif prefix_lengths is not None:
            raise ValueError(
                "prefix_lengths: found in a later call; expected in the first one alone"
            )
        sizes = [mask.size for mask in self._masks.values() if isinstance(mask, Prefix)]
        if not (self.num_read and sizes):
            return
        read = torch.tensor(self.num_read) if self._read is None else self._read.next_index.cpu()
        whole = torch.tensor(max(sizes)) if self._prefix is None else self._prefix.cpu()
        if (read < whole).any():
            raise ValueError(
                f"tokens: found {int(read.min())} before these, fewer than the prefix of "
                f"{int(whole.max())}; a prefix must be read in one piece: give it whole, or give "
                "prefix_lengths"
            )


def _max_length(pattern: MaskPattern) -> int | None:
    """Return how many of the last tokens a mask can still show; None for all."""
    return None if pattern.lookback is None else pattern.lookback + 1


def _after(where: TokenLayout) -> Read:
    """Return where the next token of each row would stand."""
    index = where.index_or_range()
    real = torch.ones_like(index) if where.padding_mask is None else where.padding_mask.long()
    last = index[:, -1] + real[:, -1]  # padding already carries the count of what was before it
    return Read(last, None if where.segment_ids is None else where.segment_ids[:, -1])


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
    """Where the keys stand that `update` returns; None for the new tokens alone."""
    _count: Int[Tensor, " batch"] | None = None
    """Real tokens that each row has read."""
    _fields: dict[str, Tensor] = field(default_factory=dict)
    """Index, position, document and span of the token in each slot, [batch, capacity + 1]."""

    @property
    def joins(self) -> bool:
        """Whether new tokens see more than the shelf holds, and so are shown beside it."""
        assert self.slots is not None
        return self.max_length is not None and self.slots.shape[1] > 1

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


class LayerCache:
    """The keys and values of one layer, or what they are made from, [batch, slots, heads, width] each."""

    def __init__(self, shelf: SlotTable) -> None:
        self._shelf = shelf
        self._held: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Bytes that are held."""
        return sum(held.nbytes for held in self._held)

    def update(self, *new: Tensor) -> list[Tensor]:
        """Keep keys and values of new tokens; return those of all tokens that these may see."""
        shelf = self._shelf
        if not self._held:
            self._held = [_empty(x, shelf.capacity) for x in new]
        elif self._held[0].shape[1] <= shelf.capacity:
            self._held = [_grown(held, shelf.capacity) for held in self._held]
        before = [held[:, : shelf.num_before] for held in self._held]
        if shelf.seen is not None and shelf.joins:
            shown = [torch.cat((held, x), 1) for held, x in zip(before, new, strict=True)]
        assert shelf.slots is not None
        for held, x in zip(self._held, new, strict=True):
            held.scatter_(1, shelf.slots[:, :, None, None].expand_as(x), x.detach())
        if shelf.seen is None:
            shown = list(new)
        elif not shelf.joins:
            shown = [held[:, : shelf.num_used] for held in self._held]
        return shown


def _empty(like: Tensor, capacity: int) -> Tensor:
    batch, _, heads, dim = like.shape
    return like.new_zeros(batch, capacity + 1, heads, dim)


def _grown(held: Tensor, capacity: int) -> Tensor:
    grown = _empty(held, capacity)
    grown[:, : held.shape[1] - 1] = held[:, :-1]
    return grown


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
