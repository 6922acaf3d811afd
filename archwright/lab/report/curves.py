"""Charts of the loss during training and by length: means, with a band over seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from archwright import format as fmt
from archwright.lab.report.learning_rates import best_lr
from archwright.lab.results import Point, RunResult, StudyResults, compared_of
from archwright.reporting.curves import axes_up_to
from archwright.reporting.document import Axis, Chart, Key, Row, Section, Series, Table
from archwright.reporting.styles import FEW, short_names, shortened, trace

Trace = dict[str, Any]

BANDS = 0.5
"""Opacity of all bands together; of one at most `BAND`."""
BAND = 0.14
ZERO = {
    **{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0},
    "line": {"width": 1, "color": "$ink"},
}
"""A line at no difference."""


@dataclass(frozen=True)
class Spread:
    """Several seeds' losses at one place."""

    at: Mapping[str, float]
    """The columns that it can be drawn along."""
    values: Sequence[float]


def axes(results: StudyResults) -> list[Axis]:
    """Return the available horizontal axes of loss curves."""
    seconds = [point.seconds for run in results.runs for point in run.curve]
    longest = max(filter(math.isfinite, seconds), default=0.0)
    return axes_up_to(longest, "processor time of training")


def curves_section(results: StudyResults, series: dict[str, Series]) -> Section | None:
    """Draw the held-out loss during training, and its difference from the baseline's."""
    chosen = {name: runs_at_best(results, name) for name in series}
    losses = {name: _spreads(runs, _clipped) for name, runs in chosen.items()}
    if not any(losses.values()):
        return None
    trained = {name: _spreads(runs, lambda run, p: p.train_loss) for name, runs in chosen.items()}
    baseline = results.variants[0].name
    # Paired by seed and tokens.
    base = {(run.seed, p.tokens): _clipped(run, p) for run in chosen[baseline] for p in run.curve}
    differences = {
        name: _spreads(
            runs, lambda run, p: _clipped(run, p) - base.get((run.seed, p.tokens), math.nan)
        )
        for name, runs in chosen.items()
        if name != baseline
    }
    unit = results.unit
    charts = [
        _chart(
            "loss",
            "Held-out loss",
            series,
            losses,
            unit,
            f"Mean over seeds at the rate that is best for all seeds together ({_rates(chosen)}). "
            "Bands reach from the lowest to the highest seed. No loss is drawn above the initial one.",
        )
    ]
    if any(trained.values()):
        note = (
            "Of the same runs: mean over the steps since the evaluation before, so that it lags while the loss falls, "
            "and over seeds."
        )
        charts.append(_chart("training", "Training loss", series, trained, unit, note))
    if any(differences.values()):
        title = f"Difference from {shortened(baseline)} during training"
        note = (
            "Of the runs above, paired by seed at equal tokens. A difference that still moves at the end "
            "may come out otherwise after longer training."
        )
        below = f"{unit}, below 0 is better"
        chart = _chart("difference", title, series, differences, below, note, "+.4f")
        charts.append(replace(chart, layout={"shapes": [ZERO]}))
    return Section("Loss curves", [Key(list(series.values())), *charts])


def lengths_section(results: StudyResults) -> Section | None:
    """List the loss on texts of other lengths, if it was measured."""
    found: dict[str, dict[int, list[float]]] = {v.name: {} for v in results.variants}
    for replicate in results.replicates:
        for length, loss in replicate.best.lengths.items():
            if math.isfinite(loss):
                found[replicate.variant].setdefault(length, []).append(loss)
    lengths = sorted({length for by_length in found.values() for length in by_length})
    if not lengths:
        return None
    rows = [
        Row((name, *(fmt.loss(fmean(by[n])) if n in by else "–" for n in lengths)))
        for name, by in found.items()
    ]
    note = f"Held-out {results.unit} by the tokens of a text: mean over each seed's best run."
    return Section("Longer texts", [Table(note, ("Variant", *map(fmt.exact, lengths)), rows)])


def runs_at_best(results: StudyResults, variant: str) -> list[RunResult]:
    """Return a variant's runs at its best learning rate, compared ones if there are any."""
    runs = compared_of(
        [r for r in results.runs if r.variant == variant and results.counts(r)], results.study
    )
    lr = best_lr(runs)
    return [run for run in runs if run.lr == lr]


def _rates(chosen: Mapping[str, Sequence[RunResult]]) -> str:
    """Return the learning rates of the curves in words."""
    lrs = {name: fmt.short(runs[0].lr) for name, runs in chosen.items() if runs}
    common = set(lrs.values()) if len(set(lrs.values())) == 1 else map(" ".join, lrs.items())
    return fmt.listed(list(common)) if len(lrs) <= FEW else "see Learning rates"


def _chart(
    name: str,
    title: str,
    series: Mapping[str, Series],
    spreads: Mapping[str, Sequence[Spread]],
    unit: str,
    note: str,
    shown: str = ".4f",
) -> Chart:
    return Chart(
        name=name,
        title=title,
        summary=" ".join(
            f"{n}: {fmean(found[-1].values):.4f} after {fmt.count(found[-1].at['tokens'])} tokens."
            for n, found in spreads.items()
            if found
        ),
        traces=_traces(series, spreads, shown),
        unit=unit,
        note=note,
        full_width=True,
        saved=_columns(spreads),
    )


def _clipped(run: RunResult, point: Point) -> float:
    """Return a loss clipped to the initial one, so that outliers do not flatten the chart."""
    return min(point.loss, run.initial_loss) if math.isfinite(point.loss) else math.nan


def _spreads(
    runs: Sequence[RunResult], value_of: Callable[[RunResult, Point], float]
) -> list[Spread]:
    """Group finite values by tokens. Times are means over seeds."""
    by_tokens: dict[int, list[tuple[Point, float]]] = {}
    for run in runs:
        for point in run.curve:
            if math.isfinite(value := value_of(run, point)):
                by_tokens.setdefault(point.tokens, []).append((point, value))
    columns = ("step", "tokens", "flops", "seconds")
    return [
        Spread(
            {name: fmean(getattr(point, name) for point, _ in pairs) for name in columns},
            [value for _, value in pairs],
        )
        for _, pairs in sorted(by_tokens.items())
    ]


def _traces(
    series: Mapping[str, Series], spreads: Mapping[str, Sequence[Spread]], shown: str
) -> list[Trace]:
    """Draw bands first, so that no band covers a mean."""
    short = short_names(list(series))
    kept = {name: found for name, found in spreads.items() if found}
    opacity = min(BAND, BANDS / max(1, len(kept)))
    bands = [
        {**_band(series[name], short[name], found), "opacity": opacity}
        for name, found in kept.items()
    ]
    return bands + [
        trace(
            series[name],
            short[name],
            along=_along(found),
            y=[fmean(s.values) for s in found],
            customdata=[_seeds_words(s.values, shown, found, len(kept) <= FEW) for s in found],
            hovertemplate=f"%{{y:{shown}}}%{{customdata}}",
        )
        for name, found in kept.items()
    ]


def _band(series: Series, name: str, found: Sequence[Spread]) -> Trace:
    there, back = list(found), list(reversed(found))
    return trace(
        series,
        f"{name}, all seeds",
        mode="lines",
        along=_along([*there, *back]),
        y=[max(s.values) for s in there] + [min(s.values) for s in back],
        fill="toself",
        fillcolor=f"${series.color}",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )


def _along(found: Sequence[Spread]) -> dict[str, list[float]]:
    return {name: [s.at[name] for s in found] for name in found[0].at}


def _seeds_words(values: Sequence[float], shown: str, found: Sequence[Spread], ranges: bool) -> str:
    """Return the part of a hover label after the mean, short enough for a phone."""
    most = max(len(s.values) for s in found)
    fewer = f", {len(values)} of {most} seeds" if len(values) < most else ""
    between = f" ({min(values):{shown}} to {max(values):{shown}})" if ranges and not fewer else ""
    return f"{between}{fewer}".replace("-", "\N{MINUS SIGN}")


def error_bars(
    above: Sequence[float], below: Sequence[float], series: Series, **given: Any
) -> dict[str, Any]:
    """Return plotly's error bars in the colour of a series."""
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "thickness": 1.5,
        "width": 4,
        "color": f"${series.color}",
        **given,
    }


def columns_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return lines as columns of a CSV."""
    return {name: [line[name] for line in lines] for name in lines[0]} if lines else {}


def _columns(spreads: Mapping[str, Sequence[Spread]]) -> dict[str, list[Any]]:
    """Return means and ranges as columns of a CSV."""
    lines = [
        {
            "variant": name,
            **s.at,
            "mean": fmean(s.values),
            "lowest": min(s.values),
            "highest": max(s.values),
            "seeds": len(s.values),
        }
        for name, found in spreads.items()
        for s in found
    ]
    return columns_of(lines)
