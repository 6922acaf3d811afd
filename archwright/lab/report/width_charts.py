"""The best learning rate of each variant by the width of the model."""

import math
from typing import Any

from archwright import format as fmt
from archwright.lab.design.variants import at_width
from archwright.lab.design.widths import interval_words
from archwright.lab.report.curves import columns_of, error_bars
from archwright.lab.results import BestRate, Drift, StudyResults
from archwright.reporting.document import Block, Chart, Key, Row, Section, Series, Table, Text
from archwright.reporting.styles import plotly_text, short_names, trace


def widths_section(results: StudyResults, series: dict[str, Series]) -> Section:
    """Draw and list how far best rates move from width to width."""
    blocks: list[Block] = [Text(results.study.question)] if results.study.question else []
    if not results.drifts:
        return Section("Best rate by width", [*blocks, Text("No sweep has ended yet.")])
    shown = {drift.name: _style(drift, series) for drift in results.drifts}
    blocks += [Key(list(shown.values())), _chart(results, shown), _table(results)]
    return Section("Best rate by width", blocks)


def _style(drift: Drift, series: dict[str, Series]) -> Series:
    """Return a variant's style: that of its narrowest model, with its own name."""
    style = series[at_width(drift.name, drift.rates[0].width)]
    return Series(drift.name, f"{style.group}-widths", style.color, style.symbol, style.dash)


def _chart(results: StudyResults, shown: dict[str, Series]) -> Chart:
    short = short_names(list(shown))
    return Chart(
        name="widths",
        title="Best learning rate by width",
        summary=" ".join(_summary(drift) for drift in results.drifts),
        traces=[_trace(drift, shown[drift.name], short[drift.name]) for drift in results.drifts],
        layout={
            "hovermode": "closest",
            "xaxis": {
                "type": "log",
                "title": {"text": "width of the model"},
                "tickvals": [*results.study.widths],
                "ticktext": [fmt.exact(width) for width in results.study.widths],
            },
            "yaxis": {"type": "log", "dtick": "D2", "tickformat": ".0e"},
        },
        unit="peak learning rate",
        note="Points: the geometric mean over seeds of the rates at which parabolas through their losses are lowest. "
        "Lines: 95 % intervals, of the noise of seeds and of where three losses place a vertex. A level line is a rate "
        "that carries over to other widths.",
        full_width=True,
        saved=columns_of(
            [{"variant": d.name, **vars(rate)} for d in results.drifts for rate in d.rates]
        ),
    )


def _trace(drift: Drift, style: Series, name: str) -> dict[str, Any]:
    rates = drift.rates
    return trace(
        style,
        name,
        x=[rate.width for rate in rates],
        y=[rate.lr for rate in rates],
        error_y=error_bars(
            [rate.high - rate.lr if math.isfinite(rate.high) else 0 for rate in rates],
            [rate.lr - rate.low if math.isfinite(rate.high) else 0 for rate in rates],
            style,
        ),
        customdata=[interval_words(rate) for rate in rates],
        hovertemplate=f"{plotly_text(name)}<br>%{{y:.3~g}} at width %{{x}} (%{{customdata}})<extra></extra>",
    )


def _table(results: StudyResults) -> Table:
    note = (
        "Factor: the best rate over that of the narrowest model; the last one of a variant, with its interval, is what "
        f"the sentence above says. Losses are held-out {results.unit} at the vertex, the mean over seeds."
    )
    head = ("Variant", "Width", "Best rate", "95 %", "Factor", "Loss", "Seeds")
    rows = [
        Row(
            (
                drift.name,
                fmt.exact(rate.width),
                fmt.short(rate.lr),
                interval_words(rate),
                _factor(drift, i),
                fmt.loss(rate.loss),
                str(rate.seeds),
            ),
            _caveat(rate),
        )
        for drift in results.drifts
        for i, rate in enumerate(drift.rates)
    ]
    return Table(note, head, rows)


def _caveat(rate: BestRate) -> str:
    if not rate.learnt:
        return "learnt hardly more than how often tokens occur"
    return "most seeds at the edge of the grid" if rate.at_boundary else ""


def _factor(drift: Drift, number: int) -> str:
    if number == 0:
        return "1"
    if number < len(drift.rates) - 1:
        return f"{drift.rates[number].lr / drift.rates[0].lr:.2f}"
    known = math.isfinite(drift.high)
    return f"{drift.factor:.2f}" + (f" ({drift.low:.2f} to {drift.high:.2f})" if known else "")


def _summary(drift: Drift) -> str:
    rates = (f"{fmt.short(rate.lr)} at width {rate.width}" for rate in drift.rates)
    return f"{drift.name}: {', '.join(rates)}."
