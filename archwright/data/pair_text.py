"""Batches and held-out windows of source-target pairs."""

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from archwright.data.batches import Ids, TextLengths, share_of
from archwright.data.eval_windows import ListedWindows
from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import Examples, padded
from archwright.data.permutation import mix, permuted
from archwright.spec.errors import UserError
from archwright.text.pairs import Pair, Pairs
from archwright.text.tokenizer import Tokenizer


class Encoded(NamedTuple):
    """The token ids of a pair, without special tokens around its sides."""

    source: Ids
    target: Ids

    @property
    def num_tokens(self) -> int:
        """Number of tokens of both sides, including an end token per side."""
        return len(self.source) + len(self.target) + 2


class PairText:
    """Tokenized pairs of one side of the split. Pairs longer than the context are omitted with a warning.

    Raises:
        UserError: all pairs are too long.
    """

    def __init__(self, pairs: Pairs, tokenizer: Tokenizer, context_length: int) -> None:
        prefix, suffix = tokenizer.frame
        framing = max(len(prefix), len(tokenizer.decoder_start) - 1) + len(suffix)
        self.pairs, self.tokenizer, self.most = pairs, tokenizer, context_length - framing
        self.context_length = context_length
        self.fingerprint = pairs.fingerprint
        number = min(pairs.num_pairs, SAMPLE) if pairs.endless else pairs.num_pairs
        texts = [pairs.pair(0, index) for index in range(number)]
        encoded = self._encoded(texts)
        too_long = [text for text, pair in zip(texts, encoded, strict=True) if not self._fits(pair)]
        fitting = [i for i, pair in enumerate(encoded) if self._fits(pair)]
        self.examples = [encoded[i] for i in fitting]
        self.bytes_each = [
            len(texts[i].source.encode()) + len(texts[i].target.encode()) for i in fitting
        ]
        self.num_too_long = len(too_long)
        if too_long:
            self._report(too_long[0], len(texts))

    def __len__(self) -> int:
        """Return the number of tokens of all pairs; if pairs are endless, of the sample."""
        return sum(pair.num_tokens for pair in self.examples)

    @property
    def num_documents(self) -> int:
        """Number of pairs; if pairs are endless, size of the sample."""
        return len(self.examples)

    @property
    def num_bytes(self) -> int:
        """Bytes of all sources and targets."""
        return sum(self.bytes_each)

    def drawn(self, seed: int, indices: Ids) -> list[Encoded]:
        """Return the pairs with these indices for a seed; pairs from a file are shuffled anew in each epoch."""
        if self.pairs.endless:
            return self._generated(seed, indices)
        epochs, places = np.divmod(indices, len(self.examples))
        keys = mix(epochs.astype(np.uint64) + mix(np.array([seed], np.uint64)))
        return [self.examples[i] for i in permuted(places, len(self.examples), keys).tolist()]

    def _generated(self, seed: int, indices: Ids) -> list[Encoded]:
        """Return new pairs; a pair longer than the context is replaced by a pair of the sample."""
        pairs = self._encoded([self.pairs.pair(seed, i) for i in indices.tolist()])
        return [
            pair if self._fits(pair) else self.examples[i % len(self.examples)]
            for i, pair in zip(indices.tolist(), pairs, strict=True)
        ]

    def _encoded(self, pairs: Sequence[Pair]) -> list[Encoded]:
        texts = [text for pair in pairs for text in (pair.source, pair.target)]
        ids = [row.astype(np.int64) for row in self.tokenizer.encode_many(texts)]
        return [Encoded(*both) for both in zip(ids[0::2], ids[1::2], strict=True)]

    def _fits(self, pair: Encoded) -> bool:
        return max(len(pair.source), len(pair.target)) <= self.most

    def _report(self, first: Pair, number: int) -> None:
        """Warn about skipped pairs, or raise a UserError if all pairs are too long."""
        problem = (
            f"data.pairs: {self.num_too_long:,} of {number:,} pairs have a source or target of more than "
            f"model.context_length = {self.context_length} tokens with its end token, the first at {first.place}"
        )
        if self.num_too_long == number:
            raise UserError(f"{problem}; none is left: raise model.context_length")
        warnings.warn(f"{problem}; they are skipped", stacklevel=3)


SAMPLE = 2048
"""Number of pairs sampled from an endless source, for statistics and to replace pairs longer than the context."""


class PairBatches:
    """Batches of pairs, as a pure function of (seed, step)."""

    def __init__(self, text: PairText, examples: Examples, batch_size: int, seed: int = 0) -> None:
        self.text, self.batch_size, self.seed = text, batch_size, seed
        self._examples = examples

    @cached_property
    def lengths(self) -> TextLengths:
        """Lengths of sources with special tokens; if pairs are endless, lengths of the sample."""
        ends = sum(map(len, self.text.tokenizer.frame))
        source = np.array([len(pair.source) + ends for pair in self.text.examples])
        counted, total = len(source) * self.text.context_length, float(source.sum())
        targets = (len(self.text) - total) / total
        return TextLengths(float((source**2).sum()) / total, targets, total / counted)

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        share = share_of(self.batch_size, rank, world_size)
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        return batch_of(self.text.drawn(self.seed, rows), self._examples, self.seed, step)[share]


class PairWindows(ListedWindows):
    """Held-out pairs for evaluation: the first pairs, with at most `max_tokens` tokens in total."""

    def __init__(
        self, text: PairText, examples: Examples, batch_size: int, max_tokens: int | None = None
    ) -> None:
        ends = np.cumsum([pair.num_tokens for pair in text.examples])
        number = len(ends)
        if max_tokens is not None:
            number = max(1, int(np.searchsorted(ends, max_tokens, "right")))
        self.num_tokens = int(ends[number - 1])
        self.num_bytes = sum(text.bytes_each[:number])
        # Sorting pairs by length saves padding.
        order = sorted(range(number), key=lambda i: text.examples[i].num_tokens)

        def batch(start: int, numbers: Ids) -> Batch:
            return batch_of([text.examples[i] for i in numbers.tolist()], examples, start)

        super().__init__(np.array(order), batch_size, batch)


def batch_of(pairs: Sequence[Encoded], examples: Examples, *seed: int) -> Batch:
    """Build the batch of an objective from pairs."""
    tokens, padding_mask = padded([pair.source for pair in pairs], 0)
    decoder_tokens, decoder_mask = padded([pair.target for pair in pairs], 0)
    text = Inputs(
        tokens,
        padding_mask=padding_mask,
        decoder_tokens=decoder_tokens,
        decoder_padding_mask=decoder_mask,
    )
    return examples.batch(text, *seed)
