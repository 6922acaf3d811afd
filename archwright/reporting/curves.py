"""Curves of a run: what was measured at every step, thinned to what a screen can show."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archwright.reporting import words
from archwright.reporting.document import Axis, Chart
from archwright.reporting.record import Line, Record
from archwright.reporting.result import as_nats_per_token

Values = NDArray[np.float64]
Trace = dict[str, Any]

BUCKETS = 1000
"""A curve is drawn as the lowest and highest value of each of this many stretches."""

SMOOTHING = 0.02
"""Share of the steps that the smoothed curve averages over."""

FEWEST_TO_SMOOTH = 50


def axes(record: Record) -> list[Axis]:
    """Return what a run's curves can be drawn against."""
    unit, divide = time_unit(float(record.train["seconds"].max(initial=0)))
    flops = [Axis("flops", "FLOPs", "training FLOPs")] if record.flops_per_token else []
    return [
        Axis("tokens", "Tokens", "tokens trained on"),
        *flops,
        Axis("seconds", "Time", f"training time, {unit}", divide),
    ]


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit that suits a length of time, and its seconds."""
    if seconds < 600:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def loss_chart(record: Record) -> Chart:
    """Return training and held-out loss with compressors as levels and events as marks."""
    traces = [
        *_raw_and_smooth(record, "loss", "training", "$training", ".4f"),
        *_held_out(record),
        *_spikes(record),
    ]
    return Chart(
        name="loss",
        title="Loss",
        summary=_loss_summary(record),
        traces=traces,
        layout={
            "yaxis": {"title": {"text": "nats per token"}},
            "shapes": _levels(record),
        },
        marks=_marks(record),
        note=_loss_note(record),
        wide=True,
    )


def step_charts(record: Record) -> list[Chart]:
    """Return learning rate, gradient norm, throughput and utilisation, as far as they were recorded."""
    made = (
        _chart(record, "lr", "Learning rate", "learning rate", ".3e", smooth=False),
        _chart(record, "grad_norm", "Gradient norm", "gradient norm", ".3f", **_clip(record)),
        _chart(record, "tokens_per_second", "Throughput", "tokens per second", ".4s"),
        _chart(record, "utilisation", "Utilisation", "share of measured peak", ".1%"),
        _chart(record, "z_loss", "Z-loss", "z-loss, nats per token", ".3e"),
    )
    return [chart for chart in made if chart]


def thin(values: Values, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """Return the indices of the lowest and highest value of each bucket, with the first and the last.

    Peaks survive, which every n-th value would not promise. Short curves are kept whole.
    """
    if len(values) <= 2 * buckets:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, end in zip(edges[:-1], edges[1:], strict=True):
        piece = values[start:end]
        kept.add(int(start + np.argmin(np.where(np.isnan(piece), np.inf, piece))))
        kept.add(int(start + np.argmax(np.where(np.isnan(piece), -np.inf, piece))))
    return np.array(sorted(kept))


def smoothed(values: Values, window: int) -> Values:
    """Return the mean over `window` steps centred at each; steps that are not finite are left out."""
    finite = np.isfinite(values)
    kernel = np.ones(window)
    total = np.convolve(np.where(finite, values, 0.0), kernel, mode="same")
    number = np.convolve(finite.astype(float), kernel, mode="same")
    return np.divide(total, number, out=np.full_like(total, np.nan), where=number > 0.5)


def smoothing_window(steps: int) -> int:
    """Return the odd number of steps that the smoothed curve averages over; 1 is no smoothing."""
    return 1 if steps < FEWEST_TO_SMOOTH else 2 * max(1, round(SMOOTHING * steps / 2)) + 1


def along(record: Record, index: NDArray[np.int64]) -> Trace:
    """Return the columns that a curve can be drawn against, at some of the steps."""
    columns = {name: record.train[name][index] for name in ("step", "tokens", "seconds")}
    return _with_flops(columns, record)


def _with_flops(columns: dict[str, Any], record: Record) -> dict[str, Any]:
    if record.flops_per_token:
        columns["flops"] = np.asarray(columns["tokens"]) * record.flops_per_token
    return columns


def _raw_and_smooth(
    record: Record, column: str, name: str, color: str, shown: str, smooth: bool = True
) -> list[Trace]:
    """Draw every step thinly and, over enough steps, their running mean on top."""
    values = record.train[column]
    window = smoothing_window(len(values)) if smooth else 1
    raw = thin(values)
    single = len(values) == 1
    trace: Trace = {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "name": name if window == 1 else f"{name}, each step",
        "along": along(record, raw),
        "y": values[raw],
        "customdata": record.train["step"][raw],
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
        "along": along(record, every),
        "y": smoothed(values, window)[every],
        "line": {"width": 2, "color": color},
        "hovertemplate": f"%{{y:{shown}}}",
    }
    return [trace, mean]


def _held_out(record: Record) -> list[Trace]:
    if not record.evals:
        return []
    bits = [words.decimal(line["bits_per_byte"]) for line in record.evals]
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "held out",
            "along": _lines_along(record, record.evals),
            "y": [line["nats_per_token"] for line in record.evals],
            "customdata": bits,
            "line": {"width": 2, "color": "$held-out"},
            "marker": {"size": 7, "color": "$held-out"},
            "hovertemplate": "%{y:.4f}, %{customdata} bits per byte",
        }
    ]


def _spikes(record: Record) -> list[Trace]:
    """Mark loss spikes on the curve, at the loss of their step."""
    spikes = [event for event in record.events if event["name"] == "loss_spike"]
    if not spikes or not len(record.train["step"]):
        return []
    steps = [event["step"] for event in spikes]
    at = np.clip(np.searchsorted(record.train["step"], steps), 0, len(record.train["step"]) - 1)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "loss spike",
            "along": along(record, at),
            "y": record.train["loss"][at],
            "customdata": [event.get("text", "") for event in spikes],
            "marker": {"symbol": "triangle-down", "size": 11, "color": "$alarm"},
            "hovertemplate": "%{customdata}",
        }
    ]


def _levels(record: Record) -> list[dict[str, Any]]:
    """Draw what the compressors reach as dotted levels, in nats per token of the held-out text."""
    if not record.evals:
        return []
    return [
        level(
            as_nats_per_token(line["bits_per_byte"], record.evals[-1]),
            f"{line['name']}, {words.decimal(line['bits_per_byte'])} bits per byte",
        )
        for line in record.compressors
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


def _marks(record: Record) -> list[dict[str, Any]]:
    """Mark where a run was resumed or stopped."""
    lines = [event for event in record.events if event["name"] in ("resumed", "stopped")]
    return [
        {"along": _with_flops({k: line[k] for k in _ALONG}, record), "text": line["name"]}
        for line in lines
    ]


def _lines_along(record: Record, lines: Sequence[Line]) -> dict[str, Any]:
    columns = {name: [line[name] for line in lines] for name in _ALONG}
    return _with_flops(columns, record)


def _chart(
    record: Record,
    column: str,
    title: str,
    unit: str,
    shown: str,
    smooth: bool = True,
    layout: Mapping[str, Any] | None = None,
) -> Chart | None:
    """Return one measured column as a small chart, or None where it is empty or all zero."""
    values = record.train[column]
    finite = values[np.isfinite(values)]
    if not len(finite) or not finite.any():
        return None
    axis = {"title": {"text": unit}, **_ticks(column)}
    return Chart(
        name=column.replace("_", "-"),
        title=title,
        summary=_summary(title, finite, shown),
        traces=_raw_and_smooth(record, column, title.lower(), "$training", shown, smooth),
        layout={"showlegend": False, **(layout or {}), "yaxis": axis},
    )


def _ticks(column: str) -> dict[str, Any]:
    if column == "lr":
        return {"rangemode": "tozero", "exponentformat": "e"}
    if column == "grad_norm":
        return {"type": "log", "dtick": "D2"}
    if column == "utilisation":
        return {"rangemode": "tozero", "tickformat": ".0%"}
    return {"rangemode": "tozero", "tickformat": "~s"}


def _clip(record: Record) -> dict[str, Any]:
    clip = record.spec.clip
    if not isinstance(clip, float):
        return {}
    return {"layout": {"shapes": [level(clip, f"clipped above {clip:g}")]}}


def _summary(title: str, finite: Values, shown: str) -> str:
    low, high, last = (_shown(v, shown) for v in (finite.min(), finite.max(), finite[-1]))
    return f"{title} over {words.exact(len(finite))} steps: from {low} to {high}, at the end {last}."


def _shown(value: float, shown: str) -> str:
    return words.count(value) if shown.endswith("s") else format(value, shown)


def _loss_summary(record: Record) -> str:
    losses = record.train["loss"]
    if not len(losses):
        return "No steps were recorded."
    last = losses[-max(1, smoothing_window(len(losses)) // 2) :].mean()
    trained = f"Training loss goes from {losses[0]:.2f} to {last:.2f} nats per token"
    held_out = f"; held-out loss ends at {record.evals[-1]['nats_per_token']:.2f}" if record.evals else ""
    return f"{trained} over {words.exact(len(losses))} steps{held_out}."


def _loss_note(record: Record) -> str:
    losses = record.train["loss"]
    notes = []
    if record.evals and record.compressors:
        notes.append("Dotted: the loss at which the model would equal each compressor.")
    if len(losses) > 2 * BUCKETS:
        notes.append(
            f"Of {words.exact(len(losses))} steps, the lowest and highest value in each of "
            f"{words.exact(BUCKETS)} stretches are drawn; metrics.jsonl has all."
        )
    return " ".join(notes)


_ALONG = ("step", "tokens", "seconds")
