"""Splitting long texts at points that no token crosses, so that the tokens stay the same."""

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter

TARGET = 1 << 18
"""Approximate length of a piece, in characters."""
LIMIT = 1 << 20
"""Longest stretch without a safe split point (`BORDER`), in characters. A longer stretch is cut at this length."""

BORDER = (
    r"(?:(?<=[!-~\w]\n)(?=[!-~\w])"  # a newline between visible characters
    r"|(?<=[!-~\w])(?= [!-~\w])"  # a space between visible characters
    r"|(?<=[^\W\d_])(?=[!\"#$%&()*+,/:;<=>?@\[\\\]^`{|}~，。、；：？！]))"  # punctuation after a letter
)
FIRST = re.compile(BORDER)
LAST = re.compile(r".*" + BORDER, re.DOTALL)


def pieces(blocks: Iterable[str], target: int = TARGET, limit: int = LIMIT) -> Iterator[str]:
    """Yield the joined `blocks` in pieces that do not depend on the division into blocks.

    Pre-tokenizers of the GPT-2 family (also GPT-4's, Llama 3's, Qwen's and archwright's) never join
    the text on both sides of a `BORDER` and look at most one character ahead. The pieces therefore
    have the tokens of the full text. More than `limit` characters without a `BORDER` are cut
    at `limit`.
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
    """Split the joined texts at `names`; if several names match, the longest is used.

    Yields (name, empty iterator) for names and ("", texts) for text between them. Read texts before the next pair.
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
    """Return a pattern that matches any of the names, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))


def _marked(names: Collection[str], texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, "") for names and ("", text) between them."""
    pattern, longest = pattern_of(names), max(map(len, names))
    buffer = ""
    for text in chain(texts, [None]):
        buffer += text or ""
        # A name that begins at or after `end` may be incomplete, or the start of a longer name.
        end = len(buffer) if text is None else len(buffer) - longest + 1
        start = 0
        while (match := pattern.search(buffer, start)) and match.start() < end:
            if match.start() > start:
                yield "", buffer[start : match.start()]
            yield match[0], ""
            start = match.end()
        if end > start:
            yield "", buffer[start:end]
            start = end
        buffer = buffer[start:]


def _border(text: str, target: int, limit: int) -> int:
    """Return the position of the last `BORDER` up to `target`, else of the first before `limit`, else `limit`."""
    last = LAST.match(text, 0, target)
    if last:
        return last.end()
    first = FIRST.search(text, max(target - 2, 0), limit)
    return first.start() if first and first.start() > 0 else min(limit, len(text))
