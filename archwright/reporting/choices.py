"""Choices of a spec as table rows, with differences from the defaults marked."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from pydantic_core import PydanticUndefined

from archwright.reporting.document import Row
from archwright.spec.choice import Spec
from archwright.spec.docstrings import field_docstrings
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.residuals import PerBranch

HEAD = ("Part", "Choice", "Options", "Meaning")

UNLISTED = ("name", "source", "sources", "layer_kinds", "layers")
"""Model fields that get no separate row in the table: the origin of the model, and its layers."""


def model_rows(spec: ModelSpec) -> list[Row]:
    """Return the choices of a resolved architecture. Results of "auto" are not marked."""
    rows = list(_rows(spec, ModelSpec(), unmarked=automatic_paths(spec), leave_out=UNLISTED))
    if not spec.layer_kinds:
        return rows
    order = " ".join(spec.layers.names(spec.num_layers))
    rows.append(Row(("layers", order, "", "The kind of every layer, first to last.")))
    default = spec.layers_by_kind["default"]
    for name in spec.layer_kinds:
        below = _rows(spec.layers_by_kind[name], default, f"{name}.", versus="other layers")
        rows += [row for row in below if row.mark]
    return rows


def spec_rows(spec: Spec, leave_out: Collection[str] = ()) -> list[Row]:
    """Return the values of a spec, without the fields in `leave_out`."""
    return list(_rows(spec, type(spec)(), leave_out=leave_out))


def automatic_paths(spec: ModelSpec) -> set[str]:
    """Return the paths of numbers that equal the result of "auto" for them."""
    resolved = spec.resolved(_vocab_size(spec))
    reduced, paths = spec, set()
    for path in _paths_with_auto(spec):
        with suppress(UserError):  # the value of "auto" may be invalid here
            freed = reduced.override(f"{path}=auto")
            if freed.resolved(_vocab_size(spec)) == resolved:
                reduced = freed
                paths.add(path)
    return paths


def _rows(
    spec: Spec,
    default: Spec,
    at: str = "",
    *,
    unmarked: Collection[str] = (),
    leave_out: Collection[str] = (),
    versus: str = "default",
) -> Iterator[Row]:
    """Yield a row for each value, then rows for each choice."""
    fields = {name: f for name, f in type(spec).model_fields.items() if name not in leave_out}
    inner = [name for name in fields if isinstance(getattr(spec, name), Spec)]
    docstrings = field_docstrings(type(spec))
    for name in (name for name in fields if name not in inner):
        path, value, base = at + name, getattr(spec, name), getattr(default, name)
        differs = value != base and path not in unmarked
        mark = f"{versus}: {_shown(base)}" if differs else ""
        if differs or not _empty(value):
            yield Row((path, _shown(value), "", _sentence(docstrings.get(name))), mark)
    for name in inner:
        yield from _choice(at + name, getattr(spec, name), getattr(default, name), unmarked, versus)


def _choice(
    path: str, spec: Spec, default: object, unmarked: Collection[str], versus: str
) -> Iterator[Row]:
    """Yield a row for a choice, then rows for nested choices."""
    kind = getattr(spec, "kind", None)
    same = isinstance(default, type(spec))
    marks = [] if same or kind is None else [f"{versus}: {getattr(default, 'kind', 'not given')}"]
    options, inner = [], []
    for name, field in type(spec).model_fields.items():
        key, value = field.alias or name, getattr(spec, name)
        base = getattr(default, name) if same else field.get_default(call_default_factory=True)
        if isinstance(value, Spec) and not isinstance(value, PerBranch):
            inner.append((f"{path}.{key}", value, base))
        elif name != "kind":
            options += [] if _empty(value) else [(key, value)]
            if value != base and base is not PydanticUndefined and f"{path}.{key}" not in unmarked:
                marks.append(f"{versus} {key}: {_shown(base)}")
    if kind or options:
        cells = (path, *_choice_cells(kind, options), _sentence(type(spec).__doc__))
        yield Row(cells, "; ".join(marks))
    for below in inner:
        yield from _choice(*below, unmarked, versus)


def _choice_cells(kind: str | None, options: list[tuple[str, Any]]) -> tuple[str, str]:
    """Return the cells of a choice and its options; if all options are switches, only the enabled ones."""
    if kind is None and options and all(isinstance(value, bool) for _, value in options):
        on = [key for key, value in options if value]
        return ("all" if len(on) == len(options) > 1 else ", ".join(on) or "none"), ""
    return kind or "", ", ".join(f"{key} {_shown(value)}" for key, value in options)


def _paths_with_auto(spec: Spec, at: str = "") -> Iterator[str]:
    """Yield the paths of numbers that could be "auto"."""
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _paths_with_auto(value, f"{at}{name}.")
        elif field.default == "auto" and value != "auto":
            yield at + name


def _vocab_size(spec: ModelSpec) -> int | None:
    return None if spec.vocab_size == "auto" else spec.vocab_size


def _shown(value: object) -> str:
    if value is PydanticUndefined:
        return "not given"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, PerBranch):
        branches = ", ".join(f"{name} {_shown(number)}" for name, number in value.given.items())
        return f"({branches})" if value.one is None else _shown(value.one)
    if isinstance(value, (tuple, list)):
        return ", ".join(_shown(item) for item in value) or "none"
    return str(value) if value != "" else "none"


def _empty(value: object) -> bool:
    return value in ("", (), [], {})


def _sentence(text: str | None) -> str:
    """Return a docstring as a single line without backticks."""
    return " ".join((text or "").replace("`", "").split())
