"""How a text becomes a source: spans are left out, or masked, and sentences change places."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int64]
"""Tokens of one text."""

WORD = re.compile(r"[^\W_]+")


def corrupted(
    text: Row, spans: tuple[int, int], sentinels: Row, generator: np.random.Generator
) -> tuple[Row, Row]:
    """Return a text with so many tokens left out, in so many spans, and what was left out."""
    if len(text) < 2:  # there is nothing that could be kept
        return sentinels[:1], np.append(sentinels[:1], text)
    out, number = spans
    # Kept and left out in turn: [kept, out, kept, out, ...], a span of each at a time.
    kept_lengths, out_lengths = (_split(n, number, generator) for n in (len(text) - out, out))
    ends = np.cumsum(np.stack([kept_lengths, out_lengths], axis=1).ravel())
    pieces = np.split(text, ends[:-1])
    marks = [sentinels[i : i + 1] for i in range(number)]
    source = [part for both in zip(pieces[0::2], marks, strict=True) for part in both]
    target = [part for both in zip(marks, pieces[1::2], strict=True) for part in both]
    return np.concatenate(source), np.concatenate(target)


class Sentences:
    """Where sentences end: behind a token that ends with ".", "!" or "?", closing brackets and quotation marks aside,
    if a blank follows. What stands before the first end and behind the last one is a sentence, too.

    Args:
        texts: of each token.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        stripped = [text.rstrip().rstrip("\"')]}") for text in texts]
        self._ends = np.array([text.endswith((".", "!", "?")) for text in stripped], bool)
        self._ends_blank = np.array([text[-1:].isspace() for text in texts], bool)
        self._begins_blank = np.array([text[:1].isspace() for text in texts], bool)

    def permuted(self, text: Row, generator: np.random.Generator) -> Row:
        """Return a text with its sentences in random order, each order equally likely."""
        sentences = self.split(text)
        return np.concatenate([sentences[i] for i in generator.permutation(len(sentences))])

    def split(self, text: Row) -> list[Row]:
        """Return the sentences of a text."""
        before, behind = text[:-1], text[1:]
        at_end = self._ends[before] & (self._ends_blank[before] | self._begins_blank[behind])
        return np.split(text, np.flatnonzero(at_end) + 1)


def principal(sentences: Sequence[str], number: int) -> list[int]:
    """Return which sentences of a text are most alike the rest, in their order: those with the largest F1 of ROUGE-1,
    2 |S and R| / (|S| + |R|), of the set S of the words of a sentence and the set R of those of all others; of equals,
    the first (Zhang et al., 2019, PEGASUS, section 3.1, "Ind" and "Uniq").

    Args:
        sentences: their texts; words are runs of letters and digits, in lower case.
        number: how many are chosen.
    """
    words = [{*WORD.findall(sentence.lower())} for sentence in sentences]
    in_how_many = Counter(word for own in words for word in own)
    scores = []
    for own in words:
        shared = sum(in_how_many[word] > 1 for word in own)
        rest = len(in_how_many) - (len(own) - shared)  # less those that no other sentence has
        scores.append(2 * shared / max(1, len(own) + rest))
    best = sorted(range(len(words)), key=lambda i: -scores[i])[:number]
    return sorted(best)


def infilled(
    text: Row, share: float, mean_length: float, mask_id: int, generator: np.random.Generator
) -> Row:
    """Return a text with one mask token in the place of each span, never longer than the text."""
    out = round(share * len(text))
    if out == 0:
        return text
    lengths = _poisson_lengths(out, mean_length, generator)
    kept = len(text) - out
    # Between kept tokens, before and behind them is room for a span each.
    lengths = _merged(lengths, kept + 1)
    gaps = np.sort(generator.choice(kept + 1, len(lengths), replace=False))
    starts = gaps + np.cumsum(lengths) - lengths
    masked = np.zeros(len(text) + 1, np.int64)
    np.add.at(masked, starts, 1)
    np.add.at(masked, starts + lengths, -1)
    stays = np.insert(np.cumsum(masked)[:-1] == 0, starts, True)
    found: Row = np.insert(text, starts, mask_id)[stays]
    return found


def _split(number: int, parts: int, generator: np.random.Generator) -> Row:
    """Split a number into positive parts, each way equally likely."""
    cuts = np.sort(generator.choice(number - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [number]]))


def _poisson_lengths(out: int, mean: float, generator: np.random.Generator) -> Row:
    """Return lengths of spans that have `out` tokens together, drawn from Poisson(mean), the last one cut; so few of
    length 0 that there are no more spans than tokens."""
    drawn: list[int] = []
    while sum(drawn) < out:
        drawn += generator.poisson(mean, 1 + round((out - sum(drawn)) / mean)).tolist()
    ends = np.minimum(np.cumsum(drawn), out)
    lengths = np.diff(ends[: np.searchsorted(ends, out) + 1], prepend=0)
    spare = out - np.count_nonzero(lengths)
    found: Row = lengths[(lengths > 0) | (np.cumsum(lengths == 0) <= spare)]
    return found


def _merged(lengths: Row, most: int) -> Row:
    """Return lengths of at most so many spans, those that are too many added to the last one."""
    if len(lengths) <= most:
        return lengths
    return np.append(lengths[: most - 1], lengths[most - 1 :].sum())
