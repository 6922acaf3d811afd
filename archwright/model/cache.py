"""Cache of a batch of texts: token positions read before, and the state of each mixer.

The mask of a layer decides how many keys and values are kept: all, or only the visible ones.

A text read in pieces gives the logits of the whole text, unless angles depend on its length. LongRoPE changes all
angles beyond its original length: a cache then raises an error, and a new cache must read the whole text. Dynamic NTK
changes the angles slightly with each further token: kept keys rotate by the angles of the current length, as its
authors advise, and the results of deeper layers for earlier tokens remain.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from archwright.parts.context import Context, Memory
from archwright.parts.masks import MaskPattern, prefix_size
from archwright.parts.mixers import Mixer
from archwright.parts.states import KVCache, LayerState, Past
from archwright.parts.token_layout import Read, TokenLayout, token_layout
from archwright.spec.errors import UserError


class Cache:
    """Cache of a batch of texts, made by `Decoder.new_cache` and filled by `forward`.

    Rows may have padding on either side, in any call. The cache keeps real tokens only.

    Args:
        switch_lengths: Lengths that no text may cross between calls; see `Decoder.switch_lengths`.
    """

    def __init__(
        self,
        masks: Mapping[str, MaskPattern],
        mixers: Sequence[Mapping[str, Mixer]],
        switch_lengths: Sequence[int] = (),
    ) -> None:
        for pattern in masks.values():
            if pattern.lookahead != 0 and not prefix_size(pattern):
                raise UserError(
                    f"attention.mask: {type(pattern).__name__} lets tokens see what follows them, so "
                    "that nothing can be written token by token; read texts whole, without a cache"
                )
        for i, layer in enumerate(mixers):
            for name, mixer in layer.items():
                if not mixer.can_cache:
                    raise UserError(
                        f"layers.{i}.{name}: {type(mixer).__name__} keeps nothing of what it has "
                        "read; expected text as a whole, without a cache"
                    )
        self._masks, self._mixers, self._switch_lengths = masks, mixers, switch_lengths
        self.memory: Memory | None = None
        """Output of the encoder, once it has read the source."""
        self._batch = 0
        self._prefix: Tensor | None = None
        self._past = Past()
        self._read: Read | None = None
        self._lengths_so_far: Tensor | None = None
        """Length of the last text of each row, if there are switch lengths."""
        self._states: list[dict[str, LayerState]] = []

    @property
    def num_read(self) -> int:
        """Tokens read, padding included."""
        return self._past.num_read

    @property
    def num_bytes(self) -> int:
        """Bytes of all states."""
        return sum(state.num_bytes for state in self._own_states)

    def states(self, layer: int) -> Mapping[str, LayerState]:
        """Return the states that the mixers of a layer read, by branch."""
        return self._states[layer]

    def _new_states(self, batch: int) -> None:
        for mixers in self._mixers:
            states: dict[str, LayerState] = {}
            for name, mixer in mixers.items():
                source = mixer.reads_state_of
                found = mixer.new_state(batch) if source is None else self._states[source - 1][name]
                assert found is not None, "mixers without a state are refused"
                states[name] = found
            self._states.append(states)

    @property
    def _own_states(self) -> Iterator[LayerState]:
        """Yield each state once, for the layer that updates it."""
        for mixers, states in zip(self._mixers, self._states, strict=False):
            yield from (states[name] for name, m in mixers.items() if m.reads_state_of is None)

    @property
    def can_forget(self) -> bool:
        """True if the last tokens can be taken back: texts are alike, and layers keep all keys as they are."""
        mixers = [mixer for layer in self._mixers for mixer in layer.values()]
        angles_stay = not any(mixer.caches_unrotated for mixer in mixers)
        keeps_all = all(
            isinstance(state, KVCache) and state.max_length is None for state in self._own_states
        )
        alike = self._read is None and self.memory is None and not self._switch_lengths
        return bool(self.num_read) and alike and angles_stay and keeps_all

    def forget(self, number: int) -> None:
        """Take back the last tokens of all texts; later ones overwrite them."""
        assert self.can_forget
        assert number < self.num_read
        self._past.num_read -= number

    def reorder(self, rows: Tensor) -> None:
        """Select texts by number, in a new order; a text may occur more than once. Shape: rows [new_batch]."""
        for state in self._own_states:
            state.reorder(rows)
        for table in self._past.tables.values():
            table.reorder(rows)
        self.memory = None if self.memory is None else self.memory.rows(rows)
        self._read = None if self._read is None else self._read.rows(rows)
        if self._lengths_so_far is not None:
            self._lengths_so_far = self._lengths_so_far[rows]
        self._batch = len(rows)
        self._prefix = None if self._prefix is None else self._prefix[rows]

    def context(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        segment_ids: Tensor | None = None,
        padding_mask: Tensor | None = None,
        prefix_lengths: Tensor | None = None,
    ) -> Context:
        """Return the context of tokens that continue the texts.

        Raises:
            ValueError: Shapes do not match, a prefix is not in one piece, or a text crosses a switch length.
        """
        self._check(tokens, segment_ids, prefix_lengths)
        ragged = self._read is not None or padding_mask is not None or segment_ids is not None
        if ragged and self._read is None:  # so far all rows were alike
            so_far = torch.full_like(tokens[:, 0], self.num_read)
            self._read = Read(so_far, None)
        layout = token_layout(
            tokens,
            position_ids,
            segment_ids,
            padding_mask,
            prefix_lengths,
            start=self.num_read,
            read=self._read,
        )
        batch, length = tokens.shape
        if self._switch_lengths:
            self._check_lengths(layout, batch)
        if not self._states:
            self._new_states(batch)
        past = Past(self.num_read, self._past.tables)
        self._past.num_read += length
        if ragged:
            self._read = _after(layout)
        return Context(layout, batch, past=past, tokens=tokens)

    def _check(
        self, tokens: Tensor, segment_ids: Tensor | None, prefix_lengths: Tensor | None
    ) -> None:
        has_documents = self._read is not None and self._read.document is not None
        if self.num_read and (segment_ids is None) == has_documents:
            found, before = ("none", "some") if has_documents else ("some", "none")
            raise ValueError(
                f"segment_ids: found {found} beside a cache that was filled with {before}; "
                "expected them in every call or in none"
            )
        if not self.num_read:
            self._batch = tokens.shape[0]
        elif tokens.shape[0] != self._batch:
            raise ValueError(f"tokens: found {tokens.shape[0]} rows; the cache holds {self._batch}")
        self._check_prefix(prefix_lengths)

    def _check_lengths(self, layout: TokenLayout, batch: int) -> None:
        """Refuse a text that crosses a switch length: its cached keys have the angles of a shorter text."""
        lengths_so_far = layout.lengths_so_far_or_end().expand(batch, -1)
        first, before = lengths_so_far[:, 0], self._lengths_so_far
        if before is not None:
            same = torch.ones_like(first, dtype=torch.bool)
            if layout.segment_ids is not None:
                assert self._read is not None
                same &= layout.segment_ids[:, 0] == self._read.document
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
        """Refuse a prefix in pieces: its tokens attend to each other, so the first call needs all of it."""
        if not self.num_read:
            self._prefix = prefix_lengths
        elif prefix_lengths is not None:
            raise ValueError(
                "prefix_lengths: found in a later call; expected in the first one alone"
            )
        size = max(map(prefix_size, self._masks.values()), default=0)
        if not (self.num_read and size):
            return
        read = torch.tensor(self.num_read) if self._read is None else self._read.next_index.cpu()
        whole = torch.tensor(size) if self._prefix is None else self._prefix.cpu()
        if (read < whole).any():
            raise ValueError(
                f"tokens: found {int(read.min())} before these, fewer than the prefix of "
                f"{int(whole.max())}; a prefix must be read in one piece: give it whole, or give "
                "prefix_lengths"
            )


def _after(layout: TokenLayout) -> Read:
    """Return the place of the next token of each row."""
    index = layout.index_or_range()
    real = torch.ones_like(index) if layout.padding_mask is None else layout.padding_mask.long()
    last = index[:, -1] + real[:, -1]  # padding already carries the count of what was before it
    return Read(last, None if layout.segment_ids is None else layout.segment_ids[:, -1])
