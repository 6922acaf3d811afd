"""How far estimates from rates of a machine were off, in the benchmarks that come with the package."""

import json
import statistics
from dataclasses import dataclass
from typing import Any

from archwright import format as fmt
from archwright import presets

FILE = presets.FOLDER / "benchmarks" / "plan.json"
"""Written by `bench.plan_memory` and `bench.plan_speed`: by either, the machine and the benchmarks."""
HEAD = "errors of such estimates, as shares of what was measured"
TITLES = {
    "memory": "memory of a step",
    "step": "time of a step",
    "prefill": "time of prefill",
    "decode": "time of decode",
}
"""Kinds of estimates."""


@dataclass(frozen=True)
class Errors:
    """Errors of one kind of estimate: by which share more was estimated than measured."""

    kind: str
    machine: str
    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median of the sizes of errors."""
        return statistics.median(map(abs, self.errors))

    @property
    def largest(self) -> float:
        """Largest size of an error."""
        return max(map(abs, self.errors))

    @property
    def sentence(self) -> str:
        """The errors in words; where all have one sign, with their direction."""
        number = f"{len(self.errors)} benchmarks on {self.machine}"
        if all(error < 0 for error in self.errors) or all(error > 0 for error in self.errors):
            low, high = ("low", "high") if self.kind == "memory" else ("fast", "slow")
            least = fmt.percent(min(map(abs, self.errors))).removesuffix(" %")
            way = low if self.errors[0] < 0 else high
            return f"{least} to {fmt.percent(self.largest)} too {way} in all {number}"
        return (
            f"median {fmt.percent(self.median)}, largest {fmt.percent(self.largest)}, of {number}"
        )

    def record(self) -> dict[str, Any]:
        """Return the errors as plain data."""
        return {
            "median": self.median,
            "least": min(self.errors),
            "most": max(self.errors),
            "benchmarks": len(self.errors),
            "machine": self.machine,
        }


def read_benchmarks() -> dict[str, Any]:
    """Return what the benchmarks of a plan found."""
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


def estimate_errors() -> dict[str, Errors]:
    """Return the errors of estimates by kind."""
    found: dict[str, Errors] = {}
    for name, each in read_benchmarks().items():
        errors: dict[str, list[float]] = {}
        for row in each["benchmarks"]:
            kind = "memory" if name == "memory" else row["what"].partition(" ")[0]
            errors.setdefault(kind, []).append(row["error"])
        found |= {kind: Errors(kind, each["machine"], tuple(e)) for kind, e in errors.items()}
    return found


def error_rows() -> list[tuple[str, str]]:
    """Return each kind of estimate and how far it was off, in words."""
    return [(TITLES[kind], each.sentence) for kind, each in estimate_errors().items()]
