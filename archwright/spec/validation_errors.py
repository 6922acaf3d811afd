"""Validation errors in the user's terms: path, value, expected values, nearest name."""

import json
import re
from typing import Any

from pydantic import ValidationError

from archwright.format import QUOTED, number_text, shortened
from archwright.spec.choice import Choice, Spec
from archwright.spec.errors import UserError, nearest
from archwright.spec.other_names import GONE, VALUES

Path = tuple[str, ...]

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "some text",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "multiple_of": "a multiple of {multiple_of}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "tuple_type": "a list",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "missing": "a value",
}


def explain(
    error: ValidationError, cls: type[Spec], values: dict[str, Any], at: Path = ()
) -> list[str]:
    """Return an error for each mistake in `values` of a `cls`."""
    lines: list[str] = []
    expected: dict[Path, list[str]] = {}
    found: dict[Path, Any] = {}
    named: set[Path] = set()  # paths of values from a list of names
    for problem in error.errors():
        path, owner = locate(cls, tuple(problem["loc"]), values)
        inner = problem.get("ctx", {}).get("error")
        if isinstance(inner, UserError):
            prefix = f"{dotted(at + path)}." if at + path else ""
            lines += [prefix + line for line in inner.lines]
        elif problem["type"] == "extra_forbidden":
            lines.append(unknown(dotted(at + path), path[-1], owner))
        elif problem["type"] == "kind":
            expected[(*path, "kind")] = [_expectation(problem)]
            found[(*path, "kind")] = problem["ctx"]["found"]
        elif problem["type"] == "missing" and isinstance(problem["loc"][-1], int):
            expected[path] = [f"at least {problem['loc'][-1] + 1} of them"]
            found[path] = problem["input"]
        else:
            expected.setdefault(path, []).append(_expectation(problem))
            named |= {path} if problem["type"] == "literal_error" else set()
            found[path] = None if problem["type"] == "missing" else problem["input"]
    for path, parts in expected.items():
        alternatives = " or ".join(dict.fromkeys(parts))
        lines.append(f"{dotted(at + path)}: found {show(found[path])}; expected {alternatives}")
        if "a table with kind" in alternatives and f'"{found[path]}"' in alternatives:
            lines[-1] += f'. Write {dotted(at + path)}.kind = "{found[path]}".'
        elif path in named and isinstance(value := found[path], str):
            names = re.findall(r'"([^"]*)"', alternatives)
            elsewhere = VALUES.get(value.lower(), value)
            hint = nearest(elsewhere if elsewhere in names else value, names)
            lines[-1] += f".{hint}" if hint else ""
    return lines


def locate(cls: type[Spec], loc: tuple[Any, ...], values: object) -> tuple[Path, type[Spec]]:
    """Resolve an error's location through the specs, without names of union members.

    Returns the user's path and the class that owns its last key.
    """
    path: Path = ()
    owner = cls
    for depth, key in enumerate(loc):
        aliases = {f.alias: f for f in owner.model_fields.values()}
        field = owner.model_fields.get(str(key)) or aliases.get(str(key))
        path += (str(key),)
        if field is None:
            break
        values = values.get(key) if isinstance(values, dict) else None
        inner = _spec_class(field.annotation, values)
        if inner is None:
            return path + _keys_below(values, loc[depth + 1 :]), owner
        if depth < len(loc) - 1:
            owner = inner
    return path, owner


def unknown(path: str, key: str, owner: type[Spec]) -> str:
    """Return an error for `key` as an unknown option of `owner`, with its options and the nearest name."""
    if key in GONE:
        return f"{path}: {GONE[key]}"
    names = [field.alias or name for name, field in owner.model_fields.items()]
    return f"{path}: unknown option; accepted: {', '.join(names)}.{nearest(key, names)}"


def dotted(path: Path) -> str:
    """Join a path with dots; an empty path is the top level of the file."""
    return ".".join(path).replace("\n", "\\n") or "(top level)"


def show(value: object) -> str:
    """Return a value as in a file, on a single line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 80 else f'{text[:76]}..."'
    if value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        return shortened(f"[{', '.join(show(inner) for inner in value[:QUOTED])}]")
    return "a table" if isinstance(value, (dict, Spec)) else str(value)


def _expectation(problem: Any) -> str:
    template = EXPECTED.get(problem["type"])
    if template:
        context = {
            key: f"{value:g}" if isinstance(value, float) else str(value).replace("'", '"')
            for key, value in problem.get("ctx", {}).items()
        }
        return template.format(**context)
    message = str(problem["msg"]).removeprefix("Value error, ")
    return message.removeprefix("expected ").rstrip()


def _spec_class(annotation: object, values: object) -> type[Spec] | None:
    """Return the spec class for `values`, or None for plain values."""
    if not (isinstance(annotation, type) and issubclass(annotation, Spec)):
        return None
    if issubclass(annotation, Choice) and annotation.is_axis():
        kind = values.get("kind") if isinstance(values, dict) else None
        return annotation.choices().get(str(kind), annotation)
    return annotation


def _keys_below(values: Any, loc: tuple[Any, ...]) -> Path:
    """Return the part of a location that indexes actual values, without union members."""
    path: Path = ()
    for key in loc:
        indexed = isinstance(values, (list, tuple)) and isinstance(key, int) and key < len(values)
        if not indexed and not (isinstance(values, dict) and key in values):
            break
        values = values[key]
        path += (str(key),)
    return path
