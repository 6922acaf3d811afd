"""Heat maps of probes: steps from left to right, layers from bottom to top."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archwright import format as fmt
from archwright.reporting.curves import evaluated_along
from archwright.reporting.document import Chart
from archwright.reporting.history import History, Line

Values = NDArray[np.float64]

COLUMNS = 300
"""Maximum number of probed steps in a chart, evenly spaced."""
ROWS_OF_A_SMALL_CHART = 24
REM_PER_ROW = 0.75
"""Height of a row of a tall heat map, in rem."""


@dataclass(frozen=True)
class Picture:
    """Labels of a quantity, its number format, and advice on reading it."""

    title: str
    unit: str
    note: str
    decades: bool = False
    """True if colours are logarithmic, for quantities that span powers of ten."""
    shown: str = ".3~g"


PICTURES = {
    "gradient_norm": Picture(
        "Gradient norm by layer",
        "before clipping",
        "Healthy: layers within about a factor of ten of each other, falling slowly. Warning: norms that "
        "change by powers of ten towards one end of the stack, or a step with high norms in all layers.",
        decades=True,
    ),
    "residual_rms": Picture(
        "Residual stream",
        "root mean square",
        "Healthy: slow growth with depth that levels off (or 1 everywhere after post-norms). Warning: "
        "a jump at one layer, or unlimited growth over time.",
        decades=True,
    ),
    "attention_logit": Picture(
        "Largest attention logit",
        "before a cap",
        "Healthy: up to some tens, and constant. Warning: steady growth beyond a hundred, where the softmax "
        "saturates and loss spikes follow; a norm of queries and keys prevents it.",
    ),
    "attention_entropy": Picture(
        "Attention entropy",
        "nats, mean over heads",
        "Healthy: it falls from the logarithm of the number of visible keys to a mix of sharp and broad "
        "layers. Warning: a layer near 0, in which each query attends to a single key.",
    ),
    "dead_activations": Picture(
        "Dead activations",
        "of a feed-forward's units",
        "Healthy: almost none. Warning: a share that only grows, because dead units get no gradient; "
        "common with ReLU and high learning rates.",
        shown=".1%",
    ),
    "log_z": Picture(
        "Log Z",
        "mean, nats",
        "Healthy: it stays within a few nats. Warning: a steady drift, which is harmful in low precision; "
        "a small z_loss prevents it.",
    ),
    "update_ratio": Picture(
        "Update to weight",
        "ratio of root mean squares",
        "Healthy: about 1e-3 in most matrices, falling with the learning rate. Warning: above 1e-2 past "
        "the warm-up (the rate is too high), or below 1e-5 in one kind of matrix (it hardly learns). The colour "
        "scale covers the layers only.",
        decades=True,
    ),
    "weight_rms": Picture(
        "Weights",
        "root mean square",
        "Healthy: it levels off when decay and updates balance. Warning: one kind of matrix that keeps "
        "growing or shrinks to 0. The colour scale covers the layers only.",
        decades=True,
    ),
}
"""Labels of the known probes, in page order. Any other recorded probe comes after them, titled by its own name."""


def heat_maps(history: History) -> list[Chart]:
    """Return a chart for each recorded probe."""
    lines = [line for line in history.probes if line.get("values")]
    recorded = dict.fromkeys(name for line in lines for name in line["values"])
    ordered = [name for name in PICTURES if name in recorded]
    ordered += [name for name in recorded if name not in PICTURES]
    return [_chart(name, history, lines) for name in ordered]


def table(name: str, lines: Sequence[Line]) -> tuple[list[str], Values]:
    """Return the row names of a quantity and its values [rows, steps]; NaN is missing."""
    steps = [line["values"].get(name, {}) for line in lines]
    rows = list(dict.fromkeys(row for values in steps for row in values))
    numbers = [[values.get(row) for values in steps] for row in rows]
    return rows, np.array(numbers, dtype=np.float64).reshape(len(rows), len(lines))


def in_bands(rows: Sequence[str]) -> list[int]:
    """Return the indices of rows, grouped by kind in order of appearance.

    `layers.0.up, layers.0.down, layers.1.up, layers.1.down` become two bands, up and down.
    """
    kinds = list(dict.fromkeys(kind(row) for row in rows))
    return sorted(range(len(rows)), key=lambda i: kinds.index(kind(rows[i])))


def kind(row: str) -> str:
    """Return the name of a row without its layer: `layers.3.attention.query` is `attention.query`."""
    layer = _LAYER.fullmatch(row)
    return layer["rest"] or "layer" if layer else row


_LAYER = re.compile(r"[^.0-9]+\.(?P<number>\d+)(?:\.(?P<rest>.*))?")


def _chart(name: str, history: History, lines: Sequence[Line]) -> Chart:
    plain = Picture(name.replace("_", " ").capitalize(), "", "")
    picture = PICTURES.get(name, plain)
    columns = np.unique(np.linspace(0, len(lines) - 1, min(len(lines), COLUMNS)).astype(int))
    rows, values = table(name, [lines[i] for i in columns])
    order = in_bands(rows)
    rows, values = [rows[i] for i in order], values[order]
    draw = _line if len(rows) == 1 else _map
    trace, axis = draw(picture, rows, values)
    # A single step is a category: a numeric axis would have ticks at fractions of a step.
    across = {"xaxis": {"type": "category"}} if values.shape[1] == 1 else {}
    tall = len(rows) > ROWS_OF_A_SMALL_CHART
    return Chart(
        name=name.replace("_", "-"),
        title=picture.title,
        summary=_summary(picture, rows, values),
        traces=[{**trace, "along": evaluated_along([lines[i] for i in columns], history)}],
        layout={"showlegend": False, "yaxis": axis, **across},
        unit=picture.unit,
        note=picture.note,
        full_width=tall,
        height=max(17.0, REM_PER_ROW * len(rows) + 5) if tall else None,
    )


def _map(picture: Picture, rows: list[str], values: Values) -> tuple[dict[str, Any], Any]:
    """Return a heat map, and a vertical axis with the row names."""
    names, bands = _names(rows), _bands(rows)
    # Embedding and head differ in magnitude; a scale that includes them would hide differences of layers.
    inside = values[[_LAYER.fullmatch(row) is not None for row in rows]] if bands else values
    trace = {
        "type": "heatmap",
        "y": names,
        "z": values,
        "decades": picture.decades,
        "colorscale": "$shades",
        "colorbar": _scale(picture, inside),
        "hoverongaps": False,
        "hovertemplate": f"%{{y}}, step %{{customdata[1]:,}}<br><b>%{{customdata[0]:{picture.shown}}}</b>"
        "<extra></extra>",
        **_span(picture, inside),
    }
    return trace, {"type": "category", "showgrid": False, **bands}


def _line(picture: Picture, rows: list[str], values: Values) -> tuple[dict[str, Any], Any]:
    """Return a single row as a curve, and its vertical axis."""
    trace = {
        "type": "scatter",
        "mode": "lines" if values.shape[1] > 1 else "markers",
        "name": rows[0],
        "y": values[0],
        "line": {"width": 2, "color": "$training"},
        "marker": {"color": "$training", "size": 8},
        "hovertemplate": f"%{{y:{picture.shown}}}",
    }
    return trace, {"nticks": 6, "tickformat": "~g"}


def _names(rows: Sequence[str]) -> list[str]:
    """Name rows by layer and, if there are several kinds, by kind."""
    several = len({kind(row) for row in rows if _LAYER.fullmatch(row)}) > 1
    names = []
    for row in rows:
        layer = _LAYER.fullmatch(row)
        short = f"layer {layer['number']}" if layer else row
        names.append(f"{short} {kind(row)}" if layer and several else short)
    return names


def _bands(rows: Sequence[str]) -> dict[str, Any]:
    """Label the middle of each band if several kinds recur across layers."""
    kinds = [kind(row) for row in rows]
    if len(set(kinds)) == len(kinds) or len({k for k in kinds if kinds.count(k) > 1}) < 2:
        return {}
    places: dict[str, list[int]] = {}
    for i, band in enumerate(kinds):
        places.setdefault(band, []).append(i)
    middles = {band: sum(at) / len(at) for band, at in places.items()}
    return {
        "tickvals": list(middles.values()),
        "ticktext": [" ".join(band.split(".")[-2:]) for band in middles],
    }


def _span(picture: Picture, values: Values) -> dict[str, float]:
    """Return the range of the colour scale; a linear scale includes 0."""
    finite = values[np.isfinite(values) & ((values > 0) | (not picture.decades))]
    if picture.decades:
        ends = np.log10(finite) if len(finite) else np.zeros(1)
        return {"zmin": float(ends.min()), "zmax": float(max(ends.max(), ends.min() + 0.02))}
    lowest, highest = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    return {"zmin": lowest, "zmax": max(highest, lowest + 0.1)}


def _scale(picture: Picture, values: Values) -> dict[str, Any]:
    """Return the colour bar; a logarithmic one has `decade_marks`."""
    bar: dict[str, Any] = {
        "thickness": 8,
        "outlinewidth": 0,
        "len": 1,
        "ypad": 4,
        "xpad": 6,
        "nticks": 6,
        "tickformat": ".0%" if picture.shown.endswith("%") else "~g",
    }
    if picture.decades and (marks := decade_marks(values)):
        bar |= {"tickvals": np.log10(marks), "ticktext": [f"{mark:.3g}" for mark in marks]}
    return bar


def decade_marks(values: Values) -> list[float]:
    """Return up to seven round numbers in the range of values, or else its ends and geometric mean."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        return []
    low, high = float(positive.min()), float(positive.max())
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        marks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        marks = [mark for mark in marks if low <= mark <= high]
        if len(marks) <= 7:
            break
    marks = marks[:: max(1, math.ceil(len(marks) / 7))]
    return marks if len(marks) > 1 else list(dict.fromkeys((low, math.sqrt(low * high), high)))


def _summary(picture: Picture, rows: Sequence[str], values: Values) -> str:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"{picture.title}: no finite values."
    low, high = fmt.significant(finite.min()), fmt.significant(finite.max())
    steps = f"{fmt.exact(values.shape[1])} step{'s' * (values.shape[1] != 1)}"
    return f"{picture.title} of {len(rows)} rows over {steps}: from {low} to {high}."
