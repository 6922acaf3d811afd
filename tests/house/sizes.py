"""Sizes: of rooms, files and functions, and how far ideas are cut into functions that only one place calls."""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.house.source import Count, Source

Function = ast.FunctionDef | ast.AsyncFunctionDef
LONG_FUNCTION = 50
LONG_FILE = 400
BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text("utf-8"))
"""Most lines of the package, of its rooms, of the tests and of documents."""
READ_FIRST = ("Decoder", "hidden")
"""The method in which a reader meets the model."""


def counts(package: Sequence[Source]) -> list[Count]:
    """Return rows of lines, functions and files."""
    functions = [(source, node) for source in package for node in _functions(source.tree)]
    private = [(source, node) for source, node in functions if _is_private(node.name)]
    return [
        *_lines(package),
        Count("functions", len(functions)),
        Count("private functions", len(private)),
        Count.of("private functions that are called once", _called_once(package), "about 300"),
        Count.of(
            f"functions over {LONG_FUNCTION} lines",
            (s.at(node, node.name) for s, node in functions if _length(node) > LONG_FUNCTION),
            "few",
        ),
        Count.of(
            f"files over {LONG_FILE} lines",
            (s.at(_num_lines(s)) for s in package if _num_lines(s) > LONG_FILE),
            "few",
        ),
        Count("lines of Decoder.hidden", _length_of(package, *READ_FIRST), "at most 20"),
    ]


def _lines(package: Sequence[Source]) -> list[Count]:
    """Return lines of Python in all and per room next to their budgets, blank ones and docstrings included."""
    lines = lines_of_rooms(package)
    rooms = [
        Count(f"  {room}", number, f"at most {BUDGETS['rooms'].get(room, 0)}")
        for room, number in lines.most_common()
    ]
    return [Count("lines of Python", lines.total(), f"at most {BUDGETS['package']}"), *rooms]


def lines_of_rooms(package: Sequence[Source]) -> Counter[str]:
    """Return the lines of Python of each room."""
    lines = Counter[str]()
    for source in package:
        lines[source.room] += _num_lines(source)
    return lines


def _num_lines(source: Source) -> int:
    return len(source.text.splitlines())


def _functions(tree: ast.AST) -> list[Function]:
    """Return all functions and methods, those inside others too."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def _length(node: Function) -> int:
    """Return the lines of a function, without its decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _length_of(package: Sequence[Source], owner: str, name: str) -> int:
    """Return the lines of a method, or 0 where there is none."""
    for source in package:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                return next((_length(f) for f in _functions(node) if f.name == name), 0)
    return 0


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _called_once(package: Sequence[Source]) -> Iterator[str]:
    """Yield private functions whose name stands in one place of their file beside their definition, in a call."""
    for source in package:
        called, named = Counter[str](), Counter[str]()
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                called[_name(node.func)] += 1
            named[_name(node)] += 1
        for function in _functions(source.tree):
            if _is_private(function.name) and named[function.name] == called[function.name] == 1:
                yield source.at(function, function.name)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
