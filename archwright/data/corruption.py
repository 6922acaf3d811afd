"""Corruption of texts: removed spans, masked spans and permuted sentences."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int64]
"""Tokens of one text."""


def corrupted(
    text: Row, spans: tuple[int, int], sentinels: Row, generator: np.random.Generator
) -> tuple[Row, Row]:
    """Replace random spans of a text by sentinels in the source.

    The target has each span after its sentinel. `spans` is (total tokens of the spans, number of spans).
    """
    if len(text) < 2:  # no token could remain
        return sentinels[:1], np.append(sentinels[:1], text)
    out, number = spans
    # Spans alternate: [kept, out, kept, out, ...].
    kept_lengths, out_lengths = (_split(n, number, generator) for n in (len(text) - out, out))
    ends = np.cumsum(np.stack([kept_lengths, out_lengths], axis=1).ravel())
    pieces = np.split(text, ends[:-1])
    marks = [sentinels[i : i + 1] for i in range(number)]
    source = [part for both in zip(pieces[0::2], marks, strict=True) for part in both]
    target = [part for both in zip(marks, pieces[1::2], strict=True) for part in both]
    return np.concatenate(source), np.concatenate(target)


class Sentences:
    """Splits texts into sentences.

    A sentence ends after a token that ends with ".", "!" or "?", ignoring closing brackets and quotation marks, if
    white space follows. The last sentence ends with the text.

    Args:
        texts: The text of each token id.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        stripped = [text.rstrip().rstrip("\"')]}") for text in texts]
        self._ends = np.array([text.endswith((".", "!", "?")) for text in stripped], bool)
        self._ends_blank = np.array([text[-1:].isspace() for text in texts], bool)
        self._begins_blank = np.array([text[:1].isspace() for text in texts], bool)

    def permuted(self, text: Row, generator: np.random.Generator) -> Row:
        """Return a text with its sentences in uniformly random order."""
        sentences = self.split(text)
        return np.concatenate([sentences[i] for i in generator.permutation(len(sentences))])

    def split(self, text: Row) -> list[Row]:
        """Return the sentences of a text."""
        before, behind = text[:-1], text[1:]
        at_end = self._ends[before] & (self._ends_blank[before] | self._begins_blank[behind])
        return np.split(text, np.flatnonzero(at_end) + 1)


def infilled(
    text: Row, share: float, mean_length: float, mask_id: int, generator: np.random.Generator
) -> Row:
    """Replace random spans of a text by one mask token each; the result is never longer."""
    out = round(share * len(text))
    if out == 0:
        return text
    lengths = _poisson_lengths(out, mean_length, generator)
    num_gaps = len(text) - out + 1  # between the remaining tokens, and at both ends
    lengths = _merged(lengths, num_gaps)
    gaps = np.sort(generator.choice(num_gaps, len(lengths), replace=False))
    starts = gaps + np.cumsum(lengths) - lengths
    masked = np.zeros(len(text) + 1, np.int64)
    np.add.at(masked, starts, 1)
    np.add.at(masked, starts + lengths, -1)
    stays = np.insert(np.cumsum(masked)[:-1] == 0, starts, True)
    source: Row = np.insert(text, starts, mask_id)[stays]
    return source


def _split(number: int, parts: int, generator: np.random.Generator) -> Row:
    """Split a number into random positive parts; all splits are equally likely."""
    cuts = np.sort(generator.choice(number - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [number]]))


def _poisson_lengths(out: int, mean: float, generator: np.random.Generator) -> Row:
    """Draw at most `out` span lengths from Poisson(mean). The last is cut so that their sum is `out`."""
    drawn: list[int] = []
    while sum(drawn) < out:
        drawn += generator.poisson(mean, 1 + round((out - sum(drawn)) / mean)).tolist()
    ends = np.minimum(np.cumsum(drawn), out)
    lengths = np.diff(ends[: np.searchsorted(ends, out) + 1], prepend=0)
    spare = out - np.count_nonzero(lengths)
    spans: Row = lengths[(lengths > 0) | (np.cumsum(lengths == 0) <= spare)]
    return spans


def _merged(lengths: Row, most: int) -> Row:
    """Merge the last spans so that at most `most` remain."""
    if len(lengths) <= most:
        return lengths
    return np.append(lengths[: most - 1], lengths[most - 1 :].sum())
