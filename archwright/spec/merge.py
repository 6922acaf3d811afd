"""Merging of tables, and validation with readable errors."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from archwright.spec.choice import Spec
from archwright.spec.errors import UserError

T = TypeVar("T", bound=Spec)

Table = Mapping[str, Any]
NOTHING: Table = MappingProxyType({})


def merge(base: Table, over: Table, under: Table = NOTHING) -> dict[str, Any]:
    """Merge `over` into `base`.

    Tables merge recursively, a new `kind` drops the old kind's options, and lists are replaced. `under` is the table
    below `base`, which provides the kind of tables without one.
    """
    merged = dict(base)
    for key, value in over.items():
        old, below = base.get(key), under.get(key)
        if key == "layer_kinds" and isinstance(value, dict):
            below = dict.fromkeys(value, base)  # kinds of layers extend the default layer
        below = below if isinstance(below, Mapping) else NOTHING
        merged[key] = value
        if isinstance(value, dict) and isinstance(old, dict):
            kind = old.get("kind", below.get("kind"))
            if kind is None or value.get("kind", kind) == kind:
                merged[key] = merge(old, value, below)
    return merged


def validated(cls: type[T], values: dict[str, Any], at: tuple[str, ...] = ()) -> T:
    """Return `values` validated as `cls`.

    Raises:
        UserError: Mistakes in `values`, one per line.
    """
    from archwright.spec.validation_errors import explain

    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UserError(*explain(error, cls, values, at)) from None
