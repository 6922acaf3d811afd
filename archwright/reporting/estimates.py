"""What was estimated for the steps of a run beside what they took: as rows, as data, and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from archwright import format as fmt
from archwright.reporting.document import Page, Row, Section, Table, Text

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


def record(name: str, found: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the estimates of a run as plain data, by their keys."""
    numbers = {
        f"{key}_{each.unit}": {
            "estimated": each.estimated,
            "took": each.took,
            "difference": each.difference,
        }
        for key, each in found.items()
    }
    return {"run": name, **numbers, "evidence": EVIDENCE}


def estimates_page(name: str, device: str, found: Sequence[Estimate]) -> Page:
    """Lay the estimates of a run out as a page."""
    step = found[0]
    rows = [Row(each.row()) for each in found]
    return Page(
        title=f"{name}: estimated and measured",
        kicker=f"archwright plan, {device}",
        verdict=f"{step.difference:+.0%}",
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
                ],
            )
        ],
        footer="Made by archwright. One file, which requests nothing. docs/planning.md has the formulas.",
    )
