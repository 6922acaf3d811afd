"""All mistakes of a file at once: invalid values, and broken rules between the valid ones."""

import copy
import re
from collections.abc import Iterable
from pathlib import Path

from archwright.spec.choice import Spec
from archwright.spec.errors import UserError
from archwright.spec.merge import validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import Values, flatten
from archwright.spec.read import InvalidValues, load_run
from archwright.spec.rules import enforce
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec

MOST_ROUNDS = 4
"""Most rounds of removing invalid values."""


def checked(file: str | Path) -> RunSpec:
    """Return the run in a file, or the default run of the model in it.

    Raises:
        UserError: All mistakes in the file, one per line.
    """
    try:
        run = load_run(file)
    except InvalidValues as error:
        raise UserError(*error.lines, *_further(error)) from None
    enforce_run(run)
    return run


def _further(error: InvalidValues) -> list[str]:
    """Return the rules that the valid values break."""
    values, left_out = copy.deepcopy(error.values), [*_paths(error.reasons)]
    for _ in range(MOST_ROUNDS):
        for path in left_out:
            _remove(values, path.split("."))
        try:
            lines = _broken(validated(error.cls, values))
        except UserError as again:
            left_out += _paths(again.lines)
        else:
            return [line for line in lines if _is_of(line, values, left_out)]
    return []


def _is_of(line: str, values: Values, left_out: Iterable[str]) -> bool:
    """True if an error contains only given values, and no number derived from removed ones."""
    names = {path.removesuffix(".kind").rpartition(".")[2] for path in left_out}
    given = {str(value) for value in flatten(values).values()}
    return not names & {*re.findall(r"\w+", line)} and given.issuperset(
        re.findall(r"\b\d+\b", line)
    )


def _paths(lines: Iterable[str]) -> Iterable[str]:
    return (line.partition(":")[0] for line in lines)


def _broken(spec: Spec) -> tuple[str, ...]:
    try:
        if isinstance(spec, RunSpec):
            enforce_run(spec)
        elif isinstance(spec, ModelSpec):
            enforce(spec)
    except UserError as error:
        return error.lines
    return ()


def _remove(values: Values, path: list[str]) -> None:
    """Remove a value; for a kind, its whole table, because the options belong to it."""
    *above, name = path[:-1] if path[-1] == "kind" and path[1:] else path
    table: object = values
    for key in above:
        table = table.get(key) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(name, None)
