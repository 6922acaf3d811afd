"""The catalogue of all choices, collected from the spec classes.

Registered plug-ins appear automatically. A section is an axis with its kinds, or a plain table of options.
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
"""Preset at the start of every command."""

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
    "model.attention.value_embedding",
    "model.recurrence",
    "model.recurrence.decay",
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
"""Order of the sections: the model, then its training. Other axes follow; other tables have no section."""

TOP = {"model", ""}
"""Top-level tables, by path. Their nested tables get separate sections and are not listed as options."""

COMPANIONS: dict[str, type[Choice]] = {
    "objective": Objective,
    "model.attention.mask": Mask,
    "model.cross_attention": CrossAttention,
    "model.encoder": Encoder,
    "model.position": Position,
}
"""Axes with choices that may require other axes' choices, by path."""

OF_SOME_LAYERS = {
    "model.attention.shares_kv": (
        "model.layer_kinds.shared.attention.shares_kv=true",
        'model.layers.cycle=["default", "shared"]',
    )
}
"""Example assignments of options that not all layers can have, by path."""

FELLOWS = (
    "objective.kind=replaced_tokens",
    "model.generator.kind=stack",
    "model.head.predicts=replaced",
    "model.attention.mask.kind=full",
)
"""Assignments that can only be trained together."""

UNLISTED = {"kind", "name", "source", "sources", "loggers", "parts"}
"""Fields that hold names or records, not choices."""


@dataclass(frozen=True)
class Option:
    """A setting of a kind or table, with its default and allowed values."""

    owner: type[Spec]
    name: str
    asks: tuple[str, ...]
    """Assignments that set the option to an example value."""
    default: str
    values: str
    opens: str
    """Axis of the value, if the value is a choice."""
    meaning: str


@dataclass(frozen=True)
class Kind:
    """A choice of an axis."""

    cls: type[Choice]
    name: str
    meaning: str
    asks: tuple[str, ...]
    options: tuple[Option, ...]
    """Options beyond those shared with other kinds."""


@dataclass(frozen=True)
class Family:
    """Kinds with a common base class, and its options."""

    kinds: tuple[str, ...]
    meaning: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Section:
    """An axis, or a table of options."""

    name: str
    path: str
    places: tuple[str, ...]
    """Paths of all fields with this class."""
    cls: type[Spec]
    meaning: str
    default: str
    """Default kind at `path`."""
    kinds: tuple[Kind, ...]
    families: tuple[Family, ...]
    options: tuple[Option, ...]
    """Options of the table, or options common to all kinds."""


@dataclass(frozen=True)
class _Place:
    path: str
    cls: type[Spec]
    default: str = ""
    needs: tuple[str, ...] = ()
    """Assignments of parent kinds that the path requires."""


def sections() -> list[Section]:
    """Return all axes and tables in the order of `ORDER`, with plug-ins."""
    return [_section(places) for places in _places()]


def asks_of(choice: type[Choice]) -> tuple[str, ...]:
    """Return the assignments that select a choice, with required companions."""
    place = next(p[0] for p in _places() if _is_axis(p[0].cls) and p[0].cls.axis == choice.axis)
    return _kind(place, str(choice.model_fields["kind"].default), choice).asks


def command(asks: Iterable[str]) -> str:
    """Return the command that trains the base preset with assignments."""
    return f"archwright train {BASE} {shlex.join(asks)}"


def sentence(text: str | None) -> str:
    """Join the lines of a docstring with single spaces."""
    return " ".join((text or "").split())


@cache
def refusal(asks: tuple[str, ...]) -> str:
    """Return the error if assignments cannot be trained with the base preset, else an empty string."""
    try:
        enforce_run(_base_run().override(*asks))
    except UserError as error:
        return "; ".join(error.lines)
    return ""


def _places() -> list[list[_Place]]:
    """Group places by section, both sorted by `ORDER`."""
    places_by_class: dict[type[Spec], list[_Place]] = {}
    for place in [_Place("", RunSpec), *_walk(RunSpec)]:
        if _is_axis(place.cls) or place.path in ORDER:
            # The axis, even if a place accepts only a subclass's choices.
            axis = next((cls for cls in place.cls.__mro__ if "axis" in cls.__dict__), place.cls)
            places_by_class.setdefault(axis, []).append(place)
    return sorted(
        (sorted(places, key=_rank) for places in places_by_class.values()),
        key=lambda places: _rank(places[0]),
    )


def _walk(cls: type[Spec], at: str = "", needs: tuple[str, ...] = ()) -> Iterator[_Place]:
    """Yield the nested tables of a spec, for all kinds of axes."""
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
            if not _is_stack(member):  # stacks repeat the axes of a layer
                yield from _walk(member, f"{path}.", (*needs, f"{path}.kind={kind}"))


def _section(places: list[_Place]) -> Section:
    place = places[0]
    cls, at = place.cls, f"{place.path}." if place.path else ""
    kinds: tuple[Kind, ...] = ()
    families: tuple[Family, ...] = ()
    if _is_axis(cls):
        families = tuple(_families(cls, at))
        kinds = tuple(_kind(place, kind, member) for kind, member in cls.choices().items())
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
    if _is_stack(cls):  # its axes have separate sections
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
    """Add companion choices of other axes until the assignments train."""
    if not refusal(asks):
        return asks
    chosen = {ask.partition(".kind=")[0] for ask in asks}
    axes = [
        [f"{path}.kind={kind}" for kind in axis.choices()]
        for path, axis in COMPANIONS.items()
        if path not in chosen
    ]
    extended = [
        ((*asks, *kinds) for some in combinations(axes, number) for kinds in product(*some))
        for number in (1, 2)
    ]
    fellows = [ask for ask in FELLOWS if ask.partition(".kind=")[0] not in chosen]
    all_fellows = [(*asks, *fellows)] if {*asks} & {*FELLOWS} else []
    candidates = chain(extended[0], all_fellows, extended[1])
    return next((candidate for candidate in candidates if not refusal(candidate)), asks)


@cache
def _base() -> dict[str, Any]:
    """Return all values of the base preset by dotted path."""
    return flatten(_base_run().model_dump(by_alias=True))


@cache
def _base_run() -> RunSpec:
    return load_run(BASE)


def _belongs(cls: type[Spec], option: Option) -> bool:
    """True if the command must set an option: its default is missing or does not fit the base preset."""
    field = cls.model_fields.get(option.name)
    if field is None:
        return False
    numbers = isinstance(field.default, (int, float)) and bool(field.default)
    return field.is_required() or (numbers and bool(field.examples))


def _families(axis: type[Choice], at: str) -> Iterator[Family]:
    """Yield the families of an axis, smallest first."""
    members: dict[type[Choice], list[str]] = {}
    for kind, cls in axis.choices().items():
        for base in _bases(cls):
            if base is not axis:
                members.setdefault(base, []).append(kind)
    for base in sorted(members, key=lambda base: len(members[base])):
        above = {name for parent in _bases(base) for name in parent.model_fields}
        options = tuple(_options(base, at, leave_out=above))
        yield Family(tuple(members[base]), sentence(base.__doc__), options)


def _bases(cls: type[Spec]) -> list[type[Choice]]:
    """Return a choice's base classes up to its axis, without other kinds."""
    return [
        base
        for base in cls.__mro__[1:]
        if issubclass(base, Choice) and hasattr(base, "axis") and "kind" not in base.model_fields
    ]


def _options(
    cls: type[Spec], at: str, leave_out: Iterable[str] = (), *, leave_out_tables: bool = False
) -> Iterator[Option]:
    """Yield the options of a class, each table followed by its options."""
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
    """Yield example assignments: the field's example, another literal, or the default."""
    if path in OF_SOME_LAYERS:
        yield from OF_SOME_LAYERS[path]
        return
    default, inner = field.get_default(call_default_factory=True), field.annotation
    example: Any = "VALUE" if default is PydanticUndefined else default
    if field.examples:
        example = field.examples[0]
    elif inner is bool:
        example = not default
    elif get_origin(inner) is Literal:
        example = next((value for value in get_args(inner) if value != default), default)
    elif _is_axis(inner):
        kinds = [k for k in inner.choices() if k not in ("none", getattr(default, "kind", ""))]
        example = {"kind": next(iter(kinds), "none")}
    values = flatten(example, f"{path}.") if isinstance(example, dict) else {path: example}
    for key, value in values.items():
        yield f"{key}={_written(value)}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Choice):
        return value.kind
    if isinstance(value, Spec):  # a table written as one value
        return _written(next(iter(value.model_dump().values())))
    if isinstance(value, tuple) and value and isinstance(value[0], Spec):
        return f"{len(value)} tables"
    return "" if value is PydanticUndefined else _written(value)


def _values(annotation: Any, metadata: Iterable[Any] = ()) -> list[str]:
    """Return descriptions of the allowed values."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for a in args[1:] for m in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return _values(args[0], [*metadata, *inner])
    if origin in (Union, UnionType):
        return [text for arg in args for text in _values(arg, metadata)]
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
    phrases = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    limits = [
        f"{phrase} {getattr(limit, key):g}"
        for limit in metadata
        for key, phrase in phrases.items()
        if getattr(limit, key, None) is not None and getattr(limit, key) < 2**12
    ]
    return f" {' and '.join(limits)}" if limits else ""


def _either(values: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))


def _written(value: object) -> str:
    """Return a value as written in an assignment."""
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
