"""Files of Python, read once: their syntax trees, comments and words, and what their imported names mean."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGE = "archwright"


@dataclass(frozen=True)
class Count:
    """A row of the table, and the places that were counted."""

    what: str
    number: int | str
    aim: str = ""
    places: tuple[str, ...] = ()

    @classmethod
    def of(cls, what: str, places: Iterable[str], aim: str = "") -> "Count":
        """Count places."""
        found = tuple(places)
        return cls(what, len(found), aim, found)


@dataclass(frozen=True)
class Source:
    """A file of Python below a root."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def module(self) -> str:
        """Its dotted name; that of its folder for an `__init__.py`."""
        return ".".join(self.path.with_suffix("").parts).removesuffix(".__init__")

    @property
    def room(self) -> str:
        """The folder or file below the package that it belongs to."""
        parts = self.path.with_suffix("").parts
        return parts[1] if len(parts) > 1 else parts[0]

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def docstrings(self) -> list[tuple[int, str]]:
        """Every string that stands by itself, that of an attribute too, with its line."""
        found = [
            (node.lineno, node.value.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
        return sorted(found)

    @cached_property
    def names(self) -> dict[str, str]:
        """What names mean that are imported, anywhere in the file, or defined at its top: name -> dotted name."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    found[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        defined = [n for n in self.tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))]
        return found | {node.name: f"{self.module}.{node.name}" for node in defined}

    def meaning(self, node: ast.AST) -> str:
        """Return the dotted name that an expression stands for; nothing where it is none of the file's names."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self.meaning(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    def at(self, place: ast.AST | int, text: str = "") -> str:
        """Return a place as `file:line: text`."""
        line = place if isinstance(place, int) else getattr(place, "lineno", 1)
        return f"{self.path.as_posix()}:{line}" + (f": {text}" if text else "")


def read(root: Path, folder: str = PACKAGE) -> list[Source]:
    """Return all files of Python in a folder, with paths from the root."""
    files = sorted((root / folder).rglob("*.py"))
    return [Source(f.relative_to(root), f.read_text(encoding="utf-8")) for f in files]


def words(identifier: str) -> list[str]:
    """Split `snake_case`, `CamelCase` and plain text into words in small letters."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call with the last part of the name that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            yield node, name or (node.func.id if isinstance(node.func, ast.Name) else "")
