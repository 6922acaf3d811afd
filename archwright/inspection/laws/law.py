"""A law is a function of a case, which says what it holds in its docstring; trying some gives findings."""

import inspect
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from archwright.format import one_line
from archwright.plugins import in_one_line, line_in
from archwright.spec.choice import Choice, Spec
from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.read import to_toml

TYPES = (
    "use types that TOML has: numbers, text, true and false, tables, and tuples with Field(strict=False), which are "
    "lists there"
)

S = TypeVar("S", bound=Spec)
Law = Callable[[Any], None]
"""Raises `Broken` where it does not hold, and `NotTried` where it has nothing to say."""
Laws = dict[Law, tuple[Law, ...]]
"""Laws in the order in which they are tried, each with those without which it would only repeat what they found."""


class Broken(AssertionError):  # noqa: N818
    """A law does not hold: what was found, and what to do."""


class NotTried(Exception):  # noqa: N818
    """A law has nothing to say of a choice, and why."""


@dataclass(frozen=True)
class Finding:
    """A law, and whether it holds."""

    law: str
    about: str
    """The law in a sentence."""
    state: Literal["ok", "broken", "not tried", "waiting"]
    found: str = ""
    """The fault and what to do, why the law was not tried, or for which one it waits."""

    def record(self) -> dict[str, str]:
        """Return it as JSON holds it."""
        return asdict(self)


def about(law: Law) -> str:
    """Return the first sentence of a law's docstring."""
    text = " ".join((inspect.getdoc(law) or "").split())
    return text.partition(". ")[0].removesuffix(".")


def tried(laws: Laws, case: Any, file: Path | None = None) -> list[Finding]:
    """Try laws, and return what came of each; `file` is the one whose lines errors are looked for in."""
    found: dict[Law, Finding] = {}
    for law, needs in laws.items():
        missing = next((need for need in needs if found[need].state != "ok"), None)
        if missing is None:
            found[law] = _tried(law, case, file)
        else:
            found[law] = Finding(law.__name__, about(law), "waiting", about(missing))
    return [*found.values()]


def _tried(law: Law, case: Any, file: Path | None) -> Finding:
    try:
        law(case)
    except NotTried as why:
        return Finding(law.__name__, about(law), "not tried", one_line(str(why)))
    except Broken as error:
        return Finding(law.__name__, about(law), "broken", one_line(str(error)))
    except UserError as error:
        return Finding(law.__name__, about(law), "broken", "; ".join(error.lines))
    except Exception as error:  # of the part, which may raise anything
        where = "" if file is None else line_in(file, error).removeprefix(", ")
        text = one_line(f"{where}: {in_one_line(error)}".removeprefix(": "))
        return Finding(law.__name__, about(law), "broken", text)
    return Finding(law.__name__, about(law), "ok")


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
