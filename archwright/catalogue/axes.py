"""Every choice there is, as data: found by walking the specs, so that what joins is in it by joining.

A section is an axis with its kinds, or a table of options that is no axis.
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, combinations, product
from types import UnionType
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from archwright.spec.choice import Choice, Spec, Uniform
from archwright.spec.cross_attention import CrossAttention
from archwright.spec.docstrings import field_docstrings
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask
from archwright.spec.model_spec import Encoder, LayerSpec
from archwright.spec.objectives import Objective
from archwright.spec.overrides import flatten, toml_value
from archwright.spec.positions import Position
from archwright.spec.read import load_run
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec

BASE = "modern"
"""The preset that every command starts from."""

ORDER = (
    "model",
    "model.embedding",
    "model.position",
    "model.position.scaling",
    "model.norm",
    "model.residual",
    "model.attention",
    "model.attention.mask",
    "model.attention.scale",
    "model.attention.query_temperature",
    "model.attention.distance_scores",
    "model.attention.value_embedding",
    "model.recurrence",
    "model.cross_attention",
    "model.feedforward",
    "model.feedforward.routing",
    "model.head",
    "model.head.transform",
    "model.sequence_head",
    "model.init",
    "model.layers",
    "model.encoder",
    "model.generator",
    "data.task",
    "objective",
    "optimizer",
    "schedule",
    "",
)
"""Sections in the order of a model, then of its training; axes that are not among them follow. A table
that is not among them is shown where it is an option, or is no choice of an architecture."""

TOP = {"model", ""}
"""Tables whose own tables have sections of their own."""

COMPANIONS: dict[str, type[Choice]] = {
    "objective": Objective,
    "model.attention.mask": Mask,
    "model.cross_attention": CrossAttention,
    "model.encoder": Encoder,
    "model.position": Position,
}
"""Axes whose choices take or give what others must have, by their places."""

FELLOWS = (
    "objective.kind=replaced_tokens",
    "model.generator.kind=stack",
    "model.head.predicts=replaced",
    "model.attention.mask.kind=full",
)
"""Assignments of which none trains without the others."""

UNLISTED = {"kind", "name", "source", "sources", "loggers", "parts"}
"""Fields that are named or recorded, not chosen."""


@dataclass(frozen=True)
class Option:
    """A value beside a kind: how to ask for it, and what it may be."""

    owner: type[Spec]
    name: str
    asks: tuple[str, ...]
    """Assignments, with a value that is an example."""
    default: str
    values: str
    opens: str
    """The axis whose kinds it takes, if any."""
    meaning: str


@dataclass(frozen=True)
class Kind:
    """A choice of an axis."""

    cls: type[Choice]
    name: str
    meaning: str
    asks: tuple[str, ...]
    options: tuple[Option, ...]
    """Those that only this kind has, or that it declares itself."""


@dataclass(frozen=True)
class Family:
    """Kinds that have something in common."""

    kinds: tuple[str, ...]
    meaning: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Section:
    """An axis, or a table of options."""

    name: str
    path: str
    places: tuple[str, ...]
    """Every path that takes its kinds."""
    cls: type[Spec]
    meaning: str
    default: str
    """The kind of who asks for none, at `path`."""
    kinds: tuple[Kind, ...]
    families: tuple[Family, ...]
    options: tuple[Option, ...]
    """Those of the table, or of all kinds."""


@dataclass(frozen=True)
class _Place:
    path: str
    cls: type[Spec]
    default: str = ""
    needs: tuple[str, ...] = ()
    """Kinds that must be asked for above it."""


def sections() -> list[Section]:
    """Return every axis and table, in the order of a model, those that joined from outside included."""
    return [_section(places) for places in _places()]


def asks_of(choice: type[Choice]) -> tuple[str, ...]:
    """Return the assignments that ask a run for a choice, with those of other axes that go with it."""
    place = next(p[0] for p in _places() if _is_axis(p[0].cls) and p[0].cls.axis == choice.axis)
    return _kind(place, str(choice.model_fields["kind"].default), choice).asks


def command(asks: Iterable[str]) -> str:
    """Return the command line that trains the base with some assignments."""
    return f"archwright train {BASE} {shlex.join(asks)}"


def sentence(text: str | None) -> str:
    """Return a docstring as running text."""
    return " ".join((text or "").split())


@cache
def refusal(asks: tuple[str, ...]) -> str:
    """Return what is printed of assignments that cannot be trained, or nothing."""
    try:
        enforce_run(_base_run().override(*asks))
    except UserError as error:
        return "; ".join(error.lines)
    return ""


def _places() -> list[list[_Place]]:
    """Return the places of each axis and of each table with a section, the first of them first."""
    found: dict[type[Spec], list[_Place]] = {}
    for place in [_Place("", RunSpec), *_walk(RunSpec)]:
        if _is_axis(place.cls) or place.path in ORDER:
            # The axis, also where a place takes only the choices that share a class.
            axis = next((cls for cls in place.cls.__mro__ if "axis" in cls.__dict__), place.cls)
            found.setdefault(axis, []).append(place)
    return sorted(
        (sorted(places, key=_rank) for places in found.values()), key=lambda p: _rank(p[0])
    )


def _walk(cls: type[Spec], at: str = "", needs: tuple[str, ...] = ()) -> Iterator[_Place]:
    """Yield every table below a spec, over all kinds of each axis."""
    for name, field in cls.model_fields.items():
        inner, path = field.annotation, at + (field.alias or name)
        if not _is_spec(inner):
            continue
        default = field.get_default(call_default_factory=True)
        yield _Place(path, inner, getattr(default, "kind", ""), needs)
        if not _is_axis(inner):
            yield from _walk(inner, f"{path}.", needs)
            continue
        for kind, member in inner.choices().items():
            if not _is_stack(member):  # whose axes are those of every layer
                yield from _walk(member, f"{path}.", (*needs, f"{path}.kind={kind}"))


def _section(places: list[_Place]) -> Section:
    place = places[0]
    cls, at = place.cls, f"{place.path}." if place.path else ""
    kinds: tuple[Kind, ...] = ()
    families: tuple[Family, ...] = ()
    if _is_axis(cls):
        families = tuple(_families(cls, at))
        kinds = tuple(_kind(place, kind, member) for kind, member in cls.kinds.items())
    name = getattr(cls, "axis", "") or place.path.rpartition(".")[2] or "run"
    return Section(
        name=name,
        path=place.path,
        places=tuple(dict.fromkeys(place.path for place in places)),
        cls=cls,
        meaning=sentence(
            (cls.__doc__ or "").split("\n\n")[0] if place.path in TOP else cls.__doc__
        ),
        default=place.default,
        kinds=kinds,
        families=families,
        options=tuple(_options(cls, at, leave_out_tables=place.path in TOP)),
    )


def _kind(place: _Place, kind: str, cls: type[Choice]) -> Kind:
    shared = {name for base in _bases(cls) for name in base.model_fields}
    if _is_stack(cls):  # whose axes have sections of their own
        shared |= {*LayerSpec.model_fields, "layer_kinds", "layers"}
    options = tuple(_options(cls, f"{place.path}.", leave_out=shared))
    base = _base()
    needs = [
        need for need in place.needs if base.get(need.partition("=")[0]) != need.partition("=")[2]
    ]
    asks = [*needs, f"{place.path}.kind={kind}"]
    if kind != place.default:
        asks += [ask for option in options if _belongs(cls, option) for ask in option.asks]
    return Kind(cls, kind, sentence(cls.__doc__), _with_companion(tuple(asks)), options)


def _with_companion(asks: tuple[str, ...]) -> tuple[str, ...]:
    """Return assignments that can be trained: as they are, or with those of other axes that go with them."""
    if not refusal(asks):
        return asks
    asked = {ask.partition(".kind=")[0] for ask in asks}
    axes = [
        [f"{path}.kind={kind}" for kind in axis.choices()]
        for path, axis in COMPANIONS.items()
        if path not in asked
    ]
    wider = [
        ((*asks, *more) for some in combinations(axes, number) for more in product(*some))
        for number in (1, 2)
    ]
    fellows = [ask for ask in FELLOWS if ask.partition(".kind=")[0] not in asked]
    all_fellows = [(*asks, *fellows)] if {*asks} & {*FELLOWS} else []
    tried = chain(wider[0], all_fellows, wider[1])
    return next((more for more in tried if not refusal(more)), asks)


@cache
def _base() -> dict[str, Any]:
    """Return every value of the base, by dotted path."""
    return flatten(_base_run().model_dump(by_alias=True))


@cache
def _base_run() -> RunSpec:
    return load_run(BASE)


def _belongs(cls: type[Spec], option: Option) -> bool:
    """Tell whether a command needs the option: it has no default, or one that is too large for the base."""
    field = cls.model_fields.get(option.name)
    if field is None:
        return False
    numbers = isinstance(field.default, (int, float)) and bool(field.default)
    return field.is_required() or (numbers and bool(field.examples))


def _families(axis: type[Choice], at: str) -> Iterator[Family]:
    """Yield what some kinds have in common, the smallest group first."""
    members: dict[type[Choice], list[str]] = {}
    for kind, cls in axis.kinds.items():
        for base in _bases(cls):
            if base is not axis:
                members.setdefault(base, []).append(kind)
    for base in sorted(members, key=lambda base: len(members[base])):
        above = {name for other in _bases(base) for name in other.model_fields}
        options = tuple(_options(base, at, leave_out=above))
        yield Family(tuple(members[base]), sentence(base.__doc__), options)


def _bases(cls: type[Spec]) -> list[type[Choice]]:
    """Return the axis of a choice and what stands between the two, except for other choices."""
    return [
        base
        for base in cls.__mro__[1:]
        if issubclass(base, Choice) and hasattr(base, "axis") and "kind" not in base.model_fields
    ]


def _options(
    cls: type[Spec], at: str, leave_out: Iterable[str] = (), *, leave_out_tables: bool = False
) -> Iterator[Option]:
    """Yield the options that a class has, with those of the tables among them below each."""
    docstrings = field_docstrings(cls)
    for name, field in cls.model_fields.items():
        key = field.alias or name
        inner: Any = field.annotation
        if name in UNLISTED or name in leave_out or (leave_out_tables and _is_spec(inner)):
            continue
        meaning = sentence(docstrings.get(name))
        table = _is_spec(inner) and not _is_axis(inner)
        if not table or field.examples:
            yield Option(
                owner=cls,
                name=name,
                asks=tuple(_asks(at + key, field)),
                default=_default(field),
                values=_either(_values(inner, field.metadata)),
                opens=inner.axis if _is_axis(inner) else "",
                meaning=meaning,
            )
        if table:
            for below in _options(inner, f"{at}{key}."):
                yield replace(below, owner=cls, name=f"{name}.{below.name}")


def _asks(path: str, field: FieldInfo) -> Iterator[str]:
    """Yield assignments of an example: that of the field, another value of a few, or the default."""
    default, inner = field.get_default(call_default_factory=True), field.annotation
    example: Any = "VALUE" if default is PydanticUndefined else default
    if field.examples:
        example = field.examples[0]
    elif inner is bool:
        example = not default
    elif get_origin(inner) is Literal:
        example = next((value for value in get_args(inner) if value != default), default)
    elif _is_axis(inner):
        others = [k for k in inner.choices() if k not in ("none", getattr(default, "kind", ""))]
        example = {"kind": next(iter(others), "none")}
    values = flatten(example, f"{path}.") if isinstance(example, dict) else {path: example}
    for key, value in values.items():
        yield f"{key}={_written(value)}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Choice):
        return value.kind
    if isinstance(value, Spec):  # a table for which one value stands
        return _written(next(iter(value.model_dump().values())))
    if isinstance(value, tuple) and value and isinstance(value[0], Spec):
        return f"{len(value)} tables"
    return "" if value is PydanticUndefined else _written(value)


def _values(annotation: Any, metadata: Iterable[Any] = ()) -> list[str]:
    """Return what a value may be, as alternatives."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for a in args[1:] for m in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return _values(args[0], [*metadata, *inner])
    if origin in (Union, UnionType):
        return [found for arg in args for found in _values(arg, metadata)]
    if origin is Literal:
        return [_written(value) for value in args]
    if annotation is bool:
        return ["true", "false"]
    if origin is tuple:
        number = "a list" if args[-1] is Ellipsis else f"a list of {len(args)}"
        return [f"{number}, each {_either(_values(args[0]))}"]
    if _is_axis(annotation):
        return [*annotation.choices()]
    if _is_spec(annotation):
        one = next(iter(annotation.model_fields.values())).annotation
        return [*(_values(one) if issubclass(annotation, Uniform) else []), "a table"]
    if isinstance(annotation, type) and issubclass(annotation, str):
        return ["text"]
    named = {int: "a whole number", float: "a number"}
    return [f"{named.get(origin or annotation, 'a table')}{_limits(metadata)}"]


def _limits(metadata: Iterable[object]) -> str:
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    found = [
        f"{word} {getattr(limit, key):g}"
        for limit in metadata
        for key, word in words.items()
        if getattr(limit, key, None) is not None and getattr(limit, key) < 2**12
    ]
    return f" {' and '.join(found)}" if found else ""


def _either(found: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(found[:-1]), found[-1]]))


def _written(value: object) -> str:
    """Return a value as it stands after the `=` of an assignment."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        inner = [f'"{item}"' if isinstance(item, str) else _written(item) for item in value]
        return f"[{','.join(inner)}]"
    return toml_value(value) if isinstance(value, dict) else str(value)


def _rank(place: _Place) -> int:
    return ORDER.index(place.path) if place.path in ORDER else len(ORDER)


def _is_stack(cls: type) -> bool:
    return issubclass(cls, LayerSpec)


def _is_spec(annotation: object) -> TypeGuard[type[Spec]]:
    return isinstance(annotation, type) and issubclass(annotation, Spec)


def _is_axis(annotation: object) -> TypeGuard[type[Choice]]:
    return _is_spec(annotation) and issubclass(annotation, Choice) and annotation.is_axis()
