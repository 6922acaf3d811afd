"""Laying one table over another, and turning tables into specs with errors a user can act on."""

from typing import Any, TypeVar

from pydantic import ValidationError

from archwright.spec.choice import Spec
from archwright.spec.errors import UserError

T = TypeVar("T", bound=Spec)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Lay `over` upon `base`: tables merge, another `kind` drops the old kind's options, lists are replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and not _changes_kind(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def validated(cls: type[T], values: dict[str, Any], at: tuple[str, ...] = ()) -> T:
    """Return `cls` made from `values`, or raise a UserError with one line for each mistake."""
    from archwright.spec.explain import explain

    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UserError(*explain(error, cls, values, at)) from None


def _changes_kind(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return "kind" in new and "kind" in old and new["kind"] != old["kind"]
