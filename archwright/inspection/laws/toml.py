"""The law that all choices share: written as TOML and read again, they are the same."""

import tomllib
from typing import TypeVar

from archwright.inspection.laws.law import Broken
from archwright.spec.choice import Choice, Spec
from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.read import to_toml

TYPES = (
    "use types that TOML has: numbers, text, true and false, tables, and tuples with Field(strict=False), which are "
    "lists there"
)
S = TypeVar("S", bound=Spec)


def choice_returns(choice: Choice) -> None:
    """Written as TOML and read again, it is the same."""
    reads_back(choice)


def reads_back(spec: S) -> S:
    """Return what is read of a spec that was written as TOML.

    Raises:
        Broken: it cannot be read, or is another one.
    """
    try:
        again = validated(type(spec), tomllib.loads(to_toml(spec)))
    except UserError as error:
        raise Broken(f"{'; '.join(error.lines)}; {TYPES}") from error
    if again != spec:
        raise Broken(f"another value was read than was written; {TYPES}")
    return again
