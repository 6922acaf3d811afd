"""The sentences under the fields of a spec, read from its source when somebody asks for them."""

import ast
import inspect
import itertools
import sys
from functools import cache


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a class, its bases' included.

    Reading them when classes are made, as pydantic can, would cost every command a tenth of a
    second; only the schema and the tables of choices show them. A class without a source, one
    typed into a console, has none.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= _module_docstrings(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _module_docstrings(module_name: str) -> dict[str, dict[str, str]]:
    """Return the fields' docstrings of every class at the top of a module."""
    module = sys.modules.get(module_name)
    try:
        source = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for cls in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        found[cls.name] = {}
        for pair in itertools.pairwise(cls.body):
            match pair:  # an annotated name, and the string that stands right below it
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[cls.name][name] = inspect.cleandoc(text)
    return found
