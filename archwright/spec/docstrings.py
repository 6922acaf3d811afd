"""The sentences under the fields of a spec, read from its source when somebody asks for them."""

import ast
import inspect
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
def _module_docstrings(name: str) -> dict[str, dict[str, str]]:
    """Return the fields' docstrings of every class at the top of a module."""
    module = sys.modules.get(name)
    try:
        source = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return {}
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {cls.name: _class_docstrings(cls) for cls in classes}


def _class_docstrings(node: ast.ClassDef) -> dict[str, str]:
    """Pair each annotated name with the string that stands right below it."""
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    found[field.target.id] = inspect.cleandoc(text)
    return found
