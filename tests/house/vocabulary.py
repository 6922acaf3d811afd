"""Words: those that only this house used, and those that everybody in the field knows."""

import tokenize
from collections.abc import Iterator, Sequence

from tests.house.source import Count, Source, words

ARITHMETIC = ("model", "parts")
"""Rooms in which the field's words for tensors are expected."""
FIELD = ("position_ids", "segment_ids", "attention_mask", "padding_mask", "hidden_states", "matmul")
UNUSUAL = (("told", "said"), ("foreseen", "begun", "anew", "regain"), ("wide", "narrow"))
"""Words that no identifier should have, those of one row together."""


def counts(package: Sequence[Source]) -> list[Count]:
    """Return a row for each group of words."""
    inside = [source for source in package if source.room in ARITHMETIC]
    return [
        *(
            Count.of(f"`{word}` in model/ and parts/", _anywhere(inside, word), "few")
            for word in ("row", "sequence")
        ),
        *(
            Count.of(f"{' / '.join(group)} in identifiers", _identifiers(package, group), "0")
            for group in UNUSUAL
        ),
        Count.of("identifiers of_...", _prefixed(package), "0"),
        Count.of('docstrings that begin with "What"', _what(package), "0"),
        *(
            Count.of(f"`{name}` in model/ and parts/", _named(inside, name), "used")
            for name in FIELD
        ),
    ]


def _identifiers(package: Sequence[Source], group: Sequence[str]) -> Iterator[str]:
    for source in package:
        for token in source.tokens:
            if token.type == tokenize.NAME and set(group).intersection(words(token.string)):
                yield source.at(token.start[0], token.string)


def _anywhere(package: Sequence[Source], word: str) -> Iterator[str]:
    """Yield a word or its plural in code, docstrings and comments, as often as it stands there."""
    for source in package:
        for number, line in enumerate(source.text.splitlines(), 1):
            for found in words(line):
                if found in (word, f"{word}s"):
                    yield source.at(number, line.strip())


def _prefixed(package: Sequence[Source]) -> Iterator[str]:
    for source in package:
        for token in source.tokens:
            if token.type == tokenize.NAME and token.string.lstrip("_").startswith("of_"):
                yield source.at(token.start[0], token.string)


def _what(package: Sequence[Source]) -> Iterator[str]:
    for source in package:
        for line, text in source.docstrings:
            if words(text)[:1] == ["what"]:
                yield source.at(line, text.splitlines()[0])


def _named(package: Sequence[Source], name: str) -> Iterator[str]:
    for source in package:
        for token in source.tokens:
            if token.type == tokenize.NAME and token.string == name:
                yield source.at(token.start[0])
