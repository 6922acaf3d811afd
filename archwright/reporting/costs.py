"""The page of `archwright plan --html`: what a plan says in tables, what bounds each part, what fills a device, and
speed by batch and context."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from archwright import format as fmt
from archwright.catalogue.part_titles import part_title
from archwright.planning.advice import advice
from archwright.planning.plans import Plan
from archwright.planning.roofline import Operator, Phase, ridge
from archwright.reporting.document import Bar, Bars, Block, Chart, Page, Row, Section, Table, Text
from archwright.reporting.plan_rows import (
    ABOUT_PARTS,
    PARTS,
    STRATEGIES,
    Figure,
    Rows,
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
from archwright.reporting.styles import DASHES, SYMBOLS

MARKS: Mapping[Phase, tuple[str, str, str, int]] = {
    "training": ("training", "circle-open", "$series-1", 16),
    "prefill": ("prefill", "square", "$series-3", 8),
    "decode": ("decode", "triangle-up", "$series-2", 10),
}
FROM_ZERO = {"rangemode": "tozero"}
INTENSITY = {"type": "log", "dtick": 1}
SHORT = 100
"""An axis is short whose end is less than so many times its beginning."""


def cost_page(found: Mapping[str, Plan], here: Sequence[Figure] = ()) -> Page:
    """Lay the costs of one model, or of several, out as a page.

    Args:
        here: a step on this machine.
    """
    first = next(iter(found.values()))
    work = first.workload
    head, rest = _verdict(found)
    devices = f"{work.devices:,} x {work.hardware.title}, {work.precision}"
    return Page(
        title=f"{', '.join(found)}: {head}",
        kicker=f"archwright plan, {devices}",
        verdict=head,
        verdict_rest=rest,
        sections=[
            Section(
                "Model", [_figures("What the model costs.", found, [model_rows]), *_parts(found)]
            ),
            *(
                [Section("A step on this machine", [_table("Estimated and measured.", here)])]
                if here
                else []
            ),
            Section("Training", [_figures("What a training takes.", found, [training_rows])]),
            Section("Memory on each device", [*_memory(found)]),
            Section("Parallelism strategies", [*_strategies(found)]),
            Section("What bounds each part", [*_rooflines(found)]),
            Section(
                "Serving",
                [_figures("Upper bounds of speed.", found, [serving_rows]), *_speeds(found)],
            ),
            Section("What to change first", [*_changes(found)]),
            *([Section("Unusual", [table])] if (table := _suspicions(found)) else []),
        ],
        footer="Made by archwright. One file, which requests nothing. Speeds and times are estimates or bounds; "
        "docs/planning.md has the formulas.",
    )


def _verdict(found: Mapping[str, Plan]) -> tuple[str, str]:
    fits = [name for name, each in found.items() if each.setup is not None]
    if len(found) > 1:
        return f"{len(fits)} of {len(found)} fit", "while they are trained on these devices."
    (each,) = found.values()
    hours = each.training.device_hours
    span = f"{fmt.amount(hours.least)} to {fmt.amount(hours.most)} device hours"
    if each.setup is None:
        return "Does not fit", "while it is trained on these devices."
    return span, f"for {fmt.count(each.training.tokens)} tokens, with {each.setup.split.name}."


def _figures(caption: str, found: Mapping[str, Plan], rows: Sequence[Rows]) -> Table:
    """Return rows of one model with remarks, or of several side by side."""
    if len(found) > 1:
        cells = [Row([*map(_unbroken, row)]) for row in side_by_side_rows(found, rows)]
        head = ("", *found, "how it is known")
        return Table(caption, head, cells, even=len(found) == 2)  # heads beside values on a phone
    (each,) = found.values()
    return _table(caption, [figure for of_kind in rows for figure in of_kind(each)])


def _table(caption: str, figures: Iterable[Figure]) -> Table:
    lines = [Row((f.label, _unbroken(f.text), f.remark)) for f in figures]
    return Table(caption, ("", "", "how it is known"), lines)


def _parts(found: Mapping[str, Plan]) -> Iterator[Block]:
    for name, each in found.items():
        yield Table(f"{name}, by part. {ABOUT_PARTS}", PARTS, [*map(Row, part_rows(each))])


def _memory(found: Mapping[str, Plan]) -> Iterator[Block]:
    yield _figures("Whether the training fits.", found, [memory_rows])
    for name, each in found.items():
        setup = each.setup or each.smallest
        bars = [Bar(label, size, _size(size)) for label, size, _ in memory_by_part(setup)]
        limit = each.workload.hardware.memory_bytes
        bars.append(Bar("all", setup.memory.total, _size(setup.memory.total), strong=True))
        bars.append(Bar("the device", limit, _size(limit)))
        how = f"{setup.split.name}, checkpointing {setup.checkpointing}"
        micro = setup.batch.micro
        sequences = "one sequence at a time" if micro == 1 else f"{micro:,} sequences at a time"
        sequences += ", one forward, one backward" * (setup.split.pipeline > 1)
        yield Bars(f"{name}: bytes on each device, {how}, {sequences}", bars)


def _strategies(found: Mapping[str, Plan]) -> Iterator[Block]:
    for name, each in found.items():
        rows = [
            Row([*map(_unbroken, cells)], "chosen" if way == each.setup else "")
            for way, cells in strategy_rows(each)
        ]
        caption = f"{name}: one way of each sort, on the device with most. {about_strategies(each)}"
        yield Table(caption, STRATEGIES, rows)


def _unbroken(text: str) -> str:
    """Return a number and its unit as one word; what is longer may be broken."""
    return (
        text.replace(" ", "\N{NO-BREAK SPACE}") if text[:1].isdigit() and len(text) < 12 else text
    )


def _size(num_bytes: float) -> str:
    return _unbroken(fmt.size(num_bytes))


def _rooflines(found: Mapping[str, Plan]) -> Iterator[Block]:
    yield Text(
        "A part left of the ridge point is memory-bound, one to the right of it compute-bound. One sequence of the "
        "context, or in decode one token behind it, on one device. Numbers at points are those of the table below."
    )
    yield _figures("The device.", dict([next(iter(found.items()))]), [device_rows])
    for number, (name, each) in enumerate(found.items()):
        yield _roofline(number, name, each)
        yield _roofline_table(name, each)


def _numbers(found: Plan) -> dict[str, int]:
    """Return the number of each part in the picture, the slowest parts first."""
    hardware, precision = found.workload.hardware, found.workload.precision
    seconds: dict[str, float] = {}
    for operators in found.operators.values():
        whole = sum(o.seconds(hardware, precision) for o in operators)
        for o in operators:
            share = o.seconds(hardware, precision) / whole
            seconds[o.name] = max(seconds.get(o.name, 0.0), share)
    ordered = sorted(seconds, key=lambda part: -seconds[part])
    return {part: number for number, part in enumerate(ordered, start=1)}


def _roofline_table(name: str, found: Plan) -> Table:
    hardware, precision = found.workload.hardware, found.workload.precision
    bend = ridge(hardware, precision)
    by_phase = {
        phase: {o.name: o for o in operators} for phase, operators in found.operators.items()
    }
    rows = []
    for part, number in _numbers(found).items():
        cells = []
        for phase in by_phase.values():
            if part not in phase:
                cells.append("-")
                continue
            o = phase[part]
            whole = sum(each.seconds(hardware, precision) for each in phase.values())
            bound = "memory-bound" if o.intensity < bend else "compute-bound"
            share = fmt.percent(o.seconds(hardware, precision) / whole)
            cells.append(f"{fmt.significant(o.intensity)}, {bound}, {share}")
        rows.append(Row((f"{number}  {part_title(part)}", *cells)))
    caption = (
        f"{name}: FLOPs per byte, what bounds the part, and its share of the time at the roofline."
    )
    return Table(caption, ("part", *by_phase), rows, even=True)


def _roofline(number: int, name: str, each: Plan) -> Chart:
    hardware, precision = each.workload.hardware, each.workload.precision
    peak, bend = hardware.peak(precision), ridge(hardware, precision)
    points = [o for found in each.operators.values() for o in found]
    ends = [min(o.intensity for o in points) / 2, max(bend, *(o.intensity for o in points)) * 2]
    x = [ends[0], bend, ends[1]]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "roofline",
            "x": x,
            "y": [min(peak, i * hardware.memory_bandwidth) for i in x],
            "line": {"color": "$muted", "width": 2},
            "hoverinfo": "skip",
        }
    ]
    for phase, operators in each.operators.items():
        label, symbol, color, size = MARKS[phase]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label,
                "x": [o.intensity for o in operators],
                "y": [o.attainable(hardware, precision) for o in operators],
                "text": [part_title(o.name) for o in operators],
                "marker": {"symbol": symbol, "size": size, "color": color, "line": {"width": 2}},
                "hovertemplate": "%{text}<br>%{x:.3s} FLOPs per byte<br>%{y:.3s}FLOP/s<extra></extra>",
            }
        )
    last: Phase = "decode" if "decode" in each.operators else "prefill"
    slowest = max(each.operators[last], key=lambda o: o.seconds(hardware, precision))
    return Chart(
        name=f"roofline-{number}",
        title=f"Roofline, {name}",
        summary=f"The ridge point is at {bend:.0f} FLOPs per byte. In {last}, {part_title(slowest.name)} takes "
        "longest.",
        traces=traces,
        layout={
            "xaxis": {**INTENSITY, "title": {"text": "FLOPs per byte"}},
            "yaxis": {"type": "log", "dtick": 1, "tickformat": ".0s"},
            "showlegend": True,
            "annotations": [*_labels(each, points, ends), _ridge_label(bend, peak)],
        },
        unit="FLOP/s of one device",
        full_width=True,
    )


LABEL = {"showarrow": False, "font": {"size": 12, "color": "$ink"}, "yanchor": "top"}
NEAR = 0.05
"""Share of the axis within which points have one label."""


def _labels(
    found: Plan, points: Sequence[Operator], ends: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Yield the numbers of the parts below their points, those of neighbours together."""
    hardware, precision = found.workload.hardware, found.workload.precision
    numbers = _numbers(found)
    near = NEAR * math.log10(ends[1] / ends[0])
    groups: list[list[Operator]] = []
    for point in sorted(points, key=lambda o: o.intensity):
        if groups and math.log10(point.intensity / groups[-1][0].intensity) < near:
            groups[-1].append(point)
        else:
            groups.append([point])
    for group in groups:
        # Middles of groups stand apart by half of what their first points do, or more.
        middle = math.sqrt(group[0].intensity * group[-1].intensity)
        text = ", ".join(map(str, sorted({numbers[o.name] for o in group})))
        is_sloped = middle < ridge(hardware, precision)
        height = min(hardware.peak(precision), middle * hardware.memory_bandwidth)
        yield {
            **LABEL,
            "x": math.log10(middle),
            "y": math.log10(height),
            "text": text,
            "xanchor": "left" if is_sloped else "center",
            "xshift": 10 if is_sloped else 0,
            "yshift": -2 if is_sloped else -10,
        }


def _ridge_label(bend: float, peak: float) -> dict[str, Any]:
    text = f"ridge point, {fmt.significant(bend)} FLOPs per byte"
    place = {"x": math.log10(bend), "y": math.log10(peak), "xanchor": "right", "yanchor": "bottom"}
    font = {"size": 11, "color": "$muted"}
    return {**LABEL, **place, "yshift": 2, "text": text, "font": font}


def _speeds(found: Mapping[str, Plan]) -> Iterator[Block]:
    served = {name: each.serving for name, each in found.items() if each.serving is not None}
    writing = {name: each for name, each in served.items() if found[name].decodes}
    for name, title, x, y, summary in (
        ("by-batch", "Decode, many sequences", 0, 1, "sequences at once"),
        ("by-context", "Decode, one sequence", 0, 2, "tokens of the sequence"),
        ("prefill", "Prefill, one sequence", 0, 1, "tokens of the sequence"),
    ):
        traces = []
        serving = served if name == "prefill" else writing
        if not serving:
            continue
        for number, (model, each) in enumerate(serving.items()):
            points = each.by_batch if name == "by-batch" else each.by_context
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": model,
                    "x": [point[x] for point in points],
                    "y": [point[y] for point in points],
                    "line": {
                        "color": f"$series-{1 + number % 7}",
                        "dash": DASHES[number % len(DASHES)],
                    },
                    "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 7},
                    "hovertemplate": "%{x:,}<br>%{y:.3s} tokens/s<extra></extra>",
                }
            )
        yield Chart(
            name=name,
            title=title,
            summary=f"Upper bound of tokens per second, by {summary}.",
            traces=traces,
            layout={
                "xaxis": {**_log_axis(traces, "x"), "title": {"text": summary}},
                "yaxis": _log_axis(traces, "y") if name == "by-batch" else FROM_ZERO,
                "showlegend": len(serving) > 1,
            },
            unit="tokens per second",
        )


def _log_axis(traces: Iterable[Mapping[str, Any]], axis: str) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at powers of ten; if it is short, also at 2 and 5 times these."""
    values = [value for trace in traces for value in trace[axis]]
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high < SHORT * low else (1,)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [fmt.amount(tick) for tick in ticks]}


def _suspicions(found: Mapping[str, Plan]) -> Table | None:
    rows = [
        Row((name, each.line, each.rule.strength))
        for name, plan in found.items()
        for each in plan.suspicions
    ]
    caption = (
        "By rules of thumb; suspicions, no mistakes. What a published model chose is left out."
    )
    return Table(caption, ("model", "what", "evidence"), rows) if rows else None


def _changes(found: Mapping[str, Plan]) -> Iterator[Block]:
    rows = [Row((name, line)) for name, each in found.items() for line in advice(each)]
    if rows:
        yield Table("What stands out, the most pressing first.", ("model", "what"), rows)
    else:
        yield Text("Nothing stands out.")
