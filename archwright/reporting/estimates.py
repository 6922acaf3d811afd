"""Estimates of the steps of a run beside what they took: as rows, as data, and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from archwright import format as fmt
from archwright.reporting.document import Page, Row, Section, Table, Text
from archwright.reporting.estimate_errors import HEAD as HEAD_OF_ERRORS
from archwright.reporting.estimate_errors import error_rows, estimate_errors

HEAD = ("", "estimated", "took", "difference")
EVIDENCE = {"estimated": "estimated", "took": "measured"}
"""How each number was found: estimated from rates that were measured on this machine, or measured in the run."""


@dataclass(frozen=True)
class Estimate:
    """A quantity of a run, as it was estimated and as it was measured."""

    label: str
    unit: Literal["seconds", "bytes"]
    estimated: float
    took: float

    @property
    def difference(self) -> float:
        """By which share more was estimated than it took."""
        return self.estimated / max(self.took, 1e-9) - 1

    def row(self) -> tuple[str, str, str, str]:
        """Return its words, in the columns of `HEAD`."""
        words = fmt.size if self.unit == "bytes" else fmt.duration
        return self.label, words(self.estimated), words(self.took), f"{self.difference:+.0%}"


@dataclass(frozen=True)
class Here:
    """A number of this machine's own: what a step takes, or how fast it is."""

    key: str
    label: str
    value: float
    unit: Literal["seconds", "bytes", "tokens/s"]
    note: str
    evidence: str = "estimated"
    kind: str = ""
    """Kind of estimate, by which benchmarks know how far it is off; none: it is counted."""

    def row(self) -> tuple[str, str, str]:
        """Return its words: label, number, and what it is of and how it was found."""
        if self.unit == "tokens/s":
            number = f"{fmt.count(self.value)} tokens/s"
        else:
            number = (fmt.size if self.unit == "bytes" else fmt.duration)(self.value)
        note = "; ".join(filter(None, (self.note, self.evidence)))
        return self.label, number, note


def record_of_this_machine(found: Sequence[Here]) -> dict[str, Any]:
    """Return what there is of this machine as plain data, each number with its unit, how it was found, and the error of
    such estimates in benchmarks."""
    errors = estimate_errors()
    return {
        each.key: {
            "value": each.value,
            "unit": each.unit,
            "evidence": each.evidence,
            "benchmark_error": errors[each.kind].record() if each.kind in errors else None,
        }
        for each in found
    }


def this_machine_section(found: Sequence[Here], notes: Sequence[str] = ()) -> Section:
    """Return the section of a page that has what there is of this machine."""
    rows = [Row((label.strip(), *rest)) for label, *rest in (each.row() for each in found)]
    table = Table("A step, and speeds.", ("", "", "how"), rows)
    return Section("On this machine", [table, _errors(), *map(Text, notes)])


def _errors() -> Table:
    return Table(
        f"{HEAD_OF_ERRORS.capitalize()}.", ("estimate", "error"), [*map(Row, error_rows())]
    )


@dataclass(frozen=True)
class Machines:
    """The machine that trained a run, and the one whose rates its estimates follow from."""

    trained: str
    """Empty: not recorded."""
    estimated: str

    @property
    def note(self) -> str:
        """What is to be known where these are two machines, or the first is not known."""
        here = f"the estimates are of this machine's CPU, {self.estimated}."
        if not self.trained:
            return f"Where the run was trained is not recorded; {here}"
        if self.trained == self.estimated:
            return ""
        return f"The run was trained on {self.trained}, and not here; {here}"


def record(name: str, found: Mapping[str, Estimate], machines: Machines) -> dict[str, Any]:
    """Return the estimates of a run as plain data, by their keys."""
    numbers = {
        f"{key}_{each.unit}": {
            "estimated": each.estimated,
            "took": each.took,
            "difference": each.difference,
        }
        for key, each in found.items()
    }
    errors = {kind: each.record() for kind, each in estimate_errors().items()}
    return {
        "run": name,
        **numbers,
        "evidence": EVIDENCE,
        "machines": vars(machines),
        "benchmark_errors": {kind: errors[kind] for kind in ("step", "memory")},
    }


def estimates_page(name: str, machines: Machines, found: Sequence[Estimate]) -> Page:
    """Lay the estimates of a run out as a page."""
    step = found[0]
    rows = [Row(each.row()) for each in found]
    return Page(
        title=f"{name}: estimated and measured",
        kicker=f"archwright plan, {machines.estimated}",
        verdict=f"{step.difference:+.0%}",
        notice=machines.note,
        verdict_rest=f"is how far the time of a step was estimated from what it took, {step.row()[2]}.",
        sections=[
            Section(
                "Beside each other",
                [
                    Table("A positive difference: more was estimated than it took.", HEAD, rows),
                    Text(
                        "Estimated from rates of operations measured on this machine; what the run took was measured "
                        "in it."
                    ),
                    _errors(),
                ],
            )
        ],
        footer="Made by archwright. One file, which requests nothing. docs/planning.md has the formulas.",
    )
