"""Measuring on held-out text: windows that predict every token once, and bits per byte."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archwright.data.store import TokenStore
from archwright.spec.errors import UserError

Ids = NDArray[np.int64]

IGNORE = -100
"""Target of a position that is not counted, as in torch's cross-entropy."""
SHARE = 8
"""A cap is spent on at least about this many documents."""
GOLDEN = (math.sqrt(5) - 1) / 2


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Return the bits a model needs for each byte of text: nats / (bytes * ln 2).

    `nats` is the sum of -ln p over all predicted text tokens, each document starting from the
    end-of-text token; `num_bytes` counts the same text in UTF-8, each byte once. The end of a
    document is not predicted, so that the figure compares with compressors run on the text.
    """
    return nats / (num_bytes * math.log(2))


@dataclass(frozen=True)
class HeldOutBatch:
    """Rows to measure on, [batch, width]; a target of -100 is not counted.

    `lengths` are the tokens of each row before padding, `padding_mask` is True on them.
    """

    tokens: Ids
    targets: Ids
    lengths: Ids

    @property
    def padding_mask(self) -> NDArray[np.bool_]:
        """True where a row has a token."""
        mask: NDArray[np.bool_] = np.arange(self.tokens.shape[1]) < self.lengths[:, None]
        return mask


class Window(NamedTuple):
    """A row: input tokens `start` to `stop` of the store, of which the last `counted` predict."""

    start: int
    stop: int
    counted: int


class HeldOut:
    """Fixed windows over held-out documents, each document alone and from its end-of-text token.

    The first window of a document predicts all its tokens; each later one starts `stride` further
    (the last one less, so that it is full, too) and predicts only what no earlier one has. Every
    token of the text is thus predicted once, after at least `context_length` - `stride` tokens
    where the document has them. `num_tokens` and `num_bytes` count what is predicted.

    With `max_tokens`, documents spread evenly over the text are taken until that many tokens are
    reached. Long ones are cut, which needs the bytes of each token: `tokenizer.token_lengths`.

    Raises:
        UserError: there is nothing to predict.
    """

    def __init__(
        self,
        store: TokenStore,
        context_length: int,
        batch_size: int,
        stride: int | None = None,
        max_tokens: int | None = None,
        token_lengths: NDArray[np.int64] | None = None,
    ) -> None:
        self.store = store
        self.context_length = context_length
        self.batch_size = batch_size
        self.stride = stride or max(1, context_length // 2)
        if not 1 <= self.stride <= context_length:
            raise UserError(
                f"evaluate.stride: expected 1 to model.context_length ({context_length}), "
                f"found {self.stride}."
            )
        taken = _taken(store, max_tokens, token_lengths is not None)
        self.taken = taken
        self.num_documents = len(taken)
        self.num_tokens = sum(taken.values())
        self.num_bytes = sum(_bytes(store, i, n, token_lengths) for i, n in taken.items())
        if not self.num_bytes:
            raise UserError("data.held_out: there is no held-out text to measure on.")
        rows = [row for i, n in taken.items() for row in self._windows(int(store.offsets[i]), n)]
        # Rows of equal length stand together: full ones first, so that few batches need padding.
        self._rows = sorted(rows, key=lambda row: row.start - row.stop)

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self._rows) / self.batch_size)

    def __iter__(self) -> Iterator[HeldOutBatch]:
        for first in range(0, len(self._rows), self.batch_size):
            yield self._batch(self._rows[first : first + self.batch_size])

    def texts(self) -> Iterator[Ids]:
        """Yield the predicted tokens of each document, the text that `num_bytes` counts."""
        for i, predicted in self.taken.items():
            first = int(self.store.offsets[i]) + 1
            yield np.asarray(self.store.read(first, first + predicted), np.int64)

    def _windows(self, base: int, predicted: int) -> Iterator[Window]:
        """Yield the windows over a document that predict its first tokens."""
        done = start = 0
        while done < predicted:
            stop = min(start + self.context_length, predicted)
            start = max(0, min(start, stop - self.context_length))
            yield Window(base + start, base + stop, stop - done)
            done, start = stop, start + self.stride

    def _batch(self, rows: list[Window]) -> HeldOutBatch:
        lengths = np.array([row.stop - row.start for row in rows])
        shape = (len(rows), int(lengths.max()))
        tokens = np.full(shape, self.store.end_of_text, np.int64)
        targets = np.full(shape, IGNORE, np.int64)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            window = self.store.read(row.start, row.stop + 1)
            tokens[i, :length] = window[:-1]
            targets[i, length - row.counted : length] = window[len(window) - row.counted :]
        return HeldOutBatch(tokens, targets, lengths)


def _taken(store: TokenStore, max_tokens: int | None, may_cut: bool) -> dict[int, int]:
    """Return how many text tokens of which documents are predicted, by document."""
    lengths = np.diff(store.offsets) - 1
    total = int(lengths.sum())
    if max_tokens is None or total <= max_tokens:
        return {i: int(n) for i, n in enumerate(lengths) if n}
    longest = max(max_tokens // SHARE, max_tokens // len(lengths) + 1)
    taken: dict[int, int] = {}
    left = max_tokens
    for i in _spread(len(lengths)):
        n = min(int(lengths[i]), longest, left) if may_cut else int(lengths[i])
        if 0 < n <= left:
            taken[i] = n
            left -= n
        if left <= 0:
            break
    if not taken:  # every document is longer than the cap and cannot be cut
        shortest = int(np.argmin(np.where(lengths > 0, lengths, np.iinfo(np.int64).max)))
        taken[shortest] = int(lengths[shortest])
    return dict(sorted(taken.items()))


def _spread(n: int) -> Iterator[int]:
    """Yield 0..n-1 in golden-ratio steps: every beginning of it is spread evenly."""
    step = max(1, round(n * GOLDEN))
    while math.gcd(step, n) > 1:
        step += 1
    return (i * step % n for i in range(n))


def _bytes(
    store: TokenStore, document: int, tokens: int, token_lengths: NDArray[np.int64] | None
) -> int:
    """Return the UTF-8 bytes of the first text tokens of a document."""
    start, stop = int(store.offsets[document]) + 1, int(store.offsets[document + 1])
    if tokens == stop - start:
        return int(store.document_bytes[document])
    assert token_lengths is not None, "only a tokenizer with known bytes has its documents cut"
    return int(token_lengths[store.read(start, start + tokens)].sum())
