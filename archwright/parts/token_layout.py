"""Token layouts: the input of masks and position encodings."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """Index, position, document and padding of each token of a batch.

    Masks depend on `index`, the number of real tokens before a token in its document. They are therefore independent of
    padding and packing. Position encodings depend on `position_ids`, by default the index. None is the plain case:
    start, start + 1, ... in every sequence.
    """

    length: int
    device: torch.device
    start: int = 0
    """Index of the first token in the plain case: the number of tokens read before."""
    position_ids: Int[Tensor, "rows length"] | None = None
    index: Int[Tensor, "batch length"] | None = None
    segment_ids: Int[Tensor, "batch length"] | None = None
    padding_mask: Bool[Tensor, "batch length"] | None = None
    prefix: Int[Tensor, " batch"] | None = None
    """Length of each sequence's prefix, if it differs from the mask's."""
    lengths_so_far: Int[Tensor, "rows length"] | None = None
    """Length of each token's text including this pass; see `lengths_so_far_or_end`."""
    ends: Int[Tensor, "rows length"] | None = None
    """Length of each token's text, if the layout contains a part of it; see `text_lengths`."""

    @property
    def plain(self) -> bool:
        """True if visibility depends only on the mask's pattern."""
        narrowed = (self.segment_ids, self.padding_mask, self.prefix)
        return all(tensor is None for tensor in narrowed)

    def columns(self, first: int, stop: int) -> "TokenLayout":
        """Return the layout of columns [first, stop), with the lengths of the complete texts."""

        def some(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[:, first:stop]

        index = some(self.index)
        return TokenLayout(
            stop - first,
            self.device,
            self.start + first,
            position_ids=index if self.position_ids is self.index else some(self.position_ids),
            index=index,
            segment_ids=some(self.segment_ids),
            padding_mask=some(self.padding_mask),
            prefix=self.prefix,
            lengths_so_far=some(self.lengths_so_far_or_end()),
            ends=some(self.text_lengths),
        )

    def joined(self, other: "TokenLayout") -> "TokenLayout":
        """Return the layout of columns of the same texts, and after them of other columns."""

        def both(name: str) -> Tensor | None:
            ours, theirs = getattr(self, name), getattr(other, name)
            return None if ours is None else torch.cat([ours, theirs], -1)

        index = torch.cat([self.index_or_range(), other.index_or_range()], -1)
        named = ("position_ids", "segment_ids", "padding_mask", "lengths_so_far", "ends")
        tensors: dict[str, Any] = {name: both(name) for name in named}
        if self.position_ids is self.index:
            tensors["position_ids"] = index
        length = self.length + other.length
        return replace(self, length=length, index=index, **tensors)

    def rows(self, rows: Int[Tensor, " new_batch"], batch: int) -> "TokenLayout":
        """Select sequences of the batch in a new order; a sequence may occur several times."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        # A tensor with one row serves the whole batch.
        selected: dict[str, Any] = {
            name: tensor[rows] for name, tensor in tensors.items() if len(tensor) == batch
        }
        return replace(self, **selected)

    def position_ids_or_range(self) -> Int[Tensor, "rows length"]:
        """Return positions [batch, length], or [1, length] if all sequences share them."""
        return self._range() if self.position_ids is None else self.position_ids

    def index_or_range(self) -> Int[Tensor, "rows length"]:
        """Return the index [batch, length], or [1, length] if all sequences share it."""
        return self._range() if self.index is None else self.index

    @property
    def text_lengths(self) -> Int[Tensor, "rows length"]:
        """Number of tokens of each token's text, without padding."""
        if self.ends is not None:
            return self.ends
        index = self.index_or_range()
        if self.segment_ids is None and self.padding_mask is None:
            return torch.full_like(index, self.start + self.length)
        real = torch.ones_like(index) if self.padding_mask is None else self.padding_mask.long()
        real = real.expand(index.shape)
        if self.segment_ids is None:
            return real.sum(-1, keepdim=True).expand(index.shape)
        document = document_starts(self.segment_ids).cumsum(-1) - 1  # from 0
        totals = torch.zeros_like(document).scatter_add(-1, document, real)
        return totals.gather(-1, document)

    def lengths_so_far_or_end(self) -> Int[Tensor, "rows length"]:
        """Return the last position of each token's document plus 1: its length including this pass."""
        if self.lengths_so_far is not None:
            return self.lengths_so_far
        ends = self.position_ids_or_range() + 1
        if self.segment_ids is None:
            if self.padding_mask is not None:
                # Positions of padding do not count.
                ends = torch.where(self.padding_mask, ends, 0)
            return ends.amax(-1, keepdim=True).expand(-1, self.length)
        ends = ends.expand(self.segment_ids.shape)
        if self.padding_mask is not None:
            ends = ends.masked_fill(~self.padding_mask, 0)
        # Positions increase within a document, so its end is the maximum over its tokens.
        stretch = document_starts(self.segment_ids).cumsum(-1)
        last = torch.zeros_like(stretch).scatter_reduce(-1, stretch - 1, ends, "amax")
        return last.gather(-1, stretch - 1)

    def _range(self) -> Tensor:
        return torch.arange(self.start, self.start + self.length, device=self.device)[None]


@dataclass(frozen=True)
class Read:
    """Next index of each sequence in its last document, after the tokens read before."""

    next_index: Int[Tensor, " batch"]
    document: Int[Tensor, " batch"] | None
    """Last document of each sequence; None without `segment_ids`."""

    def rows(self, rows: Int[Tensor, " new_batch"]) -> "Read":
        """Select sequences in a new order."""
        document = None if self.document is None else self.document[rows]
        return Read(self.next_index[rows], document)


def token_layout(
    tokens: Int[Tensor, "batch length"],
    position_ids: Int[Tensor, "*rows length"] | None = None,
    segment_ids: Int[Tensor, "batch length"] | None = None,
    padding_mask: Bool[Tensor, "batch length"] | None = None,
    prefix_lengths: Int[Tensor, " batch"] | None = None,
    *,
    start: int = 0,
    read: Read | None = None,
) -> TokenLayout:
    """Return the layout of a batch of tokens.

    Args:
        position_ids: positions of shape [batch, length] or [length] (default: the index).
        segment_ids: document of each token. Documents do not see each other; each is a contiguous part of its sequence.
        padding_mask: True for real tokens, False for padding.
        prefix_lengths: number of tokens in the prefix of each sequence, for prefix masks.
        start: number of tokens read before, if equal for all sequences.
        read: tokens read before, if different between sequences.

    Raises:
        ValueError: a shape does not match the tokens.
    """
    _check(tokens, position_ids, segment_ids, padding_mask, prefix_lengths)
    padding_mask = None if padding_mask is None else padding_mask.bool()
    index = None
    if padding_mask is not None or segment_ids is not None or read is not None:
        index = _index(tokens, segment_ids, padding_mask, read)
    if position_ids is None:
        position_ids = index
    elif position_ids.ndim == 1:
        position_ids = position_ids[None]
    return TokenLayout(
        tokens.shape[1],
        tokens.device,
        start,
        position_ids,
        index,
        segment_ids,
        padding_mask,
        prefix_lengths,
    )


def rows_at(x: Tensor, at: Int[Tensor, "batch chosen"]) -> Tensor:
    """Gather tokens of x [batch, length, ...] from columns: [batch, chosen, ...]."""
    # [batch, chosen] -> [batch, chosen, 1, ...] -> [batch, chosen, ...]
    index = at.view(*at.shape, *[1] * (x.ndim - 2)).expand(*at.shape, *x.shape[2:])
    return x.gather(1, index)


def document_starts(segment_ids: Int[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
    """Return True for the first token of each document."""
    starts = torch.ones_like(segment_ids, dtype=torch.bool)
    starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return starts


def _check(
    tokens: Tensor,
    position_ids: Tensor | None,
    segment_ids: Tensor | None,
    padding_mask: Tensor | None,
    prefix_lengths: Tensor | None,
) -> None:
    if tokens.ndim != 2:
        raise ValueError(f"tokens: found shape {list(tokens.shape)}; expected [batch, length]")
    for name, tensor in [("segment_ids", segment_ids), ("padding_mask", padding_mask)]:
        if tensor is not None and tensor.shape != tokens.shape:
            raise ValueError(
                f"{name}: found shape {list(tensor.shape)}; "
                f"expected that of the tokens, {list(tokens.shape)}"
            )
    if prefix_lengths is not None and prefix_lengths.shape != tokens.shape[:1]:
        raise ValueError(
            f"prefix_lengths: found shape {list(prefix_lengths.shape)}; "
            f"expected one number for each row, [{tokens.shape[0]}]"
        )
    rows, length = tokens.shape
    if position_ids is None or position_ids.shape in ((length,), (1, length), (rows, length)):
        return
    shape = list(position_ids.shape if position_ids.ndim > 1 else position_ids[None].shape)
    raise ValueError(
        f"position_ids: found shape {shape}; expected {list(tokens.shape)} or [{length}]"
    )


def _index(
    tokens: Tensor, segment_ids: Tensor | None, padding_mask: Tensor | None, read: Read | None
) -> Tensor:
    """Count the real tokens before each token in its document, including tokens read before."""
    real = torch.ones_like(tokens) if padding_mask is None else padding_mask.long()
    before = real.cumsum(-1) - real
    carried = 0 if read is None else read.next_index[:, None]
    if segment_ids is None:
        return before + carried
    starts = document_starts(segment_ids)
    if read is not None and read.document is not None:
        # The first token may continue the document of the previous pass.
        starts[:, 0] = (segment_ids[:, 0] != read.document) | (read.next_index == 0)
    started = starts.cumsum(-1) > 0
    # Real tokens of this pass before the document of each token.
    first = torch.where(starts, before, 0).cummax(-1).values
    return before - first + torch.where(started, 0, carried)
