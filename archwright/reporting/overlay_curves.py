"""Overlaid curves of several runs, in comparable units."""

import math
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

from archwright import format as fmt
from archwright.reporting import curves
from archwright.reporting.comparability import Compared, bits_per_byte
from archwright.reporting.document import Chart, Series
from archwright.reporting.styles import short_names, trace
from archwright.reporting.thinning import BUCKETS

FEWEST_BUCKETS = 200
"""Minimum number of buckets of a thinned curve."""
Styles = Mapping[str, Series]


def charts(compared: Compared, styles: Styles) -> list[Chart]:
    """Return a chart for each quantity that at least one run recorded."""
    first = next(iter(compared.runs.values()))
    column = "bits_per_byte" if compared.in_bits else "nats_per_token"
    evaluated = partial(_evaluations, compared, styles)
    made = [
        evaluated(column, "held-out", "Held-out loss", compared.unit, full_width=True),
        _training_chart(compared, styles),
    ]
    if not compared.in_bits:
        unit = "of held-out text"
        made.append(evaluated("bits_per_byte", "bits-per-byte", "Bits per byte", unit))
    if first.task:
        unit, axis = "share of held-out answers", {"range": [0, 1.05], "tickformat": ".0%"}
        made.append(evaluated("accuracy", "accuracy", "Accuracy", unit, yaxis=axis))
    return [chart for chart in (*made, *_step_charts(compared, styles)) if chart]


def _training_chart(compared: Compared, styles: Styles) -> Chart | None:
    traces: list[curves.Trace] = []
    ends = []
    for name, history in compared.runs.items():
        factor = bits_per_byte(history) if compared.in_bits else 1.0
        if factor is None or not curves.is_drawn(history.train["loss"]):
            continue
        values = history.train["loss"] * factor
        traces += _traces(compared, styles, name, "loss", ".4f", values=values)
        ends.append(f"{name} from {values[0]:.2f} to {values[-1]:.2f}.")
    if not traces:
        return None
    converted = (
        "Converted by the bytes per token of each run's training text. " if compared.in_bits else ""
    )
    return Chart(
        name="training",
        title="Training loss",
        summary=" ".join(ends),
        traces=traces,
        unit=compared.unit,
        note=f"{converted}Loss of each step before its update, drawn faintly below smoothed curves.",
        full_width=True,
    )


def _step_charts(compared: Compared, styles: Styles) -> list[Chart]:
    first = next(iter(compared.runs.values()))
    result = []
    for column, title, unit, shown in curves.step_columns(first):
        drawn = {n: h for n, h in compared.runs.items() if curves.is_drawn(h.train[column])}
        if not drawn:
            continue
        made = (_traces(compared, styles, name, column, shown) for name in drawn)
        ends = {name: fmt.significant(h.train[column][-1], 4) for name, h in drawn.items()}
        bounds = {h.spec.max_grad_norm for h in drawn.values()}
        layout = curves.column_layout(first, column)
        if len(bounds) > 1:
            layout.pop("shapes", None)
        result.append(
            Chart(
                name=column.replace("_", "-"),
                title=title,
                summary=" ".join(f"{name} ends at {end}." for name, end in ends.items()),
                traces=[*chain.from_iterable(made)],
                layout=layout,
                unit=unit,
            )
        )
    return result


def _traces(
    compared: Compared, styles: Styles, name: str, column: str, shown: str, **options: Any
) -> list[curves.Trace]:
    """Draw a column of the run `name` at every step, and with each smoothing."""
    style = styles[name]
    short = short_names([*compared.runs])[name]
    return curves.step_traces(
        compared.runs[name],
        column,
        short,
        f"${style.color}",
        shown,
        buckets=max(FEWEST_BUCKETS, BUCKETS // len(compared.runs)),
        legendgroup=style.group,
        line={"dash": style.dash},
        **options,
    )


def _evaluations(
    compared: Compared,
    styles: Styles,
    column: str,
    name: str,
    title: str,
    unit: str,
    *,
    full_width: bool = False,
    yaxis: Mapping[str, Any] | None = None,
) -> Chart | None:
    """Draw a column of the evaluations of all runs."""
    short = short_names([*compared.runs])
    traces, ends = [], []
    for label, history in compared.runs.items():
        lines = [e for e in history.evals if math.isfinite(e.get(column, math.nan))]
        if not lines:
            continue
        drawn = trace(
            styles[label],
            short[label],
            along=curves.evaluated_along(lines, history),
            y=[line[column] for line in lines],
            customdata=[f"at step {fmt.exact(line['step'])}" for line in lines],
            hovertemplate="%{y:.4f} %{customdata}",
        )
        traces += curves.final_apart(drawn, lines)
        ends.append(f"{label} from {lines[0][column]:.3f} to {lines[-1][column]:.3f}.")
    if not traces:
        return None
    return Chart(
        name=name,
        title=title,
        summary=" ".join(ends),
        traces=traces,
        layout={"yaxis": yaxis} if yaxis else {},
        unit=unit,
        full_width=full_width,
    )
