"""Where the tokens of a batch stand: what masks and position encodings are computed from."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """Where the tokens of a batch stand.

    Visibility follows `index`, the count of real tokens before a token in its document, so that it is
    the same with padding on either side and in a packed row. Encodings follow `position_ids`, which are
    the index unless they are given. None stands for the plain case: start, start + 1, ... in every row.
    """

    length: int
    device: torch.device
    start: int = 0
    """The index of the first token in the plain case: how many tokens were read before."""
    position_ids: Int[Tensor, "rows length"] | None = None
    index: Int[Tensor, "batch length"] | None = None
    segment_ids: Int[Tensor, "batch length"] | None = None
    padding_mask: Bool[Tensor, "batch length"] | None = None
    prefix: Int[Tensor, " batch"] | None = None
    """Length of each row's prefix, where a batch brings its own."""
    lengths_so_far: Int[Tensor, "rows length"] | None = None
    """How long each token's text is so far; see `lengths_so_far_or_end`."""
    ends: Int[Tensor, "rows length"] | None = None
    """How many tokens the text of each token has, where others of its row are not among these; see `text_lengths`."""
    text: "TokenLayout | None" = None
    """Where the text's tokens stand, the first of these, where vectors of predicting streams stand behind them; each
    of those is seen by itself alone."""

    @property
    def plain(self) -> bool:
        """Whether only the mask itself decides what is seen."""
        narrowed = (self.segment_ids, self.padding_mask, self.prefix, self.text)
        return all(given is None for given in narrowed)

    @property
    def num_predicting(self) -> int:
        """How many of these, the last ones, are vectors of predicting streams."""
        return 0 if self.text is None else self.length - self.text.length

    def with_streams(self, number: int) -> "TokenLayout":
        """Return where these tokens stand with a vector of so many predicting streams for each behind them: a position
        further on than the token, and, of the i-th stream, with the index of the token i - 1 places before, or of the
        first."""
        index, positions = self.index_or_range(), self.position_ids_or_range()

        def repeated(given: Tensor | None) -> Tensor | None:
            return None if given is None else given.repeat(1, 1 + number)

        return TokenLayout(
            (1 + number) * self.length,
            self.device,
            position_ids=torch.cat((positions, *[positions + 1] * number), 1),
            index=torch.cat((index, *((index - i).clamp(min=0) for i in range(number))), 1),
            segment_ids=repeated(self.segment_ids),
            padding_mask=repeated(self.padding_mask),
            lengths_so_far=repeated(self.lengths_so_far_or_end().expand(-1, self.length)),
            text=self,
        )

    def behind(self, kept: "TokenLayout") -> "TokenLayout":
        """Return where keys stand that a cache keeps, with the vectors of predicting streams of a pass behind them."""
        if self.text is None:
            return kept
        rows = max(len(kept.index_or_range()), len(self.index_or_range()))
        number = self.text.length

        def joined(name: str, before: Tensor | None) -> Tensor | None:
            own = getattr(self, name)
            if before is None and own is None:
                return None
            if before is None:  # no padding is kept
                before = own.new_ones(rows, kept.length)
            own = torch.ones_like(before[:, :1]).expand(-1, self.length) if own is None else own
            return torch.cat((before.expand(rows, -1), own[:, number:].expand(rows, -1)), 1)

        return TokenLayout(
            kept.length + self.num_predicting,
            self.device,
            position_ids=joined("position_ids", kept.position_ids_or_range()),
            index=joined("index", kept.index_or_range()),
            segment_ids=joined("segment_ids", kept.segment_ids),
            padding_mask=joined("padding_mask", kept.padding_mask),
            lengths_so_far=joined("lengths_so_far", kept.lengths_so_far),
            text=kept,
        )

    def columns(self, first: int, stop: int) -> "TokenLayout":
        """Return where the tokens in columns [first, stop) stand, in texts of which the others are not among them."""

        def some(given: Tensor | None) -> Tensor | None:
            return None if given is None else given[:, first:stop]

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

    def rows(self, rows: Int[Tensor, " new_batch"], batch: int) -> "TokenLayout":
        """Return the layout of some of the rows of a batch, in a new order; a row may come more than once."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: array for name, array in given.items() if isinstance(array, Tensor)}
        own: dict[str, Any] = {
            name: array[rows] for name, array in arrays.items() if len(array) == batch
        }
        return replace(self, **own)

    def position_ids_or_range(self) -> Int[Tensor, "rows length"]:
        """Return positions of shape [batch, length], or [1, length] where all rows are alike."""
        return self._range() if self.position_ids is None else self.position_ids

    def index_or_range(self) -> Int[Tensor, "rows length"]:
        """Return the index of shape [batch, length], or [1, length] where all rows are alike."""
        return self._range() if self.index is None else self.index

    @property
    def text_lengths(self) -> Int[Tensor, "rows length"]:
        """How many tokens the text of each token has, padding left out."""
        if self.ends is not None:
            return self.ends
        index = self.index_or_range()
        if self.segment_ids is None and self.padding_mask is None:
            return torch.full_like(index, self.start + self.length)
        real = torch.ones_like(index) if self.padding_mask is None else self.padding_mask.long()
        real = real.expand(index.shape)
        if self.segment_ids is None:
            return real.sum(-1, keepdim=True).expand(index.shape)
        document = document_starts(self.segment_ids).cumsum(-1) - 1  # numbers of documents
        totals = torch.zeros_like(document).scatter_add(-1, document, real)
        return totals.gather(-1, document)

    def lengths_so_far_or_end(self) -> Int[Tensor, "rows length"]:
        """Return the last position of each token's document, plus one: the length of its text so far."""
        if self.lengths_so_far is not None:
            return self.lengths_so_far
        ends = self.position_ids_or_range() + 1
        if self.segment_ids is None:
            if self.padding_mask is not None:
                ends = torch.where(self.padding_mask, ends, 0)
            return ends.amax(-1, keepdim=True).expand(-1, self.length)
        ends = ends.expand(self.segment_ids.shape)
        if self.padding_mask is not None:
            ends = ends.masked_fill(~self.padding_mask, 0)
        # Positions rise within a document, so its end is the largest from here to its last token.
        stretch = document_starts(self.segment_ids).cumsum(-1)
        last = torch.zeros_like(stretch).scatter_reduce(-1, stretch - 1, ends, "amax")
        return last.gather(-1, stretch - 1)

    def _range(self) -> Tensor:
        return torch.arange(self.start, self.start + self.length, device=self.device)[None]


@dataclass(frozen=True)
class Read:
    """Tokens read before a batch: per row, where the next token of the same document stands."""

    next_index: Int[Tensor, " batch"]
    document: Int[Tensor, " batch"] | None
    """The document that each row was left in; None where none were separated."""

    def rows(self, rows: Int[Tensor, " new_batch"]) -> "Read":
        """Return what some of the rows have read, in a new order."""
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
    """Return where the tokens of a batch stand.

    Args:
        position_ids: given positions, of shape [batch, length] or [length].
        segment_ids: tokens with different ids do not see each other; a document is one stretch of
            its row.
        padding_mask: True where a token is real, False where it is padding.
        prefix_lengths: how many tokens of each row are its prefix, for masks that have one.
        start: tokens read before, where all rows are alike.
        read: what each row has read before, where they are not.

    Raises:
        ValueError: a shape that does not fit the tokens.
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
    """Return the tokens of x [batch, length, ...] at some columns: [batch, chosen, ...]."""
    # [batch, chosen, 1, ...], then as x is behind its second axis
    where = at.view(*at.shape, *[1] * (x.ndim - 2)).expand(*at.shape, *x.shape[2:])
    return x.gather(1, where)


def document_starts(segment_ids: Int[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
    """Return True where a document begins; the first token of a row begins one."""
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
    for name, given in [("segment_ids", segment_ids), ("padding_mask", padding_mask)]:
        if given is not None and given.shape != tokens.shape:
            raise ValueError(
                f"{name}: found shape {list(given.shape)}; "
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
    found = list(position_ids.shape if position_ids.ndim > 1 else position_ids[None].shape)
    raise ValueError(
        f"position_ids: found shape {found}; expected {list(tokens.shape)} or [{length}]"
    )


def _index(
    tokens: Tensor, segment_ids: Tensor | None, padding_mask: Tensor | None, read: Read | None
) -> Tensor:
    """Count the real tokens before each token in its document, those read before included."""
    real = torch.ones_like(tokens) if padding_mask is None else padding_mask.long()
    before = real.cumsum(-1) - real
    carried = 0 if read is None else read.next_index[:, None]
    if segment_ids is None:
        return before + carried
    starts = document_starts(segment_ids)
    if read is not None and read.document is not None:
        starts[:, 0] = (segment_ids[:, 0] != read.document) | (read.next_index == 0)
    started = starts.cumsum(-1) > 0
    first = torch.where(starts, before, 0).cummax(-1).values
    return before - first + torch.where(started, 0, carried)
