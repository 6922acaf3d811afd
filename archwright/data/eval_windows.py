"""Evaluation windows over held-out text, and bits per byte."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import Examples
from archwright.data.store import TokenStore
from archwright.spec.errors import UserError

Ids = NDArray[np.int64]

GOLDEN = (math.sqrt(5) - 1) / 2
PIECE_BYTES = 8
"""Size of a piece of text, in bytes per token of context. A piece fills two or three windows."""


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Return bits per byte, nats / (num_bytes * ln 2).

    The end of a document is not predicted, so that the result is comparable with compressors.

    Args:
        nats: Sum of -ln p over the text's tokens; each document starts from the end-of-text token.
        num_bytes: Length of the same text in UTF-8.
    """
    return nats / (num_bytes * math.log(2))


def why_no_bits(text_change: str | None) -> str:
    """Explain missing bits per byte, from `TokenStore.text_change`."""
    change = f"changes the text: {text_change}" if text_change else "may change the text"
    return f"no bits per byte, as the tokenizer {change}"


class Window(NamedTuple):
    """Tokens `start` to `stop` of the store; only the last `counted` are predicted."""

    start: int
    stop: int
    counted: int
    piece: int = 0
    """Index of the window's piece of text, if pieces are sampled."""


class Windows(Protocol):
    """Evaluation batches, identical in every evaluation."""

    num_tokens: int
    num_bytes: int
    counts_answers: bool
    """True if the accuracy of answers is measured."""
    defines_bits_per_byte: bool
    """True if target losses sum to the text's loss and the tokenizer is lossless."""
    generates_text: bool
    """True if the objective trains models to continue a text."""

    @property
    def places(self) -> tuple[Ids, Ids]:
        """Document index and sample index of each window, in iteration order.

        A sample is a window, or a piece of text if pieces are sampled. Its index follows the order of the text.
        """

    @property
    def window_bytes(self) -> Ids | None:
        """Number of predicted bytes per window, if pieces of text are sampled."""

    def __iter__(self) -> Iterator[Batch]: ...


class ListedWindows:
    """Windows that are separate documents, with batches cached for repeated evaluation.

    Args:
        order: Window indices, in batch order.
        batch: Builds a batch from the position of its first window in `order` and its window indices.
    """

    defines_bits_per_byte = False
    generates_text = False
    counts_answers = False
    window_bytes = None

    def __init__(self, order: Ids, batch_size: int, batch: Callable[[int, Ids], Batch]) -> None:
        self.batch_size, self._batch = batch_size, batch
        self.places = order, order

    def __len__(self) -> int:
        """Return the number of batches."""
        return math.ceil(len(self.places[0]) / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    @cached_property
    def _batches(self) -> list[Batch]:
        order = self.places[0]
        starts = range(0, len(order), self.batch_size)
        return [self._batch(start, order[start : start + self.batch_size]) for start in starts]


class HeldOut:
    """Fixed windows over held-out documents.

    Each document is read separately, starting with its end-of-text token. If the objective defines bits per byte, the
    first window of a document predicts all its tokens. Each later window starts `stride` further (the last one starts
    earlier, to be full) and predicts only the tokens after the previous window. Every token of the text is thus
    predicted once, after at least `context_length` - `stride` tokens if its document is long enough. For other
    objectives, windows do not overlap. Random numbers of the objective are the same in every evaluation. `num_tokens`
    and `num_bytes` count the text once.

    `max_tokens` limits evaluation to a sample of windows, spread evenly over the text. Without `token_lengths`, which
    count its bytes, the sample consists of complete documents. `max_bytes` limits evaluation to a sample of pieces of
    text, also spread evenly. Pieces end at fixed byte positions, so that every tokenizer reads the same pieces; a
    token belongs to the piece of its first byte.

    Raises:
        UserError: there is no text to predict, or `max_bytes` with tokens of unknown lengths in bytes.
    """

    counts_answers = False

    def __init__(
        self,
        store: TokenStore,
        context_length: int,
        batch_size: int,
        stride: int | None = None,
        max_tokens: int | None = None,
        token_lengths: NDArray[np.int64] | None = None,
        examples: Examples | None = None,
        max_bytes: int | None = None,
        *,
        lossless: bool = True,
    ) -> None:
        self.store = store
        self._examples = examples or Examples()
        self.objective = self._examples.objective
        self.generates_text = self.objective.generates_text
        self.defines_bits_per_byte = self.objective.defines_bits_per_byte and lossless
        self.window_length = self.objective.window_length(context_length)
        self.batch_size = batch_size
        self.stride = stride or self.objective.stride(context_length)
        if not 1 <= self.stride <= context_length:
            raise UserError(
                f"evaluate.stride: expected 1 to model.context_length ({context_length}), "
                f"found {self.stride}."
            )
        if not self.objective.defines_bits_per_byte:
            self.stride = self.window_length
        self._token_lengths = token_lengths if max_bytes is not None else None
        ranges: Iterable[tuple[int, int]] = pairwise(map(int, store.offsets))
        if max_bytes is not None:
            if token_lengths is None or not lossless:
                raise UserError(
                    "evaluate.max_bytes: found a tokenizer that changes the text or has tokens without known bytes; "
                    "expected a byte-level tokenizer"
                )
            size = PIECE_BYTES * context_length
            ranges = _pieces(store, size, max_bytes, token_lengths)
        elif max_tokens is not None and token_lengths is None:
            taken = _whole_documents(store, max_tokens)
            ranges = [(int(store.offsets[i]), int(store.offsets[i + 1])) for i in taken]
        if max_bytes is None and max_tokens is not None and token_lengths is not None:
            rows = self._sample(max_tokens)
        else:
            rows = [row for i, (a, b) in enumerate(ranges) for row in self._windows(a, b, i)]
        self.num_tokens = sum(row.counted for row in rows)
        self.num_bytes = _bytes(store, rows, token_lengths)
        if not self.num_bytes:
            raise UserError("data.held_out: there is no held-out text to measure on.")
        # Sorted by length, full windows first, so that few batches need padding.
        self._rows = sorted(rows, key=lambda row: row.start - row.stop)

    @property
    def rows(self) -> Sequence[Window]:
        """Windows in iteration order."""
        return self._rows

    def __len__(self) -> int:
        return math.ceil(len(self._rows) / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for first in range(0, len(self._rows), self.batch_size):
            yield self._batch(self._rows[first : first + self.batch_size], first)

    def texts(self) -> Iterator[Ids]:
        """Yield the predicted tokens as consecutive ranges of the text."""
        for first, stop in _merged_ranges(self._rows):
            yield np.asarray(self.store.read(first, stop), np.int64)

    @property
    def places(self) -> tuple[Ids, Ids]:
        """Document index and sample index of each window; see `Windows`."""
        starts = np.array([row.start for row in self._rows])
        documents = np.searchsorted(self.store.offsets, starts, "right") - 1
        if self._token_lengths is not None:
            return documents, np.array([row.piece for row in self._rows])
        return documents, np.argsort(np.argsort(starts))

    @property
    def window_bytes(self) -> Ids | None:
        lengths = self._token_lengths
        if lengths is None:
            return None
        texts = (self.store.read(row.stop - row.counted, row.stop) for row in self._rows)
        return np.array([int(lengths[tokens].sum()) for tokens in texts])

    def _windows(self, base: int, end: int, piece: int) -> Iterator[Window]:
        """Yield the windows of a document or piece; its first token is not predicted."""
        number = int(self._num_windows(np.array(end - base)))
        return (self._window(base, end, place, piece) for place in range(number))

    def _num_windows(self, lengths: Ids) -> Ids:
        """Return the number of windows per length; lengths include the first token."""
        rest = np.maximum(lengths - self.window_length, 0)
        return -(-rest // self.stride) + (lengths > 1)

    def _window(self, base: int, end: int, place: int, piece: int) -> Window:
        """Return window number `place` of a document or piece."""
        start = base + place * self.stride
        stop = min(start + self.window_length, end)
        # A document's first token, end-of-text, is not predicted.
        done = start - self.stride + self.window_length if place else base + 1
        if self.stride < self.window_length:
            start = max(base, stop - self.window_length)
        return Window(start, stop, stop - done, piece)

    def _sample(self, max_tokens: int) -> list[Window]:
        """Return evenly spread windows of `max_tokens` tokens in total; the last one is cut to fit."""
        offsets = self.store.offsets
        left = min(max_tokens, len(self.store) - self.store.num_documents)
        first = np.concatenate([[0], np.cumsum(self._num_windows(np.diff(offsets)))])
        windows: list[Window] = []
        for i in _spread(int(first[-1])):
            document = int(np.searchsorted(first, i, "right")) - 1
            base, end = int(offsets[document]), int(offsets[document + 1])
            row = self._window(base, end, i - int(first[document]), document)
            excess = max(0, row.counted - left)
            windows.append(row._replace(stop=row.stop - excess, counted=row.counted - excess))
            left -= row.counted - excess
            if left == 0:
                break
        return sorted(windows)

    def _batch(self, rows: list[Window], seed: int) -> Batch:
        lengths = np.array([row.stop - row.start for row in rows])
        tokens = np.full((len(rows), int(lengths.max())), self.store.end_of_text, np.int64)
        for window, row, length in zip(tokens, rows, lengths, strict=True):
            window[:length] = self.store.read(row.start, row.stop)
        padding_mask = np.arange(tokens.shape[1]) < lengths[:, None]
        text = Inputs(tokens, padding_mask=None if padding_mask.all() else padding_mask)
        batch = self._examples.batch(text, seed)
        inputs, targets = batch.inputs, batch.targets
        if inputs.padding_mask is not None:
            filled = np.where(inputs.padding_mask, inputs.tokens, self.store.end_of_text)
            inputs = replace(inputs, tokens=filled)
        if self.objective.defines_bits_per_byte:
            predicted_before = lengths - 1 - [row.counted for row in rows]
            columns = np.arange(targets.shape[1])
            targets = np.where(columns < predicted_before[:, None], IGNORE, targets)
        return replace(batch, inputs=inputs, targets=targets)


def _whole_documents(store: TokenStore, max_tokens: int) -> list[int]:
    """Return evenly spread documents of at most `max_tokens` tokens in total, or the shortest document."""
    lengths = np.diff(store.offsets) - 1
    taken = []
    left = max_tokens
    for i in _spread(len(lengths)):
        if 0 < lengths[i] <= left:
            taken.append(i)
            left -= int(lengths[i])
    if not taken and lengths.any():
        taken = [int(np.argmin(np.where(lengths > 0, lengths, np.iinfo(np.int64).max)))]
    return sorted(taken)


def _pieces(
    store: TokenStore, size: int, max_bytes: int, token_lengths: NDArray[np.int64]
) -> list[tuple[int, int]]:
    """Return the token ranges of evenly spread pieces of documents.

    A piece has `size` bytes, or the rest of its document. A range starts with the token before the piece.
    """
    numbers = -(-store.document_bytes // size)
    first = np.concatenate([[0], np.cumsum(numbers)])
    taken: dict[int, list[int]] = {}
    left = max_bytes
    for i in _spread(int(first[-1])):
        document = int(np.searchsorted(first, i, "right")) - 1
        place = i - int(first[document])
        taken.setdefault(document, []).append(place)
        left -= min(size, int(store.document_bytes[document]) - size * place)
        if left <= 0:
            break
    ranges = []
    for document, places in sorted(taken.items()):
        base = int(store.offsets[document])
        ends = np.cumsum(token_lengths[store.document(document)[1:]])
        starts = np.concatenate([[0], ends])  # byte 0 belongs to the second token
        for place in sorted(places):
            low, high = np.searchsorted(starts[:-1], [size * place, size * (place + 1)])
            ranges.append((base + int(low), base + 1 + int(high)))
    return ranges


def _spread(n: int) -> Iterator[int]:
    """Yield 0..n-1 in golden-ratio steps, so that every prefix is spread evenly."""
    step = max(1, round(n * GOLDEN))
    while math.gcd(step, n) > 1:
        step += 1
    return (i * step % n for i in range(n))


def _merged_ranges(rows: list[Window]) -> Iterator[tuple[int, int]]:
    """Yield the predicted tokens as ranges of the store; adjacent ranges are merged."""
    ranges = sorted((row.stop - row.counted, row.stop) for row in rows)
    first, stop = ranges[0]
    for start, end in ranges[1:]:
        if start != stop:
            yield first, stop
            first = start
        stop = end
    yield first, stop


def _bytes(store: TokenStore, rows: list[Window], token_lengths: NDArray[np.int64] | None) -> int:
    """Return the number of UTF-8 bytes of the predicted tokens."""
    if not rows:
        return 0
    total = 0
    for first, stop in _merged_ranges(rows):
        document = int(np.searchsorted(store.offsets, first, "right")) - 1
        if (first - 1, stop) == (store.offsets[document], store.offsets[document + 1]):
            total += int(store.document_bytes[document])
        else:
            assert token_lengths is not None, "without token lengths only whole documents are taken"
            total += int(token_lengths[store.read(first, stop)].sum())
    return total
