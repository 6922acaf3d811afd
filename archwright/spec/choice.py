"""Base classes of specs: frozen, strict data, and axes of choices identified by `kind`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from archwright.format import number_text
from archwright.spec.docstrings import field_docstrings
from archwright.spec.errors import UserError, nearest
from archwright.spec.installed import load_classic, load_installed
from archwright.spec.other_names import CHOICES

Count = Annotated[int, Field(ge=1, le=2**12)]
"""Number of heads, experts, groups or threads."""
Layers = Annotated[int, Field(ge=1, le=2**11)]
"""Number of layers; each takes a millisecond to build, and the deepest published model has a thousand."""
Width = Annotated[int, Field(ge=1, le=2**24)]
"""Coordinates of a vector, or rows of a vocabulary."""
Tokens = Annotated[int, Field(ge=1, le=2**30)]
"""Length of a text in tokens, or number of sequences."""
Steps = Annotated[int, Field(ge=1, le=10**12)]
"""Number of steps of a run."""

AutoCount = Count | Literal["auto"]
AutoWidth = Width | Literal["auto"]
AutoTokens = Tokens | Literal["auto"]
AutoSteps = Steps | Literal["auto"]
AutoFloat = Annotated[float, Field(gt=0)] | Literal["auto"]
OptionalTokens = Tokens | Literal["none"]
OptionalFloat = Annotated[float, Field(gt=0)] | Literal["none"]
Floats = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)]
Probability = Annotated[float, Field(ge=0, lt=1, examples=[0.1])]


class Spec(BaseModel):
    """Frozen data that rejects unknown keys and silent conversions (`"4"` is not 4)."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    not_results: ClassVar[frozenset[str]] = frozenset()
    """Fields that change no result: names, machine settings, the number of tokens computed together. Hashes omit them;
    comparisons of models and exports omit such fields of choices."""
    table: ClassVar[str] = ""
    """Field of a run that holds this spec; keys may omit that name or start with it."""

    @model_validator(mode="after")
    def _within_float32(self) -> Self:
        """Refuse numbers with a product of two outside the range of float32."""
        lines = [
            f"{name}: found {number_text(number)}; expected a size of 1e-30 to 1e30"
            for name, value in self
            for number in (value if isinstance(value, tuple) else (value,))
            if isinstance(number, (int, float)) and number and not 1e-30 <= abs(number) <= 1e30
        ]
        if lines:
            raise UserError(*lines)
        return self

    @classmethod
    def implied(cls, over: dict[str, Any]) -> dict[str, Any]:
        """Return overrides with the values that follow from them."""
        return over

    def identity(self) -> dict[str, Any]:
        """Return the fields of the hash."""
        names = (name for name in type(self).model_fields if name not in self.not_results)
        return {name: getattr(self, name) for name in names}

    def contradicted(self, sizes: "ModelSizes") -> Iterator[str]:
        """Yield the contradictions of all choices in this table, with their paths."""
        for name, value in self:
            if isinstance(value, Spec):
                yield from (f"{name}.{line}" for line in value.contradicted(sizes))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe every field with its docstring."""
        found = handler(schema)
        docstrings = field_docstrings(cls)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, field in cls.model_fields.items():
            if name in docstrings and (field.alias or name) in properties:
                properties[field.alias or name]["description"] = docstrings[name]
        return found


class Uniform(Spec):
    """Values of one type; a single plain value sets all of them."""

    plain: ClassVar[str]
    """JSON type of a plain value."""

    @property
    def one(self) -> Any:
        """Value of all fields; None if they differ."""
        values = {getattr(self, name) for name in type(self).model_fields}
        return values.pop() if len(values) == 1 else None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        table = super().__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": cls.plain}, table]}


class BoolGroup(Uniform):
    """Options that are on or off; a plain `true` or `false` sets all of them."""

    plain: ClassVar[str] = "boolean"

    @model_validator(mode="before")
    @classmethod
    def _all_alike(cls, value: object) -> Any:
        if isinstance(value, bool):
            return dict.fromkeys(cls.model_fields, value)
        if not isinstance(value, (dict, cls)):
            raise PydanticCustomError("switches", "expected true, false or a table")
        return value


class ModelSizes(NamedTuple):
    """Sizes of a model that determine the "auto" values of its choices."""

    dim: int
    num_layers: int
    context_length: int
    sum_width: int = 0
    """Width at which positions are added to the embedding."""


class ScaleDown(NamedTuple):
    """Shape of a smaller model, and sizes of the original."""

    old: ModelSizes
    dim: int
    head_dim: int
    context_length: int
    num_experts: int
    """Largest number of experts."""

    @property
    def context_share(self) -> float:
        """Ratio of the new context length to the old one; at most 1."""
        return min(1.0, self.context_length / self.old.context_length)

    @property
    def num_heads(self) -> int:
        """Number of heads that fit into the width."""
        return max(1, self.dim // self.head_dim)

    def width(self, old: float) -> int:
        """Return `old` scaled with the model's width to the nearest multiple of 8; at least 8."""
        return max(8, 8 * round(old * self.dim / self.old.dim / 8))


class Choice(Spec):
    """One choice on an axis, identified by `kind`.

    An axis is a subclass that sets `axis`; its choices are subclasses with a `kind`, also from outside the package. A
    field of the axis' type accepts all of its choices. A field of an intermediate type accepts the choices below that
    type.
    """

    axis: ClassVar[str]
    kinds: ClassVar[dict[str, type["Choice"]]]
    spelling: ClassVar[str] = ""
    """Common spelling of the kind, such as "LSH"; empty: the kind with spaces."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """Name of the choice; each choice declares it as a field."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "axis" in cls.__dict__:
            cls.kinds = {}
        elif "kind" in cls.model_fields:
            kind = cls.model_fields["kind"].default
            if not cls.__module__.startswith("archwright."):
                load_classic("spec")  # whose kinds are taken
            taken = cls.kinds.get(kind)
            if taken is not None and _place(taken) != _place(cls):  # a module may be loaded again
                raise ValueError(
                    f'{cls.axis}.kind = "{kind}" is taken by {taken.__module__}.{taken.__name__}; '
                    f"give {cls.__module__}.{cls.__name__} another kind"
                )
            cls.kinds[kind] = cls

    @classmethod
    def none(cls) -> Self:
        """Return the choice of an axis that omits its part."""
        return cls._pick({"kind": "none"})

    @property
    def is_none(self) -> bool:
        """True if the choice omits its part."""
        return self.kind == "none"

    def numbers(self, sizes: ModelSizes) -> dict[str, Any]:
        """Return numbers for "auto" values by field, with nested tables."""
        return {}

    def contradictions(self, sizes: ModelSizes) -> Iterator[str]:
        """Yield an error for each option that contradicts another option or the model's sizes.

        An error starts with the option: "top_k: found 9; expected at most num_experts = 8". Callers prepend its path.
        Nested choices yield their contradictions separately.
        """
        yield from ()

    def contradicted(self, sizes: ModelSizes) -> Iterator[str]:
        yield from self.contradictions(sizes)
        yield from super().contradicted(sizes)

    def scaled_down(self, to: ScaleDown) -> dict[str, Any]:
        """Return values that change in a smaller model by field, with nested tables."""
        inner = {name: value.scaled_down(to) for name, value in self if isinstance(value, Choice)}
        return {name: changes for name, changes in inner.items() if changes}

    @classmethod
    def axes(cls) -> list[type["Choice"]]:
        """Return the axes below this class."""
        found: list[type[Choice]] = []
        for below in cls.__subclasses__():
            found += [below] if "axis" in below.__dict__ else below.axes()
        return found

    @classmethod
    def is_axis(cls) -> bool:
        """True if this class is an axis, or a base class of its choices, but not a choice."""
        return "kind" not in cls.model_fields

    @classmethod
    def choices(cls) -> dict[str, type["Choice"]]:
        """Return the choices below this class by kind."""
        load_classic("spec")
        return {kind: member for kind, member in cls.kinds.items() if issubclass(member, cls)}

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        if cls.is_axis():
            return core_schema.no_info_plain_validator_function(cls._pick)
        return handler(source)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # Any, not one: a file may leave `kind` to its base, and then several choices fit.
        if cls.is_axis():
            choices = cls.choices().values()
            schemas = [
                c.__get_pydantic_json_schema__(c.__pydantic_core_schema__, handler) for c in choices
            ]
            return {"anyOf": schemas}
        return super().__get_pydantic_json_schema__(schema, handler)

    @classmethod
    def _pick(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        kind = value.get("kind") if isinstance(value, dict) else None
        known = cls.kinds.get(kind) if isinstance(kind, str) else None
        if known is not None and issubclass(known, cls):
            return known.model_validate(value)
        if isinstance(kind, str) and kind not in cls.choices():
            load_installed("kind: ")
        expected = "one of " + ", ".join(f'"{kind}"' for kind in sorted(cls.choices()))
        if not isinstance(value, dict):
            raise PydanticCustomError(
                "no_table", "expected a table with kind = {expected}", {"expected": expected}
            )
        if not isinstance(kind, str) or kind not in cls.choices():
            elsewhere = CHOICES.get(str(kind).lower(), "").rpartition(".")[2]
            wanted = elsewhere if elsewhere in cls.choices() else str(kind)
            hint = nearest(wanted, cls.choices()) if isinstance(kind, str) else ""
            raise PydanticCustomError(
                "kind",
                "expected {expected}{hint}",
                {"expected": expected, "hint": hint and f".{hint}", "found": kind},
            )
        picked = cls.kinds[kind].model_validate(value)
        assert isinstance(picked, cls)
        return picked


def _place(cls: type[Choice]) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__
