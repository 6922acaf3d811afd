"""Curves of a run: what was measured at every step, thinned to what a screen can show."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archwright import format as fmt
from archwright.reporting.document import Axis, Chart
from archwright.reporting.history import History, Line
from archwright.reporting.result import as_nats_per_token

Values = NDArray[np.float64]
Trace = dict[str, Any]

BUCKETS = 1000
"""A curve is drawn as the lowest and highest value of each of this many stretches."""

SMOOTHING = 0.02
"""Share of the steps that the smoothed curve averages over."""

FEWEST_TO_SMOOTH = 50


def axes(history: History) -> list[Axis]:
    """Return what a run's curves can be drawn against."""
    found = axes_up_to(float(history.train["seconds"].max(initial=0)), "training time")
    return [axis for axis in found if axis.column != "flops" or history.flops_per_token]


def axes_up_to(seconds: float, time: str) -> list[Axis]:
    """Return what curves of a training can be drawn against, with `time` in the unit that suits its length."""
    unit, divide = "seconds", 1.0
    if seconds >= 600:
        unit, divide = ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)
    return [
        Axis("tokens", "Tokens", "tokens trained on", "%{x:.4s} tokens"),
        Axis("flops", "FLOPs", "training FLOPs", "%{x:.4s}FLOPs"),
        Axis("seconds", "Time", f"{time}, {unit}", f"%{{x:.4~r}} {unit}", divide),
    ]


def loss_chart(history: History) -> Chart:
    """Return training and held-out loss with compressors as levels and events as marks."""
    traces = [
        *_raw_and_smooth(history, "loss", "training", "$training", ".4f"),
        *_held_out(history),
        *_spikes(history),
    ]
    # Where the run was resumed or stopped.
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


def accuracy_charts(history: History) -> list[Chart]:
    """Return the share of right answers beside that of guessing, of a run on a task."""
    lines = [line for line in history.evals if "accuracy" in line]
    if not history.task or not lines:
        return []
    values = [line["accuracy"] for line in lines]
    trace: Trace = _evaluated(lines, values, history)
    return [
        Chart(
            name="accuracy",
            title="Accuracy",
            summary=f"From {fmt.accuracy(values[0])} to {fmt.accuracy(values[-1])} of the answers are right.",
            traces=[trace],
            layout={
                "showlegend": False,
                "shapes": [level(history.task["chance"], "by guessing")],
                "yaxis": {"range": [0, 1.05], "tickformat": ".0%"},
            },
            unit="share of held-out answers",
        )
    ]


def step_charts(history: History) -> list[Chart]:
    """Return learning rate, gradient norm, throughput and utilisation, as far as they were recorded."""
    most = history.spec.max_grad_norm
    clip = [level(most, f"clipped above {most:g}")] if isinstance(most, float) else []
    made = (
        _chart(history, "lr", "Learning rate", "", ".3e", smooth=False),
        _chart(history, "grad_norm", "Gradient norm", "before clipping", ".3f", shapes=clip),
        _chart(history, "tokens_per_second", "Throughput", "tokens per second", ".4s"),
        _chart(history, "utilisation", "Utilisation", "of the measured peak", ".1%"),
        _chart(history, "z_loss", "Z-loss", "z-loss, nats per token", ".3e"),
        _chart(history, "router_loss", "Router loss", "balance and z-loss of routers", ".3e"),
        _chart(history, "second_loss", *_second_title(history), ".4f"),
    )
    return [chart for chart in made if chart]


def _second_title(history: History) -> tuple[str, str]:
    """Return the title and the unit of the loss of what is learned beside tokens."""
    name = history.spec.second_task
    return f"{name[:1].upper()}{name[1:]}", f"nats per {history.spec.second_cases}"


def thin(values: Values, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """Return the indices of the lowest and highest value of each bucket, of the first and the last.

    Peaks survive, which every n-th value would not promise. Short curves are kept whole.
    """
    if len(values) <= 2 * buckets:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, end in pairwise(edges.tolist()):
        piece = values[start:end]
        kept.add(start + int(np.argmin(np.where(np.isnan(piece), np.inf, piece))))
        kept.add(start + int(np.argmax(np.where(np.isnan(piece), -np.inf, piece))))
    return np.array(sorted(kept))


def smoothed(values: Values, window: int) -> Values:
    """Return the mean over `window` steps centred at each, of those that are finite."""
    finite = np.isfinite(values)
    kernel = np.ones(window)
    total = np.convolve(np.where(finite, values, 0.0), kernel, mode="same")
    number = np.convolve(finite.astype(float), kernel, mode="same")
    mean: Values = np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0.5)
    return mean


def smoothing_window(steps: int) -> int:
    """Return the odd number of steps that the smoothed curve averages over; 1 is no smoothing."""
    return 1 if steps < FEWEST_TO_SMOOTH else 2 * max(1, round(SMOOTHING * steps / 2)) + 1


def along(history: History, index: NDArray[np.int64]) -> Trace:
    """Return the columns that a curve can be drawn against, at some of the steps."""
    columns = {name: history.train[name][index] for name in ("step", "tokens", "seconds")}
    return _with_flops(columns, history)


def _with_flops(columns: dict[str, Any], history: History) -> dict[str, Any]:
    if history.flops_per_token:
        columns["flops"] = np.asarray(columns["tokens"]) * history.flops_per_token
    return columns


def _raw_and_smooth(
    history: History, column: str, name: str, color: str, shown: str, smooth: bool = True
) -> list[Trace]:
    """Draw every step thinly and, over enough steps, their running mean on top."""
    values = history.train[column]
    window = smoothing_window(len(values)) if smooth else 1
    raw = thin(values)
    single = len(values) == 1
    trace: Trace = {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "name": name if window == 1 else f"{name}, each step",
        "along": along(history, raw),
        "y": values[raw],
        "customdata": history.train["step"][raw],
        "line": {"width": 2 if window == 1 else 1, "color": color},
        "marker": {"color": color, "size": 8},
        "opacity": 1 if window == 1 else 0.35,
        "hovertemplate": f"%{{y:{shown}}} at step %{{customdata:,}}",
    }
    if window == 1:
        return [trace]
    every = np.unique(np.linspace(0, len(values) - 1, BUCKETS // 2).astype(np.int64))
    mean: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": f"{name}, mean of {window} steps",
        "along": along(history, every),
        "y": smoothed(values, window)[every],
        "line": {"width": 2, "color": color},
        "hovertemplate": f"%{{y:{shown}}}",
    }
    return [trace, mean]


def _held_out(history: History) -> list[Trace]:
    if not history.evals:
        return []
    return [_evaluated(history.evals, [line["nats_per_token"] for line in history.evals], history)]


def _evaluated(lines: Sequence[Line], values: Sequence[float], history: History) -> Trace:
    """Draw what evaluations found."""
    columns = {name: [line[name] for line in lines] for name in _ALONG}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "held out",
        "along": _with_flops(columns, history),
        "y": values,
        "customdata": [f"{_bits(line)}at step {fmt.exact(line['step'])}" for line in lines],
        "line": {"width": 2, "color": "$held-out"},
        "marker": {"size": 7, "color": "$held-out"},
        "hovertemplate": "%{y:.4f}, %{customdata}",
    }


def _bits(line: Line) -> str:
    """Return an evaluation's bits per byte in words, where they are defined."""
    bits = line.get("bits_per_byte")
    return "" if bits is None else f"{fmt.decimal(bits)} bits per byte, "


def _spikes(history: History) -> list[Trace]:
    """Mark loss spikes on the curve, at the loss of their step."""
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
    """Draw what the compressors reach as dotted levels, in nats per token of the held-out text, or the least loss of
    a task."""
    if not history.evals:
        return []
    if history.task and history.task["floor"]:
        least = history.task["floor"]
        return [level(least, f"the least of any model, {fmt.loss(least)}")]
    return [
        level(
            as_nats_per_token(line["bits_per_byte"], history.evals[-1]),
            f"{line['name']}, {fmt.decimal(line['bits_per_byte'])} bits per byte",
        )
        for line in history.compressors
    ]


def level(value: float, text: str) -> dict[str, Any]:
    """Return a labelled horizontal line."""
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
            "textposition": "end",
            "yanchor": "bottom",
            "font": {"size": 11, "color": "$muted"},
        },
    }


def _chart(
    history: History,
    column: str,
    title: str,
    unit: str,
    shown: str,
    smooth: bool = True,
    shapes: Sequence[Mapping[str, object]] = (),
) -> Chart | None:
    """Return one measured column as a small chart, or None where it is empty or all zero."""
    values = history.train[column]
    finite = values[np.isfinite(values)]
    if not len(finite) or not finite.any():
        return None
    ends = (finite.min(), finite.max(), finite[-1])
    low, high, last = (fmt.count(v) if shown.endswith("s") else format(v, shown) for v in ends)
    return Chart(
        name=column.replace("_", "-"),
        title=title,
        summary=f"{title} over {fmt.exact(len(finite))} steps: from {low} to {high}, at the end {last}.",
        traces=_raw_and_smooth(history, column, title.lower(), "$training", shown, smooth),
        layout={
            "showlegend": False,
            **({"shapes": shapes} if shapes else {}),
            "yaxis": {"nticks": 6, **_ticks(column)},
        },
        unit=unit,
    )


def _ticks(column: str) -> dict[str, Any]:
    if column == "lr":
        return {"rangemode": "tozero", "exponentformat": "e"}
    if column == "grad_norm":
        marks = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]
        return {"type": "log", "tickvals": marks, "tickformat": "~g"}
    if column == "utilisation":
        return {"rangemode": "tozero", "tickformat": ".0%"}
    return {"rangemode": "tozero", "tickformat": "~s"}


def _loss_summary(history: History) -> str:
    losses = history.train["loss"]
    if not len(losses):
        return "No steps were recorded."
    last = losses[-max(1, smoothing_window(len(losses)) // 2) :].mean()
    trained = f"Training loss goes from {losses[0]:.2f} to {last:.2f} {history.loss_unit}"
    last_eval = history.evals[-1]["nats_per_token"] if history.evals else None
    held_out = f"; held-out loss ends at {last_eval:.2f}" if last_eval else ""
    return f"{trained} over {fmt.exact(len(losses))} steps{held_out}."


def _loss_note(history: History) -> str:
    losses = history.train["loss"]
    notes = []
    read = {line["num_bytes"]: None for line in history.evals}
    if len(read) > 1 and not history.task:
        first, *_, last = map(fmt.size, read)
        notes.append(f"Held-out points read {first} of the text, the last one {last}.")
    if history.evals and history.compressors:
        notes.append("Dotted: the loss at which the model would equal each compressor.")
    if len(losses) > 2 * BUCKETS:
        notes.append(
            f"Of {fmt.exact(len(losses))} steps, the lowest and highest value in each of "
            f"{fmt.exact(BUCKETS)} stretches are drawn; metrics.jsonl has all."
        )
    return " ".join(notes)


_ALONG = ("step", "tokens", "seconds")
