"""Page of `archwright plan --html`: costs, memory, rooflines, and speed by batch and context."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from archwright import format as fmt
from archwright.catalogue.part_titles import part_title
from archwright.planning.advice import advice
from archwright.planning.plans import Plan
from archwright.planning.roofline import Operator, Phase, ridge
from archwright.reporting import plan_rows
from archwright.reporting.document import Bar, Bars, Block, Chart, Page, Row, Section, Table, Text
from archwright.reporting.styles import DASHES, SYMBOLS

MARKS: Mapping[Phase, tuple[str, str, str, int]] = {
    "training": ("training", "circle-open", "$series-1", 16),
    "prefill": ("prefill", "square", "$series-3", 8),
    "decode": ("decode", "triangle-up", "$series-2", 10),
}
FROM_ZERO = {"rangemode": "tozero"}
INTENSITY = {"type": "log", "dtick": 1}
SHORT = 100
"""Minimum ratio of an axis's maximum to its minimum for the axis to count as long."""


def cost_page(plans: Mapping[str, Plan], here: Sequence[plan_rows.Figure] = ()) -> Page:
    """Build the page of one or several plans.

    Args:
        plans: Plans by name of the model.
        here: Memory and time of one training step on this machine, if measured or estimated.
    """
    first = next(iter(plans.values()))
    work = first.workload
    head, rest = _verdict(plans)
    devices = f"{work.devices:,} x {work.hardware.title}, {work.precision}"
    return Page(
        title=f"{', '.join(plans)}: {head}",
        kicker=f"archwright plan, {devices}",
        verdict=head,
        verdict_rest=rest,
        sections=[
            Section(
                "Model", [_figures("Model costs.", plans, [plan_rows.model_rows]), *_parts(plans)]
            ),
            *(
                [Section("A step on this machine", [_table("Estimated and measured.", here)])]
                if here
                else []
            ),
            Section("Training", [_figures("Training costs.", plans, [plan_rows.training_rows])]),
            Section("Memory on each device", [*_memory(plans)]),
            Section("Parallelism strategies", [*_strategies(plans)]),
            Section("Roofline", [*_rooflines(plans)]),
            Section(
                "Serving",
                [
                    _figures("Upper bounds of speed.", plans, [plan_rows.serving_rows]),
                    *_speeds(plans),
                ],
            ),
            Section("What to change first", [*_changes(plans)]),
            *([Section("Unusual", [table])] if (table := _suspicions(plans)) else []),
        ],
        footer="Made by archwright. One file without network requests. Speeds and times are estimates or bounds; "
        "docs/planning.md has the formulas.",
    )


def _verdict(plans: Mapping[str, Plan]) -> tuple[str, str]:
    fits = [name for name, plan in plans.items() if plan.setup is not None]
    if len(plans) > 1:
        return f"{len(fits)} of {len(plans)} fit", "in memory when trained on these devices."
    (plan,) = plans.values()
    hours = plan.training.device_hours
    span = f"{fmt.amount(hours.least)} to {fmt.amount(hours.most)} device hours"
    if plan.setup is None:
        return "Does not fit", "in memory when trained on these devices."
    return span, f"for {fmt.count(plan.training.tokens)} tokens, with {plan.setup.split.name}."


def _figures(caption: str, plans: Mapping[str, Plan], rows: Sequence[plan_rows.Rows]) -> Table:
    """Return a table of one plan, or of several side by side."""
    if len(plans) > 1:
        cells = [Row([*map(_unbroken, row)]) for row in plan_rows.side_by_side_rows(plans, rows)]
        head = ("", *plans, "how it is known")
        return Table(caption, head, cells, even=len(plans) == 2)  # headers next to values on phones
    (plan,) = plans.values()
    return _table(caption, [figure for of_kind in rows for figure in of_kind(plan)])


def _table(caption: str, figures: Iterable[plan_rows.Figure]) -> Table:
    lines = [Row((f.label, _unbroken(f.text), f.remark)) for f in figures]
    return Table(caption, ("", "", "how it is known"), lines)


def _parts(plans: Mapping[str, Plan]) -> Iterator[Block]:
    for name, plan in plans.items():
        yield Table(
            f"{name}, by part. {plan_rows.ABOUT_PARTS}",
            plan_rows.PARTS,
            [*map(Row, plan_rows.part_rows(plan))],
        )


def _memory(plans: Mapping[str, Plan]) -> Iterator[Block]:
    yield _figures("Whether the training fits.", plans, [plan_rows.memory_rows])
    for name, plan in plans.items():
        setup = plan.setup or plan.smallest
        bars = [Bar(label, size, _size(size)) for label, size, _ in plan_rows.memory_by_part(setup)]
        limit = plan.workload.hardware.memory_bytes
        bars.append(Bar("all", setup.memory.total, _size(setup.memory.total), strong=True))
        bars.append(Bar("the device", limit, _size(limit)))
        how = f"{setup.split.name}, checkpointing {setup.checkpointing}"
        micro = setup.batch.micro
        sequences = "one sequence at a time" if micro == 1 else f"{micro:,} sequences at a time"
        sequences += ", one forward, one backward" * (setup.split.pipeline > 1)
        yield Bars(f"{name}: bytes on each device, {how}, {sequences}", bars)


def _strategies(plans: Mapping[str, Plan]) -> Iterator[Block]:
    for name, plan in plans.items():
        rows = [
            Row([*map(_unbroken, cells)], "chosen" if way == plan.setup else "")
            for way, cells in plan_rows.strategy_rows(plan)
        ]
        caption = f"{name}: one setup per kind, on the device that uses most memory. {plan_rows.about_strategies(plan)}"
        yield Table(caption, plan_rows.STRATEGIES, rows)


def _unbroken(text: str) -> str:
    """Return a short number and its unit with no-break spaces; other text is unchanged."""
    return (
        text.replace(" ", "\N{NO-BREAK SPACE}") if text[:1].isdigit() and len(text) < 12 else text
    )


def _size(num_bytes: float) -> str:
    return _unbroken(fmt.size(num_bytes))


def _rooflines(plans: Mapping[str, Plan]) -> Iterator[Block]:
    yield Text(
        "Parts left of the ridge point are memory-bound, parts right of it compute-bound. The workload is one sequence "
        "of full context length, or in decode the next token, on one device. Numbers at points refer to the table."
    )
    yield _figures("The device.", dict([next(iter(plans.items()))]), [plan_rows.device_rows])
    for number, (name, plan) in enumerate(plans.items()):
        yield _roofline(number, name, plan)
        yield _roofline_table(name, plan)


def _numbers(plan: Plan) -> dict[str, int]:
    """Number the parts in the chart, from the largest share of the time to the smallest."""
    hardware, precision = plan.workload.hardware, plan.workload.precision
    seconds: dict[str, float] = {}
    for operators in plan.operators.values():
        total = sum(o.seconds(hardware, precision) for o in operators)
        for o in operators:
            share = o.seconds(hardware, precision) / total
            seconds[o.name] = max(seconds.get(o.name, 0.0), share)
    ordered = sorted(seconds, key=lambda part: -seconds[part])
    return {part: number for number, part in enumerate(ordered, start=1)}


def _roofline_table(name: str, plan: Plan) -> Table:
    hardware, precision = plan.workload.hardware, plan.workload.precision
    bend = ridge(hardware, precision)
    by_phase = {
        phase: {o.name: o for o in operators} for phase, operators in plan.operators.items()
    }
    rows = []
    for part, number in _numbers(plan).items():
        cells = []
        for phase in by_phase.values():
            if part not in phase:
                cells.append("-")
                continue
            o = phase[part]
            total = sum(op.seconds(hardware, precision) for op in phase.values())
            bound = "memory-bound" if o.intensity < bend else "compute-bound"
            share = fmt.percent(o.seconds(hardware, precision) / total)
            cells.append(f"{fmt.significant(o.intensity)}, {bound}, {share}")
        rows.append(Row((f"{number}  {part_title(part)}", *cells)))
    caption = f"{name}: FLOPs per byte, the bottleneck, and the share of the time at the roofline."
    return Table(caption, ("part", *by_phase), rows, even=True)


def _roofline(number: int, name: str, plan: Plan) -> Chart:
    hardware, precision = plan.workload.hardware, plan.workload.precision
    peak, bend = hardware.peak(precision), ridge(hardware, precision)
    points = [o for operators in plan.operators.values() for o in operators]
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
    for phase, operators in plan.operators.items():
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
    last: Phase = "decode" if "decode" in plan.operators else "prefill"
    slowest = max(plan.operators[last], key=lambda o: o.seconds(hardware, precision))
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
            "annotations": [*_labels(plan, points, ends), _ridge_label(bend, peak)],
        },
        unit="FLOP/s of one device",
        full_width=True,
    )


LABEL = {"showarrow": False, "font": {"size": 12, "color": "$ink"}, "yanchor": "top"}
NEAR = 0.05
"""Share of the axis within which points share a label."""


def _labels(
    plan: Plan, points: Sequence[Operator], ends: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Yield labels that show each part's number below its point; points close together share a label."""
    hardware, precision = plan.workload.hardware, plan.workload.precision
    numbers = _numbers(plan)
    near = NEAR * math.log10(ends[1] / ends[0])
    groups: list[list[Operator]] = []
    for point in sorted(points, key=lambda o: o.intensity):
        if groups and math.log10(point.intensity / groups[-1][0].intensity) < near:
            groups[-1].append(point)
        else:
            groups.append([point])
    for group in groups:
        # Middles of groups are at least half as far apart as their first points.
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


def _speeds(plans: Mapping[str, Plan]) -> Iterator[Block]:
    served = {name: plan.serving for name, plan in plans.items() if plan.serving is not None}
    writing = {name: speeds for name, speeds in served.items() if plans[name].decodes}
    for name, title, x, y, summary in (
        ("by-batch", "Decode, many sequences", 0, 1, "sequences at once"),
        ("by-context", "Decode, one sequence", 0, 2, "tokens of the sequence"),
        ("prefill", "Prefill, one sequence", 0, 1, "tokens of the sequence"),
    ):
        traces = []
        serving = served if name == "prefill" else writing
        if not serving:
            continue
        for number, (model, speeds) in enumerate(serving.items()):
            points = speeds.by_batch if name == "by-batch" else speeds.by_context
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
    """Return a logarithmic axis with ticks at 10^n; a short axis also has 2 and 5 times 10^n."""
    values = [value for trace in traces for value in trace[axis]]
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high < SHORT * low else (1,)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [fmt.amount(tick) for tick in ticks]}


def _suspicions(plans: Mapping[str, Plan]) -> Table | None:
    rows = [
        Row((name, suspicion.line, suspicion.rule.strength))
        for name, plan in plans.items()
        for suspicion in plan.suspicions
    ]
    caption = "Rules of thumb, not errors. Choices of published models are left out."
    return Table(caption, ("model", "finding", "evidence"), rows) if rows else None


def _changes(plans: Mapping[str, Plan]) -> Iterator[Block]:
    rows = [Row((name, line)) for name, plan in plans.items() for line in advice(plan)]
    if rows:
        yield Table("Most important first.", ("model", "change"), rows)
    else:
        yield Text("Nothing stands out.")
