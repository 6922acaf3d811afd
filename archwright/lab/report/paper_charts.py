"""Charts for a paper: vector graphics of one column, from the charts of the page."""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from archwright.format import count
from archwright.lab.report.page import study_page
from archwright.lab.results import StudyResults
from archwright.reporting.document import Chart
from archwright.reporting.styles import series_of, shortened
from archwright.spec.errors import UserError

WIDTH = 3.3
"""Of a column, in inches."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F")
"""Palette of Okabe and Ito for colour-blind readers, with grey instead of yellow, which is faint on white."""
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^"}
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "archwright",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
}
"""TrueType fonts inside PDF, outlines in SVG."""

Lines = list[dict[str, Any]]

CAPTIONS = {
    "effects": (
        "Difference of each variant from the baseline in held-out loss, below 0 is better. Filled: mean over pairs "
        "with its 95 % interval, where there is a result. Open: single pairs. Dashed: the margin."
    ),
    "horizons": "Difference from the baseline at the end of runs of several lengths, with 95 % intervals.",
    "loss": "Held-out loss, mean over seeds; bands reach from the lowest to the highest seed.",
    "lr": "Loss against peak learning rate: mean over seeds (line) and single runs (small); diverged runs left out.",
}


def draw_charts(results: StudyResults) -> dict[str, bytes]:
    """Return the charts with data, as PDF and SVG files by name.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "--paper: matplotlib is not installed; run: pip install 'archwright[paper]'"
        ) from None
    blocks = [block for section in study_page(results).sections for block in section.blocks]
    charts = {block.name: block for block in blocks if isinstance(block, Chart)}
    draw: dict[str, Callable[[Any, StudyResults, Lines], None]] = {
        "effects": _effects,
        "horizons": _horizons,
        "loss": _loss,
        "lr": _rates,
    }
    drawn: dict[str, bytes] = {}
    for name in filter(charts.__contains__, draw):
        with (
            matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
            draw[name](figure.add_subplot(), results, _lines(charts[name]))
            for ending, date in (("pdf", "CreationDate"), ("svg", "Date")):
                file = io.BytesIO()
                figure.savefig(file, format=ending, metadata={date: None})
                drawn[f"{name}.{ending}"] = file.getvalue()
    return drawn


def _lines(chart: Chart) -> Lines:
    """Return the rows of a chart's CSV."""
    return [
        dict(zip(chart.saved, row, strict=True)) for row in zip(*chart.saved.values(), strict=True)
    ]


def _label(name: str) -> str:
    """Return a name as matplotlib shows it literally."""
    return shortened(name).replace("$", r"\$")


def _styles(results: StudyResults) -> dict[str, dict[str, Any]]:
    """Return the style of each variant. Sixteen styles differ even without colour."""
    series = series_of([variant.name for variant in results.variants])
    return {
        name: {
            "color": COLORS[i % len(COLORS)],
            "marker": MARKERS[style.symbol],
            "linestyle": DASHES[style.dash],
        }
        for i, (name, style) in enumerate(series.items())
    }


def _by_variant(results: StudyResults, lines: Lines) -> Iterator[tuple[str, dict[str, Any], Lines]]:
    for name, style in _styles(results).items():
        if own := [line for line in lines if line["variant"] == name]:
            yield name, style, own


def _effects(axes: Any, results: StudyResults, lines: Lines) -> None:
    names = list(dict.fromkeys(line["variant"] for line in lines))
    styles, effects = _styles(results), {effect.variant: effect for effect in results.effects}
    axes.figure.set_figheight(0.7 + 0.42 * len(names))
    for row, name in enumerate(names):
        own = [line for line in lines if line["variant"] == name]
        line, color = own[0], styles[name]["color"]
        for margin in (-line["margin"], line["margin"]):
            axes.plot([margin] * 2, [row - 0.5, row + 0.5], "--", color="#777777", linewidth=0.8)
        seeds = [each["difference"] for each in own]
        axes.plot(seeds, [row + 0.22] * len(seeds), "o", mfc="none", mec="#777777", mew=0.6, ms=3)
        if effects[name].has_numbers:
            ends = [[line["mean"] - line["low"]], [line["high"] - line["mean"]]]
            axes.errorbar([line["mean"]], [row], xerr=ends, fmt="D", color=color, capsize=2)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(names)), [f"{_label(n)}\n{effects[n].outcome}" for n in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"difference in held-out loss\n({results.unit})")


def _horizons(axes: Any, results: StudyResults, lines: Lines) -> None:
    for name, style, own in _by_variant(results, lines):
        means = _column(own, "mean")
        ends = [
            [line["mean"] - line["low"] for line in own],
            [line["high"] - line["mean"] for line in own],
        ]
        axes.errorbar(
            _column(own, "tokens"), means, yerr=ends, capsize=2, label=_label(name), **style
        )
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xscale("log", base=2)
    ticks = sorted({line["tokens"] for line in lines})
    axes.set_xticks(ticks, [count(tick) for tick in ticks])
    axes.set(xlabel="tokens of a run", ylabel=f"difference ({results.unit})")
    _legend(axes, results)


def _loss(axes: Any, results: StudyResults, lines: Lines) -> None:
    for name, style, own in _by_variant(results, lines):
        tokens = _column(own, "tokens")
        axes.plot(tokens, _column(own, "mean"), label=_label(name), **style | {"marker": ""})
        ends = _column(own, "lowest"), _column(own, "highest")
        axes.fill_between(tokens, *ends, color=style["color"], alpha=0.15, linewidth=0)
    axes.xaxis.set_major_formatter(lambda value, place: count(value) if value else "0")
    axes.set(xlabel="tokens", ylabel=f"held-out loss ({results.unit})")
    _legend(axes, results)


def _rates(axes: Any, results: StudyResults, lines: Lines) -> None:
    for name, style, every in _by_variant(results, lines):
        own = [line for line in every if line["diverged"] == "no" and math.isfinite(line["loss"])]
        losses: dict[float, list[float]] = {}
        for line in sorted(own, key=lambda line: line["lr"]):
            losses.setdefault(line["lr"], []).append(line["loss"])
        axes.plot(
            _column(own, "lr"), _column(own, "loss"), ".", color=style["color"], ms=2, alpha=0.5
        )
        axes.plot(list(losses), list(map(fmean, losses.values())), label=_label(name), **style)
    axes.set_xscale("log")
    axes.set(xlabel="peak learning rate", ylabel=f"held-out loss at the end\n({results.unit})")
    _legend(axes, results)


def _legend(axes: Any, results: StudyResults) -> None:
    """Draw the legend in the chart, or of many variants below it."""
    rows = math.ceil(len(results.variants) / 2)
    if rows <= 2:
        axes.legend(frameon=False)
        return
    axes.figure.set_figheight(2.4 + 0.14 * rows)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=2, columnspacing=1)


def _column(lines: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [line[name] for line in lines]
