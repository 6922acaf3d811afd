"""Curves of a run: values of every step, thinned to the resolution of a screen."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archwright import format as fmt
from archwright.reporting.document import SMOOTHING, Axis, Chart
from archwright.reporting.history import MEASURED, History, Line
from archwright.reporting.result import as_nats_per_token, closing_steps, closing_words
from archwright.reporting.thinning import BUCKETS, Values, smoothed, thin

Trace = dict[str, Any]


def axes(histories: Sequence[History]) -> list[Axis]:
    """Return the horizontal axes that all runs support."""
    longest = max(float(history.train["seconds"].max(initial=0)) for history in histories)
    candidates = axes_up_to(longest, "training time")
    counted = all(history.flops_per_token for history in histories)
    return [axis for axis in candidates if axis.column != "flops" or counted]


def axes_up_to(seconds: float, time: str) -> list[Axis]:
    """Return the horizontal axes of curves. `time` is the title of the time axis, in seconds, minutes or hours."""
    unit, divide = "seconds", 1.0
    if seconds >= 600:
        unit, divide = ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)
    return [
        Axis("tokens", "Tokens", "tokens trained on", "%{x:.4s} tokens"),
        Axis("step", "Steps", "steps of training", "step %{x:,.0f}"),
        Axis("flops", "FLOPs", "training FLOPs", "%{x:.4s}FLOPs"),
        Axis("seconds", "Time", f"{time}, {unit}", f"%{{x:.4~r}} {unit}", divide),
    ]


def loss_chart(history: History) -> Chart:
    """Return training and held-out loss, with compressors and events marked."""
    traces = step_traces(history, "loss", "training", "$training", ".4f")
    if history.evals:
        losses = [line["nats_per_token"] for line in history.evals]
        traces += final_apart(_evaluated(history.evals, losses, history), history.evals)
    traces += _spikes(history)
    # Steps at which the run was resumed or stopped.
    lines = [
        event
        for event in history.events
        if event["name"] in ("resumed", "stopped") and event.keys() >= set(_ALONG)
    ]
    return Chart(
        name="loss",
        title="Loss",
        summary=_loss_summary(history),
        traces=traces,
        layout={"shapes": _levels(history)},
        unit=history.loss_unit,
        marks=[
            {"along": _with_flops({k: line[k] for k in _ALONG}, history), "text": line["name"]}
            for line in lines
        ],
        note=_loss_note(history),
        full_width=True,
    )


def bits_charts(history: History) -> list[Chart]:
    """Return the chart of held-out bits per byte, with compressor levels; empty if none is recorded."""
    lines = [e for e in history.evals if math.isfinite(e.get("bits_per_byte", math.nan))]
    if not lines:
        return []
    values = [line["bits_per_byte"] for line in lines]
    captions = [
        f"{fmt.loss(line['nats_per_token'])} {history.loss_unit}, at step {fmt.exact(line['step'])}"
        for line in lines
    ]
    return [
        Chart(
            name="bits-per-byte",
            title="Bits per byte",
            summary=f"Held-out text goes from {fmt.decimal(values[0])} to {fmt.decimal(values[-1])} bits per byte.",
            traces=final_apart(
                _evaluated(lines, values, history) | {"customdata": captions}, lines
            ),
            layout={
                "showlegend": False,
                "shapes": [
                    level(line["bits_per_byte"], line["name"], "start")
                    for line in history.compressors
                ],
            },
            unit="of held-out text",
        )
    ]


def accuracy_charts(history: History) -> list[Chart]:
    """Return the accuracy on a task, with the accuracy of guessing."""
    lines = [line for line in history.evals if "accuracy" in line]
    if not history.task or not lines:
        return []
    values = [line["accuracy"] for line in lines]
    return [
        Chart(
            name="accuracy",
            title="Accuracy",
            summary=f"From {fmt.accuracy(values[0])} to {fmt.accuracy(values[-1])} of the answers are right.",
            traces=final_apart(_evaluated(lines, values, history), lines),
            layout={
                "showlegend": False,
                "shapes": [level(history.task["chance"], "by guessing")],
                "yaxis": {"range": [0, 1.05], "tickformat": ".0%"},
            },
            unit="share of held-out answers",
        )
    ]


def step_charts(history: History) -> list[Chart]:
    """Return a chart for each of `step_columns` with recorded values."""
    return [
        Chart(
            name=column.replace("_", "-"),
            title=title,
            summary=_summary(history.train[column], title, shown),
            traces=step_traces(history, column, title.lower(), "$training", shown),
            layout={"showlegend": False, **column_layout(history, column)},
            unit=unit,
        )
        for column, title, unit, shown in step_columns(history)
        if is_drawn(history.train[column])
    ]


def step_columns(history: History) -> list[tuple[str, str, str, str]]:
    """Return (column, title, unit, number format) of each quantity except the loss."""
    name = history.spec.second_task
    return [
        ("lr", "Learning rate", "", ".3e"),
        ("grad_norm", "Gradient norm", "before clipping", ".3f"),
        ("tokens_per_second", "Throughput", "tokens per second", ".4s"),
        ("utilisation", "Utilisation", "of the measured peak", ".1%"),
        ("z_loss", "Z-loss", "z-loss, nats per token", ".3e"),
        ("router_loss", "Router loss", "balance and z-loss of routers", ".3e"),
        (
            "second_loss",
            f"{name[:1].upper()}{name[1:]}",
            f"nats per {history.spec.second_cases}",
            ".4f",
        ),
        *(
            (column, column.replace("_", " ").capitalize(), "auxiliary loss", ".3e")
            for column in history.train
            if column.endswith("_loss") and column not in MEASURED
        ),
    ]


def column_layout(history: History, column: str) -> dict[str, Any]:
    """Return the vertical axis of a column, and the gradient clipping threshold."""
    most = history.spec.max_grad_norm
    shapes: dict[str, Any] = {}
    if column == "grad_norm" and isinstance(most, float):
        shapes = {"shapes": [level(most, f"clipped above {most:g}")]}
    return {**shapes, "yaxis": {"nticks": 6, **_ticks(column)}}


def is_drawn(values: Values) -> bool:
    """True if a column has a finite value other than 0."""
    return bool((np.isfinite(values) & (values != 0)).any())


def along(history: History, index: NDArray[np.int64]) -> Trace:
    """Return the horizontal coordinates of the steps at `index`, by axis."""
    columns = {name: history.train[name][index] for name in _ALONG}
    return _with_flops(columns, history)


def evaluated_along(lines: Sequence[Line], history: History) -> Trace:
    """Return the horizontal coordinates of evaluations, by axis."""
    return _with_flops({name: [line[name] for line in lines] for name in _ALONG}, history)


def _with_flops(columns: dict[str, Any], history: History) -> dict[str, Any]:
    if history.flops_per_token:
        columns["flops"] = np.asarray(columns["tokens"]) * history.flops_per_token
    return columns


def step_traces(
    history: History,
    column: str,
    name: str,
    color: str,
    shown: str,
    *,
    values: Values | None = None,
    buckets: int = BUCKETS,
    **style: Any,
) -> list[Trace]:
    """Draw a column, or `values`, at every step and with each smoothing.

    `style` overrides keys of the traces; its key `line` overrides keys of their lines. Learning rates are not smoothed.
    """
    values = history.train[column] if values is None else values
    line = {"color": color, **style.pop("line", {})}
    weights = SMOOTHING[1:] if len(values) > 1 and column != "lr" else ()
    raw = thin(values, buckets)
    trace: Trace = {
        "type": "scatter",
        "mode": "markers" if len(values) == 1 else "lines",
        "name": f"{name}, each step" if weights else name,
        "along": along(history, raw),
        "y": values[raw],
        "customdata": history.train["step"][raw],
        "line": {"width": 2, **line},
        "marker": {"color": color, "size": 8},
        "hovertemplate": f"%{{y:{shown}}} at step %{{customdata:,}}",
        **style,
    }
    if not weights:
        return [trace]
    every = np.unique(np.linspace(0, len(values) - 1, max(2, buckets // 2)).astype(np.int64))
    places = along(history, every)
    means: list[Trace] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"{name}, smoothed ({weight:g})",
            "along": places,
            "y": smoothed(values, weight)[every],
            "smoothing": weight,
            "line": {"width": 2, **line},
            "hovertemplate": f"%{{y:{shown}}}",
            **style,
        }
        for weight in weights
    ]
    return [trace | {"raw": True}, *means]


def _evaluated(lines: Sequence[Line], values: Sequence[float], history: History) -> Trace:
    """Draw values of evaluations."""
    bits = [line.get("bits_per_byte") for line in lines]
    shown = ["" if b is None else f"{fmt.decimal(b)} bits per byte, " for b in bits]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "held out",
        "along": evaluated_along(lines, history),
        "y": values,
        "customdata": [
            f"{text}at step {fmt.exact(line['step'])}"
            for text, line in zip(shown, lines, strict=True)
        ],
        "line": {"width": 2, "color": "$held-out"},
        "marker": {"size": 7, "color": "$held-out"},
        "hovertemplate": "%{y:.4f}, %{customdata}",
    }


def final_apart(trace: Trace, lines: Sequence[Line]) -> list[Trace]:
    """Draw the final evaluation separately if it read more or less text than the evaluation before it."""
    if len(lines) < 2 or lines[-1]["num_tokens"] == lines[-2]["num_tokens"]:
        return [trace]

    def part(which: slice) -> Trace:
        along = {name: values[which] for name, values in trace["along"].items()}
        return trace | {"along": along} | {key: trace[key][which] for key in ("y", "customdata")}

    mark = {"size": 10, "symbol": "diamond-open", "line": {"width": 2}}
    final = {"mode": "markers", "name": f"{trace['name']}, final", "marker": trace["marker"] | mark}
    return [part(slice(-1)), part(slice(-1, None)) | final]


def _spikes(history: History) -> list[Trace]:
    """Mark loss spikes on the curve of training loss."""
    spikes = [event for event in history.events if event["name"] == "loss_spike"]
    if not spikes or not len(history.train["step"]):
        return []
    steps = [event["step"] for event in spikes]
    at = np.clip(np.searchsorted(history.train["step"], steps), 0, len(history.train["step"]) - 1)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "loss spike",
            "along": along(history, at),
            "y": history.train["loss"][at],
            "customdata": [f"step {fmt.exact(e['step'])}. {e.get('text', '')}" for e in spikes],
            "marker": {"symbol": "triangle-down", "size": 11, "color": "$alarm"},
            "hovertemplate": "%{customdata}",
        }
    ]


def _levels(history: History) -> list[dict[str, Any]]:
    """Return dotted levels: compressor losses, or the minimum loss of a task."""
    if not history.evals:
        return []
    if history.task and history.task["floor"]:
        least = history.task["floor"]
        return [level(least, f"minimum of any model, {fmt.loss(least)}", "start")]
    return [
        level(
            as_nats_per_token(line["bits_per_byte"], history.evals[-1]),
            f"{line['name']}, {fmt.decimal(line['bits_per_byte'])} bits per byte",
            "start",
        )
        for line in history.compressors
    ]


def level(value: float, text: str, at: str = "end") -> dict[str, Any]:
    """Return a dotted horizontal line with a label at its start or end."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"width": 1, "dash": "dot", "color": "$muted"},
        "label": {
            "text": text,
            "textposition": at,
            "yanchor": "bottom",
            "font": {"size": 11, "color": "$muted"},
        },
    }


def _summary(values: Values, title: str, shown: str) -> str:
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max(), finite[-1])
    low, high, last = (fmt.count(v) if shown.endswith("s") else format(v, shown) for v in ends)
    return f"{title} over {fmt.exact(len(finite))} steps: from {low} to {high}, at the end {last}."


def _ticks(column: str) -> dict[str, Any]:
    if column == "lr":
        return {"rangemode": "tozero", "exponentformat": "e"}
    if column == "grad_norm":
        marks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
        return {"type": "log", "tickvals": marks, "tickformat": "~g"}
    if column == "utilisation":
        return {"rangemode": "tozero", "tickformat": "~%"}
    return {"rangemode": "tozero", "tickformat": "~s"}


def _loss_summary(history: History) -> str:
    losses = history.train["loss"]
    if not len(losses):
        return "No steps were recorded."
    last = losses[-closing_steps(len(losses)) :].mean()
    trained = f"Training loss goes from {losses[0]:.2f} to {last:.2f} {history.loss_unit}"
    last_eval = history.evals[-1]["nats_per_token"] if history.evals else None
    held_out = f"; held-out loss ends at {last_eval:.2f}" if last_eval else ""
    steps = f"{fmt.exact(len(losses))} steps ({closing_words(len(losses))})"
    return f"{trained} over {steps}{held_out}."


def _loss_note(history: History) -> str:
    losses = history.train["loss"]
    notes = []
    read = {line["num_bytes"]: None for line in history.evals}
    if len(read) > 1 and not history.task:
        first, *_, last = map(fmt.size, read)
        notes.append(f"Held-out points read {first} of the text, the final one (diamond) {last}.")
    if history.evals and history.compressors:
        notes.append("Dotted: the loss at which the model would equal each compressor.")
    if len(losses) > 2 * BUCKETS:
        notes.append(
            f"Of {fmt.exact(len(losses))} steps, the lowest and highest value in each of "
            f"{fmt.exact(BUCKETS)} intervals are drawn; metrics.jsonl has all."
        )
    return " ".join(notes)


_ALONG = ("step", "tokens", "seconds")
