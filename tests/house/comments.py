"""Comments: how many there are, and whether tensors whose shape changes say their shape."""

import ast
import re
import tokenize
from collections.abc import Iterator, Sequence

from tests.house.source import Count, Source, calls

DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma)")
SHAPE = re.compile(r"#.*\[[^\[\]]*[a-z][^\[\]]*\]")
"""`# [batch, length, dim]`, with words before it or not."""
RESHAPES = frozenset(
    ("reshape", "view", "transpose", "permute", "movedim", "flatten", "unflatten", "einsum")
)
TENSORS = ("model", "parts")
"""Rooms whose arithmetic states shapes."""


def counts(package: Sequence[Source]) -> list[Count]:
    """Return rows of comments, of their share, and of shapes."""
    inside = [source for source in package if source.room in TENSORS]
    comments = [place for source in package for place in _comments(source)]
    code = sum(len(_lines_of_code(source)) for source in package)
    share = f"{100 * len(comments) / max(1, code):.2f} %"
    alone = [place for source in package for place in _comments(source, alone=True)]
    return [
        Count("lines of code, without docstrings and comments", code),
        Count.of("lines with a comment", comments),
        Count.of("of these, lines of their own", alone),
        Count("lines with a comment, as a share of lines of code", share, "about 4 %"),
        Count.of("comments in model/ and parts/", (p for s in inside for p in _comments(s))),
        Count.of("shape comments in model/ and parts/", (p for s in inside for p in _shapes(s))),
        Count.of("reshapes there without one", (p for s in inside for p in _unshaped(s)), "0"),
    ]


def _comments(source: Source, *, alone: bool = False) -> Iterator[str]:
    """Yield comments that people read, or those of them that have a line of their own."""
    for token in source.tokens:
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        if not alone or token.line.lstrip().startswith("#"):
            yield source.at(token.start[0], token.string)


def _shapes(source: Source) -> Iterator[str]:
    yield from (place for place in _comments(source) if SHAPE.search(place))


def _unshaped(source: Source) -> Iterator[str]:
    """Yield statements that change a tensor's shape with no shape beside them or in the line above."""
    shaped = {int(place.split(":")[1]) for place in _shapes(source)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            names = {name for _, name in calls(node)} & RESHAPES
            if names and not shaped.intersection(range(node.lineno - 1, _end(node) + 1)):
                yield source.at(node, ", ".join(sorted(names)))


def _lines_of_code(source: Source) -> set[int]:
    """Return the lines that have anything but blanks, comments and docstrings."""
    aside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    aside |= {tokenize.ENDMARKER}
    found = set()
    for token in source.tokens:
        if token.type not in aside:
            found |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found -= {*range(node.lineno, _end(node) + 1)}
    return found


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
