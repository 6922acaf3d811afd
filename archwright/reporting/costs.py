"""The page of `archwright plan --html`: what bounds each part, what fills a device, and speed by batch and context."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from archwright import format as fmt
from archwright.planning.advice import advice
from archwright.planning.plans import Plan
from archwright.planning.roofline import Phase, ridge
from archwright.reporting.document import (
    Bar,
    Bars,
    Block,
    Chart,
    Fact,
    Facts,
    Page,
    Row,
    Section,
    Symbol,
    Table,
    Text,
)
from archwright.reporting.estimates import Here, this_machine_section

MARKS: Mapping[Phase, tuple[str, str, str, int]] = {
    "training": ("training", "circle-open", "$series-1", 16),
    "prefill": ("prefill", "square", "$series-3", 8),
    "decode": ("decode", "triangle-up", "$series-2", 10),
}
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS: tuple[Symbol, ...] = ("circle", "square", "diamond", "triangle-up")
FROM_ZERO = {"rangemode": "tozero"}
INTENSITY = {"type": "log", "dtick": 1}
SHORT = 100
"""An axis is short whose end is less than so many times its beginning."""


def cost_page(found: Mapping[str, Plan], here: Sequence[Here] = ()) -> Page:
    """Lay the costs of one model, or of several, out as a page; `here`: what there is of this machine."""
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
            Section("In short", [*_facts(found)]),
            *([this_machine_section(here)] if here else []),
            Section("What fills a device", [*_memory(found)]),
            Section("Ways to split", [*_ways(found)]),
            Section("What bounds each part", [*_rooflines(found)]),
            *([Section("Speed at best", charts)] if (charts := [*_speeds(found)]) else []),
            Section("What to change first", [*_changes(found)]),
            *([Section("Unusual", [table])] if (table := _suspicions(found)) else []),
        ],
        footer="Made by archwright. One file, which requests nothing. Speeds and times are estimated or bounds; "
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


def _facts(found: Mapping[str, Plan]) -> Iterator[Block]:
    yield Facts(
        {
            name: [
                Fact("Parameters", fmt.count(each.counts.total), "counted"),
                Fact("Active", fmt.count(each.counts.active), "counted, of one token"),
                Fact("FLOPs per token", fmt.flops(each.flops_per_token), "counted, in training"),
                Fact(
                    "Cache per token",
                    fmt.size(each.kv_cache_bytes_per_token) if each.writes else "-",
                    "counted, in 16 bits" if each.writes else "none is kept",
                ),
                Fact(
                    "Cache per text",
                    fmt.size(each.cache_bytes_per_text) if each.writes else "-",
                    f"of {each.context:,} tokens",
                ),
            ]
            for name, each in found.items()
        }
    )


def _memory(found: Mapping[str, Plan]) -> Iterator[Block]:
    for name, each in found.items():
        setup = each.setup or each.smallest
        parts = {part: float(size) for part, size in asdict(setup.memory).items() if size}
        bars = [Bar(part, size, _size(size)) for part, size in parts.items()]
        limit = each.workload.hardware.memory_bytes
        bars.append(Bar("all", setup.memory.total, _size(setup.memory.total), strong=True))
        bars.append(Bar("the device", limit, _size(limit)))
        how = f"{setup.split.name}, checkpointing {setup.checkpointing}"
        micro = setup.batch.micro
        texts = "one sequence at a time" if micro == 1 else f"{micro:,} sequences at a time"
        texts += ", one forward, one backward" * (setup.split.pipeline > 1)
        yield Bars(f"{name}: bytes on each device, {how}, {texts}", bars)


WAYS = (
    "split",
    "checkpointing",
    "micro-batch",
    "bytes on a device",
    "sent in a step",
    "on full links",
    "fits",
)


def _ways(found: Mapping[str, Plan]) -> Iterator[Block]:
    for name, each in found.items():
        rows = []
        for way in each.ways:
            sent, seconds = sum(way.exchange.values()), each.exchange(way)
            cells = (
                way.split.name,
                way.checkpointing,
                f"{way.batch.micro:,} x {way.batch.number:,}",
                _size(way.memory.total),
                _size(sent) if sent else "-",
                "-" if seconds is None else fmt.duration(seconds),
                f"no: {why}" if (why := each.why_not(way)) else "yes",
            )
            rows.append(Row(cells, "chosen" if way == each.setup else ""))
        caption = f"{name}: one way of each sort, on the device with most. Estimated from counted weights."
        yield Table(caption, WAYS, rows)


def _size(num_bytes: float) -> str:
    return fmt.size(num_bytes).replace(" ", "\N{NO-BREAK SPACE}")


def _rooflines(found: Mapping[str, Plan]) -> Iterator[Block]:
    yield Text(
        "A part below the bend waits for memory, one to the right of it for arithmetic. One text, or one token of it."
    )
    for number, (name, each) in enumerate(found.items()):
        yield _roofline(number, name, each)


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
            "name": "at best",
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
                "text": [o.name for o in operators],
                "marker": {"symbol": symbol, "size": size, "color": color, "line": {"width": 2}},
                "hovertemplate": "%{text}<br>%{x:.3s} FLOPs per byte<br>%{y:.3s}FLOP/s<extra></extra>",
            }
        )
    last: Phase = "decode" if "decode" in each.operators else "prefill"
    slowest = max(each.operators[last], key=lambda o: o.seconds(hardware, precision))
    return Chart(
        name=f"roofline-{number}",
        title=f"Roofline, {name}",
        summary=f"The bend is at {bend:.0f} FLOPs per byte. In {last}, {slowest.name} takes longest.",
        traces=traces,
        layout={
            "xaxis": {**INTENSITY, "title": {"text": "FLOPs per byte"}},
            "yaxis": {"type": "log", "dtick": 1, "tickformat": ".0s"},
            "showlegend": True,
        },
        unit="FLOP/s of one device",
        full_width=True,
    )


def _speeds(found: Mapping[str, Plan]) -> Iterator[Block]:
    served = {name: each.serving for name, each in found.items() if each.serving is not None}
    writing = {name: each for name, each in served.items() if found[name].decodes}
    for name, title, x, y, summary in (
        ("by-batch", "Decode, many texts", 0, 1, "texts at once"),
        ("by-context", "Decode, one text", 0, 2, "tokens of the text"),
        ("prefill", "Prefill, one text", 0, 1, "tokens of the text"),
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
            summary=f"Tokens per second at best, by {summary}.",
            traces=traces,
            layout={
                "xaxis": {**_log_axis(traces, "x"), "title": {"text": summary}},
                "yaxis": _log_axis(traces, "y") if name == "by-batch" else FROM_ZERO,
                "showlegend": len(serving) > 1,
            },
            unit="tokens per second",
        )


def _log_axis(traces: Iterable[Mapping[str, Any]], axis: str) -> dict[str, Any]:
    """Return an axis with ticks at powers of ten, or at 1, 2 and 5 times these where it is short: those of Plotly
    are single digits there, or none."""
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
