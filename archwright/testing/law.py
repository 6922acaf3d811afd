"""Laws: functions that check a case, with the claim as their docstring."""

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
"""Raises `Broken` if it does not hold, and `NotTried` if it does not apply."""
Laws = dict[Law, tuple[Law, ...]]
"""Laws in order of execution, with their prerequisites. A failed prerequisite implies the same fault."""


class Broken(AssertionError):  # noqa: N818
    """A law does not hold; the message has the fault and a remedy."""


class NotTried(Exception):  # noqa: N818
    """A law does not apply to a choice; the message has the reason."""


@dataclass(frozen=True)
class Finding:
    """Outcome of one law."""

    law: str
    about: str
    """Claim of the law, one sentence."""
    state: Literal["ok", "broken", "not tried", "waiting"]
    found: str = ""
    """Fault and remedy, reason why the law was not tried, or claim of the failed prerequisite."""

    def record(self) -> dict[str, str]:
        """Return the fields for JSON."""
        return asdict(self)


def about(law: Law) -> str:
    """Return the first sentence of a law's docstring."""
    text = " ".join((inspect.getdoc(law) or "").split())
    return text.partition(". ")[0].removesuffix(".")


def tried(laws: Laws, case: Any, file: Path | None = None) -> list[Finding]:
    """Try laws in order and return their outcomes; errors cite lines of `file`."""
    findings: dict[Law, Finding] = {}
    for law, needs in laws.items():
        missing = next((need for need in needs if findings[need].state != "ok"), None)
        if missing is None:
            findings[law] = _tried(law, case, file)
        else:
            findings[law] = Finding(law.__name__, about(law), "waiting", about(missing))
    return [*findings.values()]


def _tried(law: Law, case: Any, file: Path | None) -> Finding:
    try:
        law(case)
    except NotTried as why:
        return Finding(law.__name__, about(law), "not tried", one_line(str(why)))
    except Broken as error:
        return Finding(law.__name__, about(law), "broken", one_line(str(error)))
    except UserError as error:
        return Finding(law.__name__, about(law), "broken", "; ".join(error.lines))
    except Exception as error:  # parts of users may raise anything
        where = "" if file is None else line_in(file, error).removeprefix(", ")
        text = one_line(f"{where}: {in_one_line(error)}".removeprefix(": "))
        return Finding(law.__name__, about(law), "broken", text)
    return Finding(law.__name__, about(law), "ok")


def choice_returns(choice: Choice) -> None:
    """Writing a choice as TOML and reading it returns the same choice."""
    reads_back(choice)


def reads_back(spec: S) -> S:
    """Write a spec as TOML and return the spec that is read from it.

    Raises:
        Broken: the TOML cannot be read, or the spec differs.
    """
    try:
        again = validated(type(spec), tomllib.loads(to_toml(spec)))
    except UserError as error:
        raise Broken(f"{'; '.join(error.lines)}; {TYPES}") from error
    if again != spec:
        raise Broken(f"another value was read than was written; {TYPES}")
    return again
