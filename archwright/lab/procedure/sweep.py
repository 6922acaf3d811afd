"""Tuning of learning rates: a window on a lattice of values, and the vertex of a parabola in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archwright.lab.procedure.constants import (
    FINER,
    MISPLACED,
    MOVES,
    PLACING,
    RISE,
    SLIDES,
    START,
    USUAL_SPREAD,
)
from archwright.lab.results import Replicate, RunResult

Losses = Mapping[tuple[int, float], float]
"""(seed, k) -> held-out loss at the learning rate start * ratio^k; NaN if the run failed."""
Window = Sequence[float]
"""Neighbouring powers k, in steps of 1, or of 1/2 if a valley is narrow or has a steep side."""


@dataclass(frozen=True)
class Sweep:
    """State of the tuning of one variant."""

    window: Window
    """Learning rates, as powers k of the ratio."""
    wanted: Sequence[tuple[int, float]]
    """Missing runs (seed, k), the most urgent first; empty if the sweep is complete."""
    seeds: Sequence[int]
    """Seeds with a finished run at every learning rate of the window."""
    at_boundary: bool
    """True if the mean over these seeds is lowest at an end of the window, with no moves left."""


class Tuned(NamedTuple):
    """Lowest point of a sweep."""

    loss: float
    lr: float
    at_boundary: bool
    """True if the lowest loss is at an end, so that a lower one may lie outside."""


def plan_sweep(
    losses: Losses,
    seeds: Sequence[int],
    grid: int = 3,
    may_shift: bool = True,
    refine: bool = False,
) -> Sweep:
    """Return the window of a variant if every seed sweeps, and its missing runs.

    The first seed places the window of `grid` neighbours around k = 0. While its lowest loss is at an end, the window
    moves one step that way, at most MOVES times. With `refine`, steps become half steps around the lowest loss if the
    loss next to it rises by more than RISE. The remaining seeds run that window. If `may_shift` and the mean over all
    seeds is lowest at an end, the window moves for all seeds, at most SLIDES times. A seed with a failed run in the
    window does not count; the next seed then places the window.
    """
    window, missing = _final_window(losses, seeds, first_window(grid), refine)
    if missing:
        return Sweep(window, missing, [], at_boundary=False)
    slides = SLIDES if may_shift else 0
    return _settled(losses, seeds, window, slides, finer=False)


def pooled_sweep(
    losses: Losses,
    seeds: Sequence[int],
    grid: int = 3,
    may_shift: bool = True,
    plateau: float = math.inf,
    start: Window | None = None,
) -> Sweep:
    """Return the window in which seeds together tune a variant, and its missing runs.

    The first seed places the window as in `plan_sweep`, around `start` if given. On a plateau (no loss below `plateau`,
    and the loss at the lowest rate at most RISE above the best), it moves to lower rates. A window of half steps moves
    by half a step once, then by whole steps. Whole steps become half steps if the loss next to the lowest rises by
    more than FINER.

    Then all seeds run this window, and their mean decides: the bottoms of seeds differ, and their spread is the error
    of the tuned rate (`placing_errors`). The window moves while the lowest mean is at an end, at most SLIDES times. A
    seed with a failed run does not count.
    """
    first = first_window(grid) if start is None else start
    window, missing = _final_window(losses, seeds, first, refine=False, plateau=plateau)
    if missing:
        return Sweep(window, missing, [], at_boundary=False)
    slides = SLIDES if may_shift else 0
    # The seed that placed the window. Earlier seeds failed and need not have all its runs.
    placed = _settled(losses, _finished(losses, seeds, window)[:1], window, slides)
    if placed.wanted:
        return placed
    return _settled(losses, seeds, placed.window if placed.seeds else window, slides)


def _settled(
    losses: Losses, seeds: Sequence[int], window: Window, slides: int, finer: bool = True
) -> Sweep:
    """Return the window of some seeds, moved and refined by their mean."""
    while True:
        slides_left = slides
        while True:
            missing, finished = _missing(losses, seeds, window), _finished(losses, seeds, window)
            if missing or not finished:
                return Sweep(window, missing, finished, at_boundary=False)
            means = pooled(losses, finished, window)
            moved = _moved(window, means)
            if moved == window:
                break
            if not slides_left:
                return Sweep(window, [], finished, at_boundary=True)
            window, slides_left = moved, slides_left - 1
        if not (finer and _step(window) == 1 and is_sharp(means, FINER)):
            return Sweep(window, [], finished, at_boundary=False)
        window = _halved(window, means)


def around_vertex(losses: Losses, sweep: Sweep) -> Window:
    """Return the sweep's window, centred on its vertex: the start of other variants."""
    middle = round(START * vertex(losses, sweep)) / START
    return _window(middle, len(sweep.window) // 2, _step(sweep.window), len(sweep.window))


def pooled(losses: Losses, seeds: Sequence[int], window: Window) -> list[float]:
    """Return the mean over seeds at each rate of a window."""
    return [math.fsum(losses[s, k] for s in seeds) / len(seeds) for k in window]


def vertex(losses: Losses, sweep: Sweep) -> float:
    """Return the power k at the vertex of the pooled losses, to a hundredth."""
    return round(math.log(lowest_point(losses, sweep).lr), 2)


def lowest_point(losses: Losses, sweep: Sweep) -> Tuned:
    """Return the vertex of the pooled losses, with exp(k) as learning rate."""
    return tuned(pooled(losses, sweep.seeds, sweep.window), [math.exp(k) for k in sweep.window])


class Bottom(NamedTuple):
    """Lowest pooled loss of a sweep, with its error."""

    rise: float
    """Mean rise of both neighbours in nats, each at most RISE of the loss; 0 at an end of the window."""
    step: float
    """Distance of the learning rates."""
    seeds: int
    excess: float
    """Mean loss above the bottom, in nats, from the spread of seeds; 0 for a single seed."""

    def above(self, steps: float) -> float:
        """Return the height of the parabola `steps` from its vertex."""
        return self.rise * (steps / self.step) ** 2


def bottom(losses: Losses, sweep: Sweep) -> Bottom:
    """Return the bottom of a finished sweep.

    With the slope d = y(+1) - y(-1) of each seed's losses next to the bottom, and v its variance over n seeds, the
    vertex of a parabola A u² is shifted by -(mean d) / 4A. The mean excess loss is v / 16 A n.
    """
    means, seeds = pooled(losses, sweep.seeds, sweep.window), len(sweep.seeds)
    best = lowest(means)
    if best in (0, len(means) - 1):
        return Bottom(0.0, _step(sweep.window), seeds, 0.0)
    rise, most = math.fsum(_rises(means, best)) / 2, RISE * abs(means[best])
    slopes = []
    for seed in sweep.seeds:
        left, lowest_loss, right = (losses[seed, sweep.window[best + i]] for i in (-1, 0, 1))
        slopes.append(min(right - lowest_loss, most) - min(left - lowest_loss, most))
    mean = math.fsum(slopes) / seeds
    spread = math.fsum((slope - mean) ** 2 for slope in slopes) / max(1, seeds - 1)
    excess = spread / (16 * rise * seeds) if rise else 0.0
    return Bottom(rise, _step(sweep.window), seeds, excess)


def placing_errors(bottoms: Mapping[str, Bottom]) -> dict[str, float]:
    """Return the standard error of each variant's loss from tuning, in nats.

    PLACING times the rise A, for the shape of the valley, plus MISPLACED times the mean excess of the vertex, for the
    spread of seeds. The excess is a mean over all variants, as each has few seeds, and a prior value for a spread of
    USUAL_SPREAD steps. All pairs share the error, so their scatter does not contain it. 0 at an end of the window.
    """
    known = [(b.seeds - 1, b.excess) for b in bottoms.values() if b.rise]
    freedom, total = sum(n for n, _ in known), math.fsum(n * excess for n, excess in known)
    return {
        name: PLACING * b.rise
        + MISPLACED * (b.above(USUAL_SPREAD) / b.seeds + total) / (1 + freedom) * (b.rise > 0)
        for name, b in bottoms.items()
    }


def tuned(losses: Sequence[float], lrs: Sequence[float]) -> Tuned:
    """Return the vertex of the parabola in log(lr) through the lowest loss and its neighbours.

    With neighbours at the distances u < 0 < v in log(lr), a and b above the lowest loss y: curvature
    c = (b / v - a / u) / (v - u), slope s = (-b u / v + a v / u) / (v - u), vertex at -s / 2c, at most half way to
    either neighbour, and loss y - s² / 4c, at most an eighth of the larger rise below y. Rises are cut off at RISE y.
    A lowest loss at an end is returned unchanged.
    """
    assert len(losses) == len(lrs)
    assert all(map(math.isfinite, losses))
    best = lowest(losses)
    loss, lr = losses[best], lrs[best]
    if best in (0, len(losses) - 1):
        return Tuned(loss, lr, at_boundary=True)
    u, v = (math.log(lrs[best + side] / lr) for side in (-1, 1))
    a, b = _rises(losses, best)
    curvature = (b / v - a / u) / (v - u)
    slope = (a * v / u - b * u / v) / (v - u)
    if curvature <= 0:  # all three are equal
        return Tuned(loss, lr, at_boundary=False)
    vertex = min(v / 2, max(u / 2, -slope / (2 * curvature)))
    return Tuned(loss + slope * vertex / 2, lr * math.exp(vertex), at_boundary=False)


def replicate(runs: Sequence[RunResult]) -> Replicate:
    """Return the result of one seed: its tuned sweep, or the judged half of its only run."""
    runs = sorted(runs, key=lambda run: run.lr)
    losses = [run.loss for run in runs]
    best = runs[lowest(losses)]
    if len(runs) > 1:
        loss, lr, at_boundary = tuned(losses, [run.lr for run in runs])
    else:
        loss, lr, at_boundary = best.halves.judged if best.halves else best.loss, best.lr, False
    return Replicate(best.variant, best.seed, loss, lr, best, at_boundary)


def lowest(losses: Sequence[float]) -> int:
    """Return the index of the lowest loss; among equal losses, the nearest to the middle."""
    middle = (len(losses) - 1) / 2
    return min(range(len(losses)), key=lambda i: (losses[i], abs(i - middle), i))


def _final_window(
    losses: Losses, seeds: Sequence[int], first: Window, refine: bool, plateau: float = math.inf
) -> tuple[Window, list[tuple[int, float]]]:
    """Return the window placed by the first seed, and its missing runs."""
    for seed in seeds:
        window = first
        for moves_left in reversed(range(MOVES + 1)):
            if _failed(losses, seed, window):
                break
            if missing := _missing(losses, [seed], window):
                return window, missing
            swept = [losses[seed, k] for k in window]
            moved = _moved(window, swept)
            if moved != window and moves_left < MOVES and _step(window) < 1:
                moved = _strode(window, swept)
            # A plateau is usually caused by rates that are too high. If lower rates are clearly worse, there is no
            # plateau: runs are too short.
            if min(swept) > plateau and swept[0] <= (1 + RISE) * min(swept):
                moved = tuple(k - 1 for k in window)
            elif refine and _step(window) == 1 and is_sharp(swept):
                moved = _halved(window, swept)
            if moved == window or not moves_left:
                return window, []
            window = moved
    return first, []


def _rises(losses: Sequence[float], best: int) -> tuple[float, float]:
    """Return the rises from the lowest loss to its left and right neighbours."""
    most = RISE * abs(losses[best])
    left, right = (min(losses[best + side] - losses[best], most) for side in (-1, 1))
    return left, right


def _halved(window: Window, losses: Sequence[float]) -> Window:
    """Return a window of half the step around the best rate."""
    grid = len(window)
    return _window(window[lowest(losses)], grid // 2, _step(window) / 2, grid)


def is_sharp(losses: Sequence[float], rise: float = RISE) -> bool:
    """True if a neighbour of an inner lowest loss is higher by more than a share."""
    best = lowest(losses)
    neighbours = losses[best - 1 : best + 2 : 2] if best else ()
    return len(neighbours) == 2 and max(neighbours) > losses[best] + rise * abs(losses[best])


def first_window(grid: int) -> Window:
    """Return a window of `grid` powers around k = 0."""
    return range(-(grid // 2), grid - grid // 2)


def _window(power: float, before: int, step: float, grid: int) -> Window:
    """Return a window with `before` powers below `power`."""
    first = power - before * step
    return tuple(first + i * step for i in range(grid))


def _moved(window: Window, losses: Sequence[float]) -> Window:
    """Return the window, moved by one step if the lowest loss is at an end."""
    best = lowest(losses)
    steps = (best == len(losses) - 1) - (best == 0)
    if isinstance(window, range):
        return range(window.start + steps, window.stop + steps)
    return tuple(k + steps * _step(window) for k in window)


def _strode(window: Window, losses: Sequence[float]) -> Window:
    """Return a window of twice the step, one rate beyond the end with the lowest loss."""
    best, grid = lowest(losses), len(window)
    return _window(window[best], 1 if best == 0 else grid - 2, 2 * _step(window), grid)


def _step(window: Window) -> float:
    return window[1] - window[0]


def _missing(losses: Losses, seeds: Sequence[int], window: Window) -> list[tuple[int, float]]:
    """Return the missing runs of seeds without a failed run."""
    alive = (seed for seed in seeds if not _failed(losses, seed, window))
    return [(seed, k) for seed in alive for k in window if (seed, k) not in losses]


def _finished(losses: Losses, seeds: Sequence[int], window: Window) -> list[int]:
    """Return the seeds with a loss at every rate."""
    return [s for s in seeds if not any(math.isnan(losses.get((s, k), math.nan)) for k in window)]


def _failed(losses: Losses, seed: int, window: Window) -> bool:
    return any(math.isnan(losses.get((seed, k), 0.0)) for k in window)
