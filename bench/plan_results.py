"""What the benchmarks of `archwright plan` found: recorded where pages of plans read it, and as tables in
docs/planning.md."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from archwright.reporting.estimate_errors import FILE, read_benchmarks

PAGE = Path(__file__).parents[1] / "docs" / "planning.md"
Name = Literal["memory", "speed"]
HEADS = {
    "memory": ("configuration", "measured, MB", "estimated, MB", "error"),
    "speed": ("timed", "measured, ms", "estimated, ms", "error"),
}


@dataclass(frozen=True)
class Benchmark:
    """What was measured and estimated, in MB or in ms, and by which share more was estimated."""

    what: str
    measured: float
    estimated: float
    error: float

    def row(self, name: Name) -> tuple[str, str, str, str]:
        """Return it in words."""
        digits, share = (".0f", "+.1%") if name == "memory" else (".2f", "+.0%")
        numbers = (f"{number:,{digits}}" for number in (self.measured, self.estimated))
        return (self.what, *numbers, f"{self.error:{share}}")  # type: ignore[return-value]


def compared(what: str, measured: float, estimated: float, unit: float) -> Benchmark:
    """Return a benchmark of two numbers of bytes or seconds, in a larger or smaller `unit`."""
    return Benchmark(what, measured / unit, estimated / unit, round(estimated / measured - 1, 4))


def summary(name: Name, benchmarks: Sequence[Benchmark]) -> str:
    """Return the median and the largest error in words."""
    digits = ".1%" if name == "memory" else ".0%"
    sizes = [abs(each.error) for each in benchmarks]
    return f"Median error {statistics.median(sizes):{digits}}, largest {max(sizes):{digits}}."


def recorded_here(name: Name) -> dict[str, Benchmark]:
    """Return the benchmarks that were recorded on this processor, by what was measured."""
    from archwright.machine.decide import cpu_name

    found = read_benchmarks()[name]
    if found["machine"] != cpu_name():
        raise SystemExit(f"recorded on {found['machine']}, and this is {cpu_name()}: measure all")
    return {row["what"]: Benchmark(**row) for row in found["benchmarks"]}


def write(name: Name, benchmarks: Sequence[Benchmark]) -> None:
    """Record the benchmarks of this machine, and put their table into the page."""
    from archwright.machine.decide import cpu_name

    rows = [asdict(each) for each in benchmarks]
    found = read_benchmarks() | {name: {"machine": cpu_name(), "benchmarks": rows}}
    FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), name), "utf-8")


def with_table(page: str, name: Name) -> str:
    """Return the page with the recorded benchmarks in their table."""
    found = read_benchmarks()[name]
    benchmarks = [Benchmark(**row) for row in found["benchmarks"]]
    begin, end = f"<!-- {name}: python -m bench.plan_{name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    table = [HEADS[name], ("---", "--:", "--:", "--:"), *(each.row(name) for each in benchmarks)]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    where = f"On {found['machine']}. {summary(name, benchmarks)}"
    return "\n".join([before + begin, "", *lines, "", where, "", end]) + after
