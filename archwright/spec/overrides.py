"""Dotted overrides: `model.dim=256` replaces one value of a spec."""

import tomllib
from collections.abc import Iterable, Iterator
from os import PathLike
from typing import Any, TypeVar

import tomli_w
from pydantic.fields import FieldInfo

from archwright.spec.choice import Choice, Spec
from archwright.spec.errors import UserError, nearest
from archwright.spec.merge import merge, validated
from archwright.spec.other_names import GONE, KEYS
from archwright.spec.toml import MOST_DEPTH, Unreadable, parse_toml
from archwright.spec.validation_errors import show

S = TypeVar("S", bound=Spec)
Values = dict[str, Any]
Keys = tuple[str, ...]


def override(spec: S, assignments: Iterable[str]) -> S:
    """Return `spec` with dotted values replaced, all at once, in any order.

    Raises:
        UserError: Invalid assignments, unknown paths, illegal values or duplicates, one per line.
    """
    given, lines = _assigned(spec, assignments)
    over: Values = {}
    for keys, value in given.items():
        over = merge(over, _nest(keys, value))
    try:
        changed = validated(type(spec), merge(dump(spec), type(spec).implied(over)))
    except UserError as error:
        lines += error.lines
    if lines:
        raise UserError(*lines)
    return without_stale_sources(spec, changed)


def without_stale_sources(before: Any, after: S) -> S:
    """Return `after` without the sources of replaced values and choices of `before`."""
    if isinstance(inner := getattr(after, "model", None), Spec):
        return after.model_copy(update={"model": without_stale_sources(before.model, inner)})
    stated: dict[str, str] = getattr(after, "sources", {})
    old, new = (flatten(dump(spec)) if stated else {} for spec in (before, after))
    stale = tuple(f"{key.removesuffix('.kind')}." for key in old if old[key] != new.get(key))
    kept = {
        path: source
        for path, source in stated.items()
        if not f"{path}.".startswith(stale) or source != before.sources.get(path)
    }
    return after if kept == stated else after.model_copy(update={"sources": kept})


def assignments_of(*given: Any) -> list[str]:
    """Return overrides as assignments: texts unchanged, dicts as one assignment per key.

    Raises:
        UserError: Another type, or a value that TOML cannot hold.
    """
    found: list[str] = []
    for one in given:
        try:
            found += (
                [one] if isinstance(one, str) else (f"{k}={toml_value(v)}" for k, v in one.items())
            )
        except (AttributeError, TypeError):
            raise UserError(
                f'found {repr(one)[:100]}; expected "key=value", or a dict or keyword arguments of numbers, texts, '
                "booleans, lists and dicts, such as dim=64"
            ) from None
    return found


def assigned(cls: type[Spec], assignments: Iterable[str]) -> Values:
    """Return the assigned value of each dotted path, with tables split into paths."""
    found: Values = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        path, whole = full_path(cls, name.strip()), _value(text.strip())
        for keys, value in _leaves(path, whole):
            found[".".join(keys)] = value
    return found


def full_path(cls: type[Spec], key: str) -> Keys:
    """Return the path of a dotted key with or without its optional table: `norm.kind` of a run is `model.norm.kind`,
    and `model.norm.kind` of a model is `norm.kind`."""
    keys = _keys(key)
    if cls.table and keys[0] == cls.table and len(keys) > 1 and cls.table not in cls.model_fields:
        return keys[1:]
    if _begins(cls, keys):
        return keys
    for name, field in cls.model_fields.items():
        inner = _spec_of(field)
        if inner is not None and inner.table == name and _begins(inner, keys):
            return (name, *keys)
    return keys


def flatten(values: Values, prefix: str = "") -> Values:
    """Return nested tables as one table of dotted paths; empty tables vanish."""
    flat: Values = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def prefixes(path: str) -> list[str]:
    """Return a dotted path and the paths of its tables, longest first."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def toml_value(value: object) -> str:
    """Return a value as TOML on a single line."""
    value = dump(value) if isinstance(value, Spec) else value
    value = str(value) if isinstance(value, PathLike) else value
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inner = (f"{key} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {', '.join(inner)} }}" if value else "{}"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def paths(cls: type[Spec], prefix: str = "") -> Iterator[str]:
    """Yield every dotted path of an override, over all choices of each axis."""
    for name, field in cls.model_fields.items():
        name, inner = field.alias or name, field.annotation
        yield prefix + name
        for member in _members(inner):
            yield from paths(member, f"{prefix}{name}.")


def _members(annotation: Any) -> Iterable[type[Spec]]:
    """Return the specs that fit a field: its table, or all choices of its axis."""
    if not (isinstance(annotation, type) and issubclass(annotation, Spec)):
        return ()
    if issubclass(annotation, Choice) and annotation.is_axis():
        return annotation.choices().values()
    return (annotation,)


def has_path(cls: type[Spec], keys: Keys) -> bool:
    """True if a path is one of `paths`, without iterating over all of them."""
    tables: list[type[Spec]] = [cls]
    for key in keys:
        found = [
            field
            for table in tables
            for name, field in table.model_fields.items()
            if key == (field.alias or name)
        ]
        if not found:
            return False
        tables = [member for field in found for member in _members(field.annotation)]
    return True


def dump(spec: Spec) -> Values:
    """Return a spec as a table, with the names of its file."""
    return spec.model_dump(by_alias=True)


def _assigned(spec: Spec, assignments: Iterable[str]) -> tuple[dict[Keys, Any], list[str]]:
    """Return paths with their values, and an error for each invalid assignment."""
    given: dict[Keys, Any] = {}
    lines: list[str] = []
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            example = "model.dim=256" if "model" in type(spec).model_fields else "dim=256"
            lines.append(f"{show(assignment)}: expected key=value, such as {example}")
            continue
        try:
            value = _value(text.strip())
        except Unreadable as error:
            lines.append(f"{name}: {error}")
            continue
        path = full_path(type(spec), name)
        if unknown := _unknown_path(type(spec), path):
            lines.append(unknown)
        elif name in KEYS and not (
            isinstance(value, dict) or has_path(type(spec), (*path, "kind"))
        ):
            lines.append(  # `layers` and `data` are tables here
                f'{name}: found {show(value)}; expected a table. Did you mean "{KEYS[name]}"?'
            )
        else:
            for keys, inner in _leaves(path, value):
                lines += _contradictions(keys, inner, given)
                given[keys] = inner
    return given, lines


def _keys(path: str) -> Keys:
    """Split a path at its dots, except the path after `sources.`."""
    before, found, value = path.rpartition("sources.")
    return (*before.split(".")[:-1], "sources", value) if found else tuple(path.split("."))


def _begins(cls: type[Spec], keys: Keys) -> bool:
    """True if a path's first key, and its second within a plain table, exists in a spec."""
    field = cls.model_fields.get(keys[0])
    if field is None or len(keys) == 1:
        return field is not None
    inner = _spec_of(field)
    if inner is None or issubclass(inner, Choice):
        return True
    return any(keys[1] == (f.alias or n) for n, f in inner.model_fields.items())


def _spec_of(field: FieldInfo) -> type[Spec] | None:
    """Return the class of a field that is a table; else None."""
    inner = field.annotation
    return inner if isinstance(inner, type) and issubclass(inner, Spec) else None


def _leaves(keys: Keys, value: object) -> Iterator[tuple[Keys, Any]]:
    """Yield the values of nested tables with their paths."""
    if not isinstance(value, dict) or not value:
        yield keys, value
        return
    for key, inner in value.items():
        yield from _leaves((*keys, key), inner)


def _contradictions(keys: Keys, value: object, given: dict[Keys, Any]) -> list[str]:
    """Return errors for values that contradict earlier ones, so that order has no effect."""
    if keys in given and given[keys] != value:
        first, second = show(given[keys]), show(value)
        return [f"{'.'.join(keys)}: given twice, as {first} and as {second}"]
    pairs = [sorted((keys, other), key=len) for other in given if other != keys]
    return [
        f"{'.'.join(whole)}: given whole and, by {'.'.join(part)}, in part"
        for whole, part in pairs
        if part[: len(whole)] == whole
    ]


def _unknown_path(cls: type[Spec], keys: Keys) -> str:
    """Return an error for a path of no choice, with the nearest path of the whole spec; else ""."""
    free = "sources" in keys or ("layer_kinds" in keys and len(keys) < MOST_DEPTH)
    if free or has_path(cls, keys):
        return ""
    path, known = ".".join(keys), [*dict.fromkeys(paths(cls))]
    if path in GONE:
        return f"{path}: {GONE[path]}"
    short = [k.partition(".")[2] for k in known if k.startswith("model.")]
    meant = _meant(path, short, known)
    hint = f' Did you mean "{meant}"?' if meant else nearest(path, [*short, *known])
    if not hint:
        hint = nearest(keys[-1], [k.split(".")[-1] for k in known])
    return f"{path}: unknown key.{hint}"


def key_meant(cls: type[Spec], path: str) -> str:
    """Return the key of a spec with this path, last part or common other name; "" if there is none."""
    known = [*paths(cls)]
    short = [k.partition(".")[2] for k in known if k.startswith("model.")]
    is_key = path in (*short, *known) and path not in KEYS
    return path if is_key else _meant(path, short, known)


def _meant(path: str, short: list[str], known: list[str]) -> str:
    same_leaf = [k for k in known if k.endswith(f".{path}")]
    outermost = min(same_leaf, key=lambda k: k.count("."), default="")
    elsewhere = KEYS.get(path.removeprefix("model."), "")
    return elsewhere if elsewhere in (*short, *known) else outermost


def _value(text: str) -> Any:
    """Return a value parsed as TOML, or the text if it is not TOML."""
    try:
        return parse_toml(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _nest(keys: Keys, value: Any) -> Values:
    for key in reversed(keys):
        value = {key: value}
    nested: Values = value
    return nested
