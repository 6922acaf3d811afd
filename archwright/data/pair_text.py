"""Batches and held-out windows of pairs: a source that the encoder reads, a target that the decoder writes."""

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
    """A pair as tokens, without those that begin and end a text."""

    source: Ids
    target: Ids

    @property
    def num_tokens(self) -> int:
        """Tokens of both, their ends included."""
        return len(self.source) + len(self.target) + 2


class PairText:
    """One side of pairs as tokens. Pairs that are longer than the context are left out, which is said.

    Raises:
        UserError: all pairs are too long.
    """

    def __init__(self, pairs: Pairs, tokenizer: Tokenizer, context_length: int) -> None:
        before, behind = tokenizer.frame
        around = max(len(before), len(tokenizer.decoder_start) - 1) + len(behind)
        self.pairs, self.tokenizer, self.most = pairs, tokenizer, context_length - around
        self.context_length = context_length
        self.fingerprint = pairs.fingerprint
        number = min(pairs.num_pairs, SAMPLE) if pairs.endless else pairs.num_pairs
        read = [pairs.pair(0, index) for index in range(number)]
        encoded = self._encoded(read)
        too_long = [pair for pair, one in zip(read, encoded, strict=True) if not self._fits(one)]
        kept = [i for i, one in enumerate(encoded) if self._fits(one)]
        self.examples = [encoded[i] for i in kept]
        self.bytes_each = [
            len(read[i].source.encode()) + len(read[i].target.encode()) for i in kept
        ]
        self.num_too_long = len(too_long)
        if too_long:
            self._say(too_long[0], len(read))

    def __len__(self) -> int:
        """Return the tokens of the pairs that are there; of those that are drawn for each step, of a sample."""
        return sum(one.num_tokens for one in self.examples)

    @property
    def num_documents(self) -> int:
        """How many pairs there are, or are in the sample."""
        return len(self.examples)

    @property
    def num_bytes(self) -> int:
        """Bytes of their sources and targets."""
        return sum(self.bytes_each)

    def drawn(self, seed: int, indices: Ids) -> list[Encoded]:
        """Return the pairs of a seed by their numbers; each epoch reads all pairs of a file, in an order of its own."""
        if self.pairs.endless:
            return self._drawn_anew(seed, indices)
        epochs, places = np.divmod(indices, len(self.examples))
        keys = mix(epochs.astype(np.uint64) + mix(np.array([seed], np.uint64)))
        return [self.examples[i] for i in permuted(places, len(self.examples), keys).tolist()]

    def _drawn_anew(self, seed: int, indices: Ids) -> list[Encoded]:
        """Return fresh pairs; in the place of one that is too long stands one of the sample."""
        found = self._encoded([self.pairs.pair(seed, i) for i in indices.tolist()])
        return [
            one if self._fits(one) else self.examples[i % len(self.examples)]
            for i, one in zip(indices.tolist(), found, strict=True)
        ]

    def _encoded(self, pairs: Sequence[Pair]) -> list[Encoded]:
        texts = [text for pair in pairs for text in (pair.source, pair.target)]
        ids = [row.astype(np.int64) for row in self.tokenizer.encode_many(texts)]
        return [Encoded(*both) for both in zip(ids[0::2], ids[1::2], strict=True)]

    def _fits(self, one: Encoded) -> bool:
        return max(len(one.source), len(one.target)) <= self.most

    def _say(self, first: Pair, number: int) -> None:
        """Say how many pairs are left out."""
        what = (
            f"data.pairs: {self.num_too_long:,} of {number:,} pairs have more than model.context_length = "
            f"{self.context_length} tokens in the source or the target, the one that ends a text included, the first "
            f"at {first.place}"
        )
        if self.num_too_long == number:
            raise UserError(f"{what}; none is left: raise model.context_length")
        warnings.warn(f"{what}; they are left out", stacklevel=3)


SAMPLE = 2048
"""Of pairs that are drawn for each step, how many are looked at beforehand."""


class PairBatches:
    """Batches of pairs, as a pure function of (seed, step)."""

    def __init__(self, text: PairText, examples: Examples, batch_size: int, seed: int = 0) -> None:
        self.text, self.batch_size, self.seed = text, batch_size, seed
        self._examples = examples

    @cached_property
    def lengths(self) -> TextLengths:
        """Lengths of sources, their ends included; of pairs drawn for each step, of a sample."""
        ends = sum(map(len, self.text.tokenizer.frame))
        source = np.array([len(one.source) + ends for one in self.text.examples])
        counted, total = len(source) * self.text.context_length, float(source.sum())
        targets = (len(self.text) - total) / total
        return TextLengths(float((source**2).sum()) / total, targets, total / counted)

    def at(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the batch of a step, or the rows of it that belong to one of many processes."""
        share = share_of(self.batch_size, rank, world_size)
        rows = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        return batch_of(self.text.drawn(self.seed, rows), self._examples, self.seed, step)[share]


class PairWindows(ListedWindows):
    """Held-out pairs to evaluate on: the first that have `max_tokens` together, or all there are."""

    def __init__(
        self, text: PairText, examples: Examples, batch_size: int, max_tokens: int | None = None
    ) -> None:
        ends = np.cumsum([one.num_tokens for one in text.examples])
        number = len(ends)
        if max_tokens is not None:
            number = max(1, int(np.searchsorted(ends, max_tokens, "right")))
        self.num_tokens = int(ends[number - 1])
        self.num_bytes = sum(text.bytes_each[:number])
        # Pairs of about one length stand together, so that little is padding.
        order = sorted(range(number), key=lambda i: text.examples[i].num_tokens)

        def batch(start: int, numbers: Ids) -> Batch:
            return batch_of([text.examples[i] for i in numbers.tolist()], examples, start)

        super().__init__(np.array(order), batch_size, batch)


def batch_of(pairs: Sequence[Encoded], examples: Examples, *seed: int) -> Batch:
    """Return the batch that pairs become."""
    tokens, padding_mask = padded([one.source for one in pairs], 0)
    decoder_tokens, decoder_mask = padded([one.target for one in pairs], 0)
    text = Inputs(
        tokens,
        padding_mask=padding_mask,
        decoder_tokens=decoder_tokens,
        decoder_padding_mask=decoder_mask,
    )
    return examples.batch(text, *seed)
