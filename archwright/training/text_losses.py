"""Losses of a text by place: bootstrap intervals, paired differences, and losses by position in the context."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from archwright.data.eval_windows import HeldOut
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.store import TokenStore

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

FEW_DOCUMENTS = 20
"""Least number of documents for estimating the variance of a loss over texts."""
STRETCHES = 64
"""Number of clusters of a text with fewer documents."""
MOST_CLUSTERS = 256
"""Largest number of clusters: neighbouring documents are joined if there are more."""
RESAMPLES = 10_000
"""Resampled texts of an interval."""
LEVEL = 0.95
"""Level of an interval."""
SHORTEST = 8
"""Least window of a curve that is shortened to the documents."""
BUCKETS = 8
"""Number of buckets of positions in a curve."""


@dataclass(frozen=True)
class Clusters:
    """Parts of a text that are resampled together, and the sums over each of them."""

    unit: str
    """Name of a part, for reports."""
    nats: Numbers
    """Sums of -ln p [clusters]."""
    tokens: Numbers
    """Numbers of targets [clusters]."""
    num_bytes: Numbers | None
    """Numbers of bytes [clusters]; None if a part's bytes are unknown."""

    def __str__(self) -> str:
        return f"{len(self.nats)} {self.unit}"

    def interval(self, *, per_byte: bool = False) -> tuple[float, float] | None:
        """Return the interval of the nats per token, or of the bits per byte. None if they are unknown."""
        ratios = self.ratios(per_byte=per_byte)
        return None if ratios is None else ends(ratios)

    def ratios(self, *, per_byte: bool = False) -> Numbers | None:
        """Return ratios of sums over resampled clusters [resamples]; the same clusters in every call.

        Source: Efron and Tibshirani, 1993, An Introduction to the Bootstrap, section 13.3 (percentiles).
        """
        number = len(self.nats)
        amounts = self.num_bytes if per_byte else self.tokens
        if amounts is None or number < 2:
            return None
        generator = np.random.default_rng(0)
        counts = generator.multinomial(number, np.full(number, 1 / number), size=RESAMPLES)
        sums = counts @ amounts  # [resamples]
        return counts @ self.nats / np.maximum(sums, 1) / (math.log(2) if per_byte else 1)


def ends(ratios: Numbers) -> tuple[float, float]:
    """Return the ends of the percentile interval of resampled ratios."""
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class TokenLosses:
    """Losses of a text by index in its token store, filled batch by batch.

    If the objective defines bits per byte, each token has its loss. Otherwise the first token of each window has the
    sum over the window's targets.

    Attributes:
        nats: Sums of -ln p [tokens].
        counts: Numbers of targets [tokens].
    """

    def __init__(self, windows: HeldOut, lengths: Places | None) -> None:
        self.store = windows.store
        self._windows, self._seen = windows, 0
        self._lengths = lengths
        self.nats = np.zeros(len(self.store))
        self.counts = np.zeros(len(self.store))

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Add the next batch of the windows."""
        rows = self._windows.rows[self._seen : self._seen + len(batch.targets)]
        self._seen += len(batch.targets)
        for row, scores, targets in zip(rows, logits, batch.targets, strict=True):
            losses = nats_of(scores, targets).cpu().numpy()  # [length]
            if self._windows.objective.defines_bits_per_byte:
                self.nats[row.stop - row.counted : row.stop] = losses[
                    row.stop - row.start - 1 - row.counted : row.stop - row.start - 1
                ]
                self.counts[row.stop - row.counted : row.stop] = 1
            else:
                self.nats[row.start] = losses.sum()
                self.counts[row.start] = int((targets != IGNORE).sum())

    def clusters(self) -> Clusters:
        """Return the sums over documents, or over stretches of few documents."""
        documents = np.repeat(np.arange(self.store.num_documents), np.diff(self.store.offsets))
        sizes = None
        if self._lengths is not None and self._windows.defines_bits_per_byte:
            sizes = self._lengths[self.store.read(0, len(self.store))]
        number = self.store.num_documents
        if number >= FEW_DOCUMENTS:
            place = documents * MOST_CLUSTERS // max(number, MOST_CLUSTERS)
            unit = "documents" if number <= MOST_CLUSTERS else "groups of neighbouring documents"
            if sizes is None and self._windows.defines_bits_per_byte:
                sizes = np.zeros(len(self.store), np.int64)
                sizes[self.store.offsets[:-1]] = self.store.document_bytes
        else:
            # Stretches of equal size in bytes are the same for every tokenizer.
            amounts = np.ones(len(self.store), np.int64) if sizes is None else sizes
            before, total = np.cumsum(amounts) - amounts, max(1, int(amounts.sum()))
            place = np.minimum(before * STRETCHES // total, STRETCHES - 1)
            unit = "stretches of the text"

        def sums(values: NDArray[Any]) -> Numbers:
            return np.bincount(place, values.astype(np.float64)).astype(np.float64)

        num_bytes = None if sizes is None else sums(sizes)
        return Clusters(unit, sums(self.nats), sums(self.counts), num_bytes)


def nats_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln p of each target; 0 for ignored ones [length]."""
    return F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="none")


@dataclass(frozen=True)
class Bucket:
    """Mean loss over a range of positions. Position n has n tokens of context."""

    first: int
    last: int
    nats_per_token: float
    num_tokens: int


class Curve:
    """Losses by position in windows of a text that do not overlap and are full.

    All positions are thus compared over almost the same tokens. If no document fills a window, windows are shorter.

    Args:
        context_length: Context of the model, which is an end of a bucket.
        length: Length of the windows.
    """

    def __init__(self, store: TokenStore, context_length: int, length: int) -> None:
        while not (starts := [*_starts(store, length)]) and length // 2 >= SHORTEST:
            length //= 2
        self.length, self._store, self._starts = length, store, starts
        self._context = context_length
        self._sums = np.zeros(length)

    def batches(self, row_tokens: int) -> Iterator[Batch]:
        """Yield batches of at most `row_tokens` tokens, or of one window."""
        size = max(1, row_tokens // self.length)
        for first in range(0, len(self._starts), size):
            starts = self._starts[first : first + size]
            tokens = np.stack([self._store.read(i, i + self.length + 1) for i in starts])
            tokens = tokens.astype(np.int64)
            yield Batch(Inputs(tokens[:, :-1]), tokens[:, 1:])

    def __len__(self) -> int:
        """Return the number of tokens to read."""
        return len(self._starts) * self.length

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Add a batch."""
        for scores, targets in zip(logits, batch.targets, strict=True):
            self._sums += nats_of(scores, targets).cpu().numpy()

    def buckets(self) -> tuple[Bucket, ...]:
        """Return mean losses by position: the ends are the context times powers of two, and the window's end."""
        if not self._starts:
            return ()
        longer = [self._context << n for n in range(self.length.bit_length())]
        shorter = [self._context >> n for n in range(self._context.bit_length())]
        candidates = sorted({e for e in (*longer, *shorter) if 0 < e < self.length}, reverse=True)
        edges = [0, *reversed(candidates[: BUCKETS - 1]), self.length]
        number = len(self._starts)
        return tuple(
            Bucket(a + 1, b, float(self._sums[a:b].mean()) / number, (b - a) * number)
            for a, b in pairwise(edges)
        )


def _starts(store: TokenStore, length: int) -> Iterator[int]:
    """Yield the starts of full windows, each with a target after its last token."""
    for base, end in zip(store.offsets[:-1], store.offsets[1:], strict=True):
        yield from range(int(base), int(end) - length, length)
