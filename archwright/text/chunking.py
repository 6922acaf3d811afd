"""Cutting long text where pre-tokenizers cut anyway, so that its pieces encode as the whole."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter

TARGET = 1 << 18
"""Characters of a piece, about."""
LIMIT = 1 << 20
"""Characters after which text is cut at any place: a run without one blank, line or comma."""

BORDER = (
    r"(?:(?<=[!-~\w]\n)(?=[!-~\w])"  # one line end between visible characters
    r"|(?<=[!-~\w])(?= [!-~\w])"  # one blank between visible characters
    r"|(?<=[^\W\d_])(?=[!\"#$%&()*+,/:;<=>?@\[\\\]^`{|}~，。、；：？！]))"  # a sign after a letter
)
FIRST = re.compile(BORDER)
LAST = re.compile(r".*" + BORDER, re.DOTALL)


def pieces(blocks: Iterable[str], target: int = TARGET, limit: int = LIMIT) -> Iterator[str]:
    """Yield the text of `blocks` in pieces that depend on the text alone, not on its blocks.

    Pre-tokenizers of the GPT-2 family (also GPT-4's, Llama 3's, Qwen's and our own) never join what
    stands on both sides of such a border and look at most one character ahead, so the tokens of the
    pieces, joined, are those of the whole. Runs of more than `limit` characters without any border
    are cut there.
    """
    buffer = ""
    for block in blocks:
        buffer += block
        while len(buffer) >= limit:
            end = _border(buffer, target, limit)
            yield buffer[:end]
            buffer = buffer[end:]
    while len(buffer) > target:
        end = _border(buffer, target, limit)
        yield buffer[:end]
        buffer = buffer[end:]
    if buffer:
        yield buffer


def split_at(names: Collection[str], texts: Iterable[str]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield each of `names` that the joined texts spell, or "" with the texts up to the next one.

    Of names that begin alike the longest counts. A stretch of texts is read before the next is asked for.
    """
    if not names:
        yield "", iter(texts)
        return
    for name, group in groupby(_marked(names, texts), key=itemgetter(0)):
        if name:
            yield from ((name, iter(())) for _ in group)
        else:
            yield "", (text for _, text in group)


def pattern_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern that finds names; of those that begin alike, the longest."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))


def _marked(names: Collection[str], texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names without a text, and texts without a name, in the order in which they stand."""
    pattern, longest = pattern_of(names), max(map(len, names))
    buffer = ""
    for text in chain(texts, [None]):
        buffer += text or ""
        # A name that begins later may not be there whole yet, or may be a longer one.
        end = len(buffer) if text is None else len(buffer) - longest + 1
        start = 0
        while (found := pattern.search(buffer, start)) and found.start() < end:
            if found.start() > start:
                yield "", buffer[start : found.start()]
            yield found[0], ""
            start = found.end()
        if end > start:
            yield "", buffer[start:end]
            start = end
        buffer = buffer[start:]


def _border(text: str, target: int, limit: int) -> int:
    """Return the last border up to `target`, else the first before `limit`, else `limit`."""
    last = LAST.match(text, 0, target)
    if last:
        return last.end()
    first = FIRST.search(text, max(target - 2, 0), limit)
    return first.start() if first and first.start() > 0 else min(limit, len(text))
