"""Docstrings of spec fields, parsed from the source on demand."""

import ast
import inspect
import itertools
import sys
from functools import cache


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a class and its bases.

    They are not parsed with the classes, as pydantic can, because only the schema and tables of choices show them, and
    every command would start a tenth of a second later. A class without a source, typed into a console, has none.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _module_docstrings(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _module_docstrings(module_name: str) -> dict[str, dict[str, str]]:
    """Return the fields' docstrings of every top-level class of a module."""
    module = sys.modules.get(module_name)
    try:
        source = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for cls in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        found[cls.name] = {}
        for pair in itertools.pairwise(cls.body):
            match pair:  # an annotated name, and the string right below it
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[cls.name][name] = inspect.cleandoc(text)
    return found
