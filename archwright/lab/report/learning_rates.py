"""Chart of the final loss by learning rate, with each variant's best rate."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, geometric_mean
from typing import Any

from archwright import format as fmt
from archwright.lab.results import Replicate, RunResult, StudyResults
from archwright.reporting.document import Block, Chart, Key, Row, Section, Series, Table, Text
from archwright.reporting.styles import FEW, plotly_text, short_names, trace

Trace = dict[str, Any]

ROOM = 0.08
"""Padding above and below the losses, as a share of their range."""


def learning_rates_section(results: StudyResults, series: dict[str, Series]) -> Section | None:
    """Draw the tuning of learning rates; of fixed rates, return a note."""
    ended = [run for run in results.runs if not run.failed and math.isfinite(run.loss)]
    if not ended:
        return None
    if not results.study.tune_lr:
        return Section("Learning rates", [Text("Rates were not tuned."), _table(results)])
    blocks: list[Block] = [
        Key(list(series.values())),
        _chart(results, series, ended),
        _table(results),
    ]
    return Section("Learning rates", blocks)


def best_lr(runs: Sequence[RunResult]) -> float:
    """Return the learning rate with the lowest mean loss, among rates with the most ended seeds."""
    losses = losses_by_lr([run for run in runs if not run.failed])
    most = max(map(len, losses.values()), default=0)
    known = {lr: fmean(found) for lr, found in losses.items() if 2 * len(found) > most}
    return min(known, key=known.__getitem__, default=math.nan)


def losses_by_lr(runs: Sequence[RunResult]) -> dict[float, list[float]]:
    """Return the finite losses at each learning rate, lowest first."""
    found: dict[float, list[float]] = {}
    for run in sorted(runs, key=lambda run: run.lr):
        if math.isfinite(run.loss):
            found.setdefault(run.lr, []).append(run.loss)
    return found


def _chart(results: StudyResults, series: dict[str, Series], ended: Sequence[RunResult]) -> Chart:
    short = short_names(list(series))
    _, high = _window(results, ended)
    traces: list[Trace] = []
    for name, style in series.items():
        runs = [run for run in ended if run.variant == name]
        traces += _seeds(style, short[name], runs, hover=len(series) <= FEW)
        tuning = results.study.tuning_seed_numbers
        traces += _mean(style, short[name], [r for r in runs if r.seed in tuning] or runs)
        traces += _diverged(style, short[name], runs, high)
        traces += _optimum(style, short[name], _replicates(results, name))
    return Chart(
        name="lr",
        title="Loss against learning rate",
        summary=" ".join(_summary(results, ended, name) for name in series),
        traces=traces,
        layout=_layout(_ticks(ended), _window(results, ended)),
        unit=f"final held-out {results.unit}",
        note="Thick: mean over seeds. Thin: single seeds. Star: the tuned rate, mean over the seeds that "
        "are compared. Cross at the upper edge: diverged, where no mean is drawn.",
        full_width=True,
        height=26,
        saved=_columns(results, ended),
    )


def _layout(ticks: Sequence[float], window: tuple[float, float]) -> dict[str, Any]:
    return {
        "hovermode": "closest",
        "margin": {"l": 8, "r": 12, "t": 8, "b": 48},
        "xaxis": {
            "type": "log",
            "title": {"text": "peak learning rate"},
            "tickvals": ticks,
            "tickformat": ".0e",
        },
        "yaxis": {"range": window},
    }


def _seeds(style: Series, name: str, runs: Sequence[RunResult], hover: bool) -> Iterator[Trace]:
    caption = (
        f"{plotly_text(name)}, seed %{{customdata}}<br>%{{y:.4f}} at %{{x:.3~g}}<extra></extra>"
    )
    for seed in sorted({run.seed for run in runs}):
        swept = sorted((r for r in runs if r.seed == seed and not r.diverged), key=lambda r: r.lr)
        yield trace(
            style,
            f"{name}, seed {seed}",
            x=[run.lr for run in swept],
            y=[run.loss for run in swept],
            customdata=[run.seed for run in swept],
            line={"width": 1, "color": f"${style.color}", "dash": style.dash},
            marker={"size": 4, "color": f"${style.color}", "symbol": style.symbol},
            opacity=0.35 if hover else 0.2,
            cliponaxis=True,
            showlegend=False,
            **({"hovertemplate": caption} if hover else {"hoverinfo": "skip"}),
        )


def _mean(style: Series, name: str, runs: Sequence[RunResult]) -> Iterator[Trace]:
    """Draw the mean over seeds, with a gap at rates with a diverged seed."""
    losses = losses_by_lr(runs)
    lost = {run.lr for run in runs if run.diverged}
    if losses:
        yield trace(
            style,
            name,
            x=list(losses),
            y=[math.nan if lr in lost else fmean(found) for lr, found in losses.items()],
            line={"width": 3, "color": f"${style.color}", "dash": style.dash},
            marker={"size": 8, "color": f"${style.color}", "symbol": style.symbol},
            cliponaxis=True,
            customdata=[f"{len(found)} seeds" for found in losses.values()],
            hovertemplate=f"{plotly_text(name)}<br>%{{y:.4f}} at %{{x:.3~g}}, mean of %{{customdata}}"
            "<extra></extra>",
        )


def _diverged(style: Series, name: str, runs: Sequence[RunResult], high: float) -> Iterator[Trace]:
    found = [run for run in runs if run.diverged]
    if found:
        yield trace(
            style,
            f"{name}, diverged",
            mode="markers",
            x=[run.lr for run in found],
            y=[high] * len(found),
            marker={"size": 11, "color": f"${style.color}", "symbol": "x", "opacity": 0.8},
            showlegend=False,
            customdata=[f"seed {r.seed} diverged, counts as {r.loss:.4f}" for r in found],
            hovertemplate=f"{plotly_text(name)}<br>%{{customdata}}, at %{{x:.3~g}}<extra></extra>",
        )


def _optimum(style: Series, name: str, replicates: Sequence[Replicate]) -> Iterator[Trace]:
    """Mark the mean optimum: of learning rates, the geometric mean."""
    if replicates:
        yield trace(
            style,
            f"{name}, tuned",
            mode="markers",
            x=[geometric_mean([r.lr for r in replicates])],
            y=[fmean(r.loss for r in replicates)],
            marker={
                "size": 15,
                "color": f"${style.color}",
                "symbol": "star",
                "line": {"width": 1.5, "color": "$page"},
            },
            cliponaxis=True,
            showlegend=False,
            hovertemplate=f"{plotly_text(name)}<br>tuned: %{{y:.4f}} at %{{x:.3~g}}, mean of "
            f"{len(replicates)} seeds<extra></extra>",
        )


def _table(results: StudyResults) -> Table:
    head = (
        "Variant",
        "Tuned rate",
        "Rates that count",
        "Best at an end",
        "Diverged",
        "Failed",
    )
    rows = [_row(results, variant.name) for variant in results.variants]
    caption = "Tuned rate: the geometric mean of the best rates of each seed."
    if results.study.tuning_seed_numbers:
        caption = "Tuned rate: where the parabola through the pooled losses of the tuning seeds is lowest."
    return Table(caption, head, rows)


def _row(results: StudyResults, name: str) -> Row:
    replicates = _replicates(results, name)
    runs = [run for run in results.runs if run.variant == name]
    lrs = [replicate.lr for replicate in replicates]
    return Row(
        (
            name,
            fmt.short(geometric_mean(lrs)) if lrs else "–",
            ", ".join(fmt.short(lr) for lr in sorted(results.grids.get(name, ()))) or "–",
            f"{sum(r.at_boundary for r in replicates)} of {len(replicates)} seeds",
            f"{sum(r.diverged for r in runs)} of {len(runs)} runs",
            f"{sum(bool(r.failed) for r in runs)} of {len(runs)} runs",
        )
    )


def _replicates(results: StudyResults, name: str) -> list[Replicate]:
    return [r for r in results.replicates if r.variant == name and math.isfinite(r.loss)]


def _window(results: StudyResults, ended: Sequence[RunResult]) -> tuple[float, float]:
    """Return the vertical range, without diverged runs unless all diverged."""
    losses = [run.loss for run in ended if not run.diverged] or [run.loss for run in ended]
    losses += [r.loss for r in results.replicates if math.isfinite(r.loss) and not r.best.diverged]
    room = ROOM * (max(losses) - min(losses)) or 0.01
    return min(losses) - room, max(losses) + room


def _ticks(runs: Sequence[RunResult]) -> list[float]:
    lrs = [run.lr for run in runs]
    powers = range(math.floor(math.log10(min(lrs))), math.ceil(math.log10(max(lrs))) + 1)
    return [digit * 10.0**power for power in powers for digit in (1, 2, 5)]


def _summary(results: StudyResults, ended: Sequence[RunResult], name: str) -> str:
    losses = losses_by_lr([run for run in ended if run.variant == name])
    swept = ", ".join(
        f"{fmt.loss(fmean(found))} at {fmt.short(lr)}" for lr, found in losses.items()
    )
    return f"{name}: {swept}." if swept else f"{name}: no run has ended."


def _columns(results: StudyResults, ended: Sequence[RunResult]) -> dict[str, list[Any]]:
    counted = [run.lr in results.grids.get(run.variant, ()) for run in ended]
    return {
        "variant": [run.variant for run in ended],
        "seed": [run.seed for run in ended],
        "lr": [run.lr for run in ended],
        "loss": [run.loss for run in ended],
        "diverged": ["yes" if run.diverged else "no" for run in ended],
        "counts": ["yes" if counts else "no" for counts in counted],
    }
