"""Output of `archwright plan`: a page on one model, or several side by side."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping

from archwright import format as fmt
from archwright.cli.parser import terminal_width
from archwright.planning.advice import advice
from archwright.planning.plans import Plan
from archwright.reporting.plan_rows import (
    ABOUT_PARTS,
    PARTS,
    STRATEGIES,
    Figure,
    about_strategies,
    device_rows,
    memory_by_part,
    memory_rows,
    model_rows,
    part_rows,
    serving_rows,
    side_by_side_rows,
    strategy_rows,
    training_rows,
)

LONGEST_HEAD = 26
"""Maximum length of a column's name; longer names become numbers."""
LONGEST_STRATEGY = 48
"""Width of the strategy column in characters; longer strategies wrap."""


def page(plan: Plan) -> Iterator[str]:
    """Yield the lines of a page on one model."""
    yield f"{plan.name}: {devices(plan)}"
    yield from section("model", model_rows(plan))
    yield from section("a device", device_rows(plan))
    yield from (
        "",
        *fmt.columns([PARTS, *part_rows(plan)], right=range(1, 6)),
        *_wrapped([ABOUT_PARTS]),
    )
    yield from section("training", training_rows(plan))
    yield from section("memory on each device", _memory(plan))
    if len(plan.ways) > 1 or plan.workload.split is not None:
        yield from ("", "parallelism strategies", *_strategies(plan))
    yield from section("serving, upper bounds", serving_rows(plan))
    if lines := [*advice(plan)]:
        yield from ("", "change first", *_wrapped(lines))
    if plan.suspicions:
        lines = [suspicion.line for suspicion in plan.suspicions]
        yield from ("", "unusual, by rules of thumb", *_wrapped(lines))


def side_by_side(plans: Mapping[str, Plan]) -> Iterator[str]:
    """Yield the lines of a table with a column for each model and a last column for the basis of the numbers."""
    yield devices(next(iter(plans.values())))
    heads = {
        name: name if len(name) <= LONGEST_HEAD else f"[{number}]"
        for number, name in enumerate(plans, start=1)
    }
    legend = [f"{head} {name}" for name, head in heads.items() if head != name]
    if legend:
        yield from ("", *legend)
    yield ""
    parts = (model_rows, training_rows, memory_rows, serving_rows)
    table = [["", *heads.values(), ""], *side_by_side_rows(plans, parts)]
    numbers = range(1, len(plans) + 1)
    width = max(terminal_width(), 40 + LONGEST_HEAD * len(plans))
    yield from fmt.columns(
        table, right=numbers, wrapped=numbers, width=width, break_on_hyphens=False
    )
    if lines := [
        f"{heads[name]}: {s.line}" for name, plan in plans.items() for s in plan.suspicions
    ]:
        yield from ("", "unusual, by rules of thumb", *_wrapped(lines))


def devices(plan: Plan) -> str:
    """Return the devices of a plan as text."""
    work = plan.workload
    return f"{work.devices:,} x {work.hardware.title}, {work.precision}"


def section(title: str, rows: Iterable[Figure]) -> Iterator[str]:
    """Yield the lines of a section: labels, values, and the basis of each value."""
    table = [(row.label, row.text, row.remark) for row in rows]
    yield from ("", title)
    yield from (f"  {line}" for line in fmt.columns(table, first_width=23))


def _memory(plan: Plan) -> Iterator[Figure]:
    *above, total = memory_rows(plan)
    yield from above
    for label, size, how in memory_by_part(plan.setup or plan.smallest):
        yield Figure(label, fmt.size(size), how)
    yield total._replace(label="all")


def _strategies(plan: Plan) -> Iterator[str]:
    rows = [STRATEGIES, *(cells for _, cells in strategy_rows(plan))]
    width = LONGEST_STRATEGY
    width += sum(max(map(len, cells)) + 2 for cells in [*zip(*rows, strict=True)][1:])
    lines = fmt.columns(rows, right=range(2, 8), wrapped=(0,), width=width, break_on_hyphens=False)
    yield from (f"  {line}" for line in lines)
    yield from _wrapped([about_strategies(plan)])


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line, terminal_width(), initial_indent="  ", subsequent_indent="    "
        )
