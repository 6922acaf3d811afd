"""The tests: private names of the package that they use, and what they patch."""

import ast
from collections.abc import Iterator, Sequence

from tests.house.sizes import BUDGETS
from tests.house.source import PACKAGE, Count, Source, calls

PATCHES = frozenset(("setattr", "delattr", "setitem", "delitem"))
"""Of pytest's monkeypatch; the environment and the current folder are seams that users have."""


def counts(tests: Sequence[Source], package: Sequence[Source]) -> list[Count]:
    """Return rows of what tests reach into."""
    defined = {name for source in package for name in _defined(source) if _is_private(name)}
    private = [place for source in tests for place in _private(source, defined)]
    return [
        Count("lines of tests", num_lines(tests), f"at most {BUDGETS['tests']}"),
        Count.of("private names of the package in tests", private, "0"),
        Count.of("patches in tests", (p for s in tests for p in _patches(s)), "few"),
    ]


def num_lines(tests: Sequence[Source]) -> int:
    """Return the lines of Python of the tests."""
    return sum(len(source.text.splitlines()) for source in tests)


def _defined(source: Source) -> Iterator[str]:
    """Yield the names of a file's functions, classes, variables and of attributes that are set."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _private(source: Source, defined: set[str]) -> Iterator[str]:
    """Yield private names that are imported, read from something else than oneself, or named to be patched."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            yield from (source.at(node, a.name) for a in node.names if _is_private(a.name))
        elif isinstance(node, ast.Attribute) and node.attr in defined:
            if _is_ours(source.meaning(node.value)) or _is_value(source, node.value):
                yield source.at(node, ast.unparse(node))
        elif isinstance(node, ast.Call) and _is_patch(node):
            texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
            names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
            yield from (source.at(node, name) for name in names if name in defined)


def _patches(source: Source) -> Iterator[str]:
    for call, _ in calls(source.tree):
        if _is_patch(call):
            yield source.at(call, ast.unparse(call)[:100])


def _is_patch(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in PATCHES or ast.unparse(call.func).startswith("mock.patch")


def _is_value(source: Source, node: ast.expr) -> bool:
    """Tell whether an expression is neither an imported name nor the test's own class or object."""
    return not source.meaning(node) and ast.unparse(node) not in ("self", "cls")


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == PACKAGE


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
