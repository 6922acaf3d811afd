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
"""Characters of a name that may head a column; longer ones are numbered there, and listed below."""
LONGEST_STRATEGY = 48
"""Characters of a strategy in a line."""


def page(found: Plan) -> Iterator[str]:
    """Yield the lines of a page on one model."""
    yield f"{found.name}: {devices(found)}"
    yield from section("model", model_rows(found))
    yield from section("a device", device_rows(found))
    yield from (
        "",
        *fmt.columns([PARTS, *part_rows(found)], right=range(1, 6)),
        *_wrapped([ABOUT_PARTS]),
    )
    yield from section("training", training_rows(found))
    yield from section("memory on each device", _memory(found))
    if len(found.ways) > 1 or found.workload.split is not None:
        yield from ("", "parallelism strategies", *_strategies(found))
    yield from section("serving, upper bounds", serving_rows(found))
    if lines := [*advice(found)]:
        yield from ("", "change first", *_wrapped(lines))
    if found.suspicions:
        lines = [each.line for each in found.suspicions]
        yield from ("", "unusual, by rules of thumb", *_wrapped(lines))


def side_by_side(found: Mapping[str, Plan]) -> Iterator[str]:
    """Yield a table with a column for each model, and where its numbers come from."""
    yield devices(next(iter(found.values())))
    heads = {
        name: name if len(name) <= LONGEST_HEAD else f"[{number}]"
        for number, name in enumerate(found, start=1)
    }
    legend = [f"{head} {name}" for name, head in heads.items() if head != name]
    if legend:
        yield from ("", *legend)
    yield ""
    parts = (model_rows, training_rows, memory_rows, serving_rows)
    table = [["", *heads.values(), ""], *side_by_side_rows(found, parts)]
    numbers = range(1, len(found) + 1)
    width = max(terminal_width(), 40 + LONGEST_HEAD * len(found))
    yield from fmt.columns(
        table, right=numbers, wrapped=numbers, width=width, break_on_hyphens=False
    )
    if lines := [
        f"{heads[name]}: {s.line}" for name, each in found.items() for s in each.suspicions
    ]:
        yield from ("", "unusual, by rules of thumb", *_wrapped(lines))


def devices(found: Plan) -> str:
    """Return the devices that a plan is for."""
    work = found.workload
    return f"{work.devices:,} x {work.hardware.title}, {work.precision}"


def section(title: str, rows: Iterable[Figure]) -> Iterator[str]:
    """Yield the lines of a section: what, how much, and where that comes from."""
    table = [(row.label, row.text, row.remark) for row in rows]
    yield from ("", title)
    yield from (f"  {line}" for line in fmt.columns(table, first_width=23))


def _memory(found: Plan) -> Iterator[Figure]:
    *above, total = memory_rows(found)
    yield from above
    for label, size, how in memory_by_part(found.setup or found.smallest):
        yield Figure(label, fmt.size(size), how)
    yield total._replace(label="all")


def _strategies(found: Plan) -> Iterator[str]:
    rows = [STRATEGIES, *(cells for _, cells in strategy_rows(found))]
    others = sum(max(map(len, cells)) + 2 for cells in [*zip(*rows, strict=True)][1:])
    width = LONGEST_STRATEGY + others
    lines = fmt.columns(rows, right=range(2, 8), wrapped=(0,), width=width, break_on_hyphens=False)
    yield from (f"  {line}" for line in lines)
    yield from _wrapped([about_strategies(found)])


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(
            line, terminal_width(), initial_indent="  ", subsequent_indent="    "
        )
