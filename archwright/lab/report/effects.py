"""Effects of the variants on the loss: differences, their intervals, and the margins."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from archwright import format as fmt
from archwright.lab.procedure.verdict import (
    group_of,
    is_unlearnt,
    margin_words,
)
from archwright.lab.report.curves import columns_of, error_bars
from archwright.lab.results import Effect, Interval, StudyResults
from archwright.reporting.document import Block, Chart, Row, Section, Series, Table, Text
from archwright.reporting.styles import plotly_text, shortened, trace, wrapped

Shape = dict[str, Any]

REM_PER_LINE = 1.1
REM_BETWEEN_ROWS = 1.1
SEED_OFFSET = 0.85
"""Distance from the middle of a row to its seeds, in rem."""
DASHED = {"width": 1.5, "dash": "dash", "color": "$muted"}
"""Line of a margin."""
SIDE = 0.15
"""Least share of the axis on each side of 0."""
WIDEST = 4.0
"""Limit on the ends of intervals, in multiples of all other values."""


def effects_section(results: StudyResults, series: dict[str, Series]) -> Section:
    """Draw and list the differences to the baseline."""
    asked = [Text(results.study.question)] if results.study.question else []
    if not results.effects:
        caption = "There is no effect yet: it takes two seeds of the baseline and of a variant."
        return Section("Effects", [*asked, Text(caption)])
    # A difference from what learnt nothing is no number to be read.
    learnt = [effect for effect in results.effects if not is_unlearnt(effect)]
    chart = [_chart(results, series, learnt)] if learnt else []
    blocks: list[Block] = [*asked, *chart, _table(results)]
    if results.interactions:
        blocks.append(Text(" ".join(found.sentence for found in results.interactions)))
    return Section("Effects", blocks)


class _Place(NamedTuple):
    """Vertical position of a row, in rem from the top."""

    label: str
    top: float
    bottom: float

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


def _places(effects: Sequence[Effect]) -> list[_Place]:
    places: list[_Place] = []
    for effect in effects:
        label = f"{wrapped(effect.variant)}<br>{wrapped(group_of(effect))}"
        height = REM_PER_LINE * (label.count("<br>") + 1) + REM_BETWEEN_ROWS
        top = places[-1].bottom if places else 0.0
        places.append(_Place(label, top, top + height))
    return places


def _chart(results: StudyResults, series: dict[str, Series], effects: Sequence[Effect]) -> Chart:
    places = _places(effects)
    end = places[-1].bottom
    traces: list[dict[str, Any]] = []
    shapes: list[Shape] = []
    for place, effect in zip(places, effects, strict=True):
        traces.append(_seeds(place, effect))
        if effect.has_numbers:
            traces.append(_mean(place, effect, series[effect.variant]))
        ends = (-effect.margin, effect.margin) if math.isfinite(effect.margin) else ()
        shapes += [_upright(x, place, place, DASHED) for x in ends]
    shapes.append(_upright(0, places[0], places[-1], {"width": 1, "color": "$ink"}))
    low, high = _extent(effects)
    drawn = [effect.interval for effect in effects if effect.has_numbers]
    is_cut = any(interval.low < low or interval.high > high for interval in drawn)
    cut = "An interval that leaves the chart goes on beyond it. " if is_cut else ""
    return Chart(
        name="effects",
        title=f"Difference from {shortened(results.variants[0].name)}",
        summary=" ".join(effect.sentence or _sentence(effect) for effect in effects),
        traces=traces,
        layout=_layout((low, high), places) | {"shapes": shapes},
        unit=f"held-out {results.unit}, below 0 is better",
        note=(
            "Diamond: the estimate, shrunken as large differences are found more often. Line: 95 % interval around "
            "the naive mean, of variants that are decided. Circles: the seeds. "
            f"Dashed: the margins fixed beforehand, within which a difference does not matter{_margins(effects)}. "
            + cut
        ),
        full_width=True,
        height=end + 4,
        saved=_columns(effects),
    )


def _layout(extent: tuple[float, float], places: Sequence[_Place]) -> dict[str, Any]:
    return {
        "showlegend": False,
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
        "annotations": [_direction("← better", "right", -8), _direction("worse →", "left", 8)],
        "xaxis": {"range": [*extent], "nticks": 7, "tickformat": "~g"},
        "yaxis": {
            "range": [places[-1].bottom, 0],
            "tickvals": [place.middle for place in places],
            "ticktext": [place.label for place in places],
            "tickfont": {"color": "$ink"},
            "showgrid": False,
            "fixedrange": True,
        },
    }


def _mean(place: _Place, effect: Effect, series: Series) -> dict[str, Any]:
    interval = effect.interval
    return trace(
        series,
        effect.variant,
        legendgroup=None,
        mode="markers",
        x=[effect.estimate],
        y=[place.middle],
        error_x=error_bars(
            [interval.high - effect.estimate],
            [effect.estimate - interval.low],
            series,
            thickness=2.5,
            width=5,
        ),
        marker={"size": 11, "color": f"${series.color}", "symbol": "diamond"},
        cliponaxis=True,
        hovertemplate=f"{wrapped(effect.variant, 40)}<br>{_sentence(effect)}"
        f"<br>95 %: {interval_words(interval)}<extra></extra>",
    )


def _seeds(place: _Place, effect: Effect) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{plotly_text(effect.variant)}, each seed",
        "x": effect.differences,
        "y": [place.middle + SEED_OFFSET] * len(effect.differences),
        "marker": {"size": 7, "symbol": "circle-open", "color": "$muted", "line": {"width": 1.5}},
        "cliponaxis": True,
        "hovertext": [
            f"seed {seed}: {fmt.signed(loss)} {effect.unit}"
            for seed, loss in zip(effect.seeds, effect.differences, strict=True)
        ],
        "hovertemplate": f"{wrapped(effect.variant, 40)}<br>%{{hovertext}}<extra></extra>",
    }


def _margins(effects: Sequence[Effect]) -> str:
    """Return the largest margin in words."""
    known = [effect for effect in effects if math.isfinite(effect.margin)]
    return f": {margin_words(max(known, key=lambda e: e.margin))}" if known else ""


def _upright(x: float, first: _Place, last: _Place, line: Shape) -> Shape:
    ends = {"x0": x, "x1": x, "y0": first.top, "y1": last.bottom}
    return {"type": "line", **ends, "line": line, "layer": "below"}


def _direction(text: str, anchor: str, shift: float) -> dict[str, Any]:
    return {
        "text": text,
        "x": 0,
        "xanchor": anchor,
        "xshift": shift,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": "$muted"},
    }


def _extent(effects: Sequence[Effect]) -> tuple[float, float]:
    """Return the ends of the axis, from seeds, margins, and clipped intervals."""
    inner = [x for e in effects for x in (*e.differences, e.mean, -e.margin, e.margin, 0.0)]
    inner = [x for x in inner if math.isfinite(x)]
    most = WIDEST * max(map(abs, inner)) or 1.0
    ends = [x for e in effects if e.has_numbers for x in (e.interval.low, e.interval.high)]
    outer = [max(-most, min(x, most)) for x in ends if math.isfinite(x)]
    low, high = min(*inner, *outer, 0.0), max(*inner, *outer, 0.0)
    span = high - low or 1.0
    return min(low - 0.04 * span, -SIDE * span), max(high + 0.04 * span, SIDE * span)


def _table(results: StudyResults) -> Table:
    head = [
        "Variant",
        "Outcome",
        results.unit.capitalize(),
        "Naive mean",
        "95 %",
        "Of the baseline's loss",
        "95 %, of the loss",
        *([] if results.unit == "bits per byte" else ["Bits per byte"]),
        "Seeds",
    ]
    rows = [_row(effect) for effect in results.effects]
    caption = (
        f"Variant minus {results.variants[0].name}, over paired seeds. Below 0 is better. Intervals hold at all looks "
        "together."
    )
    return Table(caption, head, rows)


def _row(effect: Effect) -> Row:
    cells = [
        fmt.signed(effect.estimate),
        fmt.signed(effect.mean),
        interval_words(effect.interval),
        _share(effect, effect.estimate),
        f"{_share(effect, effect.interval.low)} to {_share(effect, effect.interval.high)}",
        *([] if effect.unit == "bits per byte" else [fmt.signed(effect.bits_per_byte)]),
    ]
    if not effect.has_numbers or is_unlearnt(effect):
        cells = ["–"] * len(cells)
    shown = [effect.variant, group_of(effect), *cells, str(len(effect.seeds))]
    return Row(shown, "; ".join(effect.caveats))


def _share(effect: Effect, difference: float) -> str:
    share = effect.as_share(difference)
    return f"{fmt.signed(100 * share, 1)} %" if math.isfinite(share) else "–"


def interval_words(interval: Interval) -> str:
    """Return an interval as `−0.0190 to −0.0056`."""
    ends = fmt.signed(interval.low), fmt.signed(interval.high)
    return f"{ends[0]} to {ends[1]}"


def _sentence(effect: Effect) -> str:
    return f"{group_of(effect)}, {fmt.signed(effect.estimate)} {effect.unit}"


def _columns(effects: Sequence[Effect]) -> dict[str, list[Any]]:
    """Return the data of the chart for its CSV, with a line per seed."""
    names = ("variant", "mean", "estimate", "margin")
    lines = [
        {name: getattr(e, name) for name in names}
        | {"low": e.interval.low, "high": e.interval.high}
        | {"seed": seed, "difference": difference}
        for e in effects
        for seed, difference in zip(e.seeds, e.differences, strict=True)
    ]
    return columns_of(lines)
