"""How the learning rate is tuned: a window on a lattice of values, and the lowest point of a parabola in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archwright.lab.results import Replicate, RunResult

MOVES = 4
"""How often the first seed may move the window of a variant."""
SLIDES = 2
"""How often the mean over all seeds may move it after that."""
FINER = {1.0: 0.02, 0.5: 0.05}
"""Of the step between rates the rise of the pooled loss beside its lowest, as a share, above which rates are tried half
as far apart."""
START = 64
"""Rates of a variant start at a multiple of 1/64 of a step, so that their powers are exact sums of binary fractions."""
RISE = 0.05
"""Share of the lowest loss that a neighbour's may lie above it: what is higher is no parabola."""
PLACING = 0.07
"""Share of the mean rise A beside the lowest loss by which the loss at a parabola's vertex may lie above the bottom: a
cubic term A/2 x (x² - 1), which three losses one step x apart do not show, moves the bottom of A x² by about a quarter
of the step and 0.06 A. That a little more is enough was simulated: docs/calibration.md."""
LEAST_RISE = {0.25: 0.03}
"""By the step between rates, the share of the lowest loss that each rise beside it counts as at least. Quarter steps
are for steep valleys and those with a cliff; a variant that starts with them, as its baseline ended, may stand where it
is flat, at the edge of one. Simulated: docs/calibration.md."""

Losses = Mapping[tuple[int, float], float]
"""(seed, k) -> held-out loss at the learning rate start * ratio^k; NaN where the run failed."""
Window = Sequence[float]
"""Neighbouring powers k: whole ones, or halves where a valley is narrow or has a steep side."""


@dataclass(frozen=True)
class Sweep:
    """Where the tuning of one variant stands."""

    window: Window
    """The learning rates that count, as the powers k of the ratio."""
    wanted: Sequence[tuple[int, float]]
    """Runs still missing, as (seed, k), the most urgent first. None: the sweep is complete."""
    seeds: Sequence[int]
    """Those with a finished run at every learning rate of the window."""
    at_boundary: bool
    """The mean over these seeds is lowest at an end of the window, which may move no further."""


class Tuned(NamedTuple):
    """The lowest point of a sweep."""

    loss: float
    lr: float
    at_boundary: bool
    """The lowest loss is at an end, so that a lower one may lie outside."""


def plan_sweep(
    losses: Losses,
    seeds: Sequence[int],
    grid: int = 3,
    may_shift: bool = True,
    refine: bool = False,
) -> Sweep:
    """Return the window of one variant whose seeds all sweep, and its missing runs, by losses alone.

    The first seed places the window, `grid` neighbours around k = 0: while its lowest loss is at an end, the window
    moves by one that way, MOVES times at most. The other seeds run that window. To `refine`, a window in which the
    first seed's loss rises by more than RISE beside its lowest becomes one of half steps around it. If the mean over
    all seeds is lowest at an end, the window moves on for all seeds, SLIDES times at most.

    A seed with a failed run in the window does not count; the next one places it then. The window stays after the
    first seed unless it `may_shift`.
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
    all_seeds: bool = False,
    start: Window | None = None,
) -> Sweep:
    """Return the window in which seeds together tune one variant, and its missing runs.

    The first seed places the window as in `plan_sweep`, around `start` if given. On a plateau (no loss below `plateau`,
    and that of the lowest rate at most RISE above the best), it moves to lower rates. A window of finer than whole
    steps moves by its own step once, then by one twice as large, up to a whole one. It becomes one of half as large
    steps if the loss rises by more than FINER beside the lowest.

    Only the first seed runs, unless `all_seeds` are wanted, or its lowest loss is at an end or among quarter steps: the
    bottom of so steep a valley is not where one seed has it. Then all run that window and their mean counts; it moves
    on while the lowest is at an end, SLIDES times at most. A seed with a failed run does not count.
    """
    first = first_window(grid) if start is None else start
    window, missing = _final_window(losses, seeds, first, refine=False, plateau=plateau)
    if missing:
        return Sweep(window, missing, [], at_boundary=False)
    slides = SLIDES if may_shift else 0
    if not all_seeds:
        # The one that placed the window: those before it failed, and need not have all its runs.
        placed = [s for s in seeds if not _missing(losses, [s], window)]
        placed = [s for s in placed if not _failed(losses, s, window)][:1]
        alone = _settled(losses, placed, window, slides)
        if alone.wanted or (alone.seeds and not alone.at_boundary and _step(alone.window) >= 0.5):
            return alone
        window = alone.window if alone.seeds else window
    return _settled(losses, seeds, window, slides)


def _settled(
    losses: Losses, seeds: Sequence[int], window: Window, slides: int, finer: bool = True
) -> Sweep:
    """Return the window of some seeds after it has slid, and become finer, by their mean."""
    while True:
        slides_left = slides
        while True:
            missing = _missing(losses, seeds, window)
            finished = [s for s in seeds if all((s, k) in losses for k in window)]
            finished = [s for s in finished if not _failed(losses, s, window)]
            if missing or not finished:
                return Sweep(window, missing, finished, at_boundary=False)
            means = pooled(losses, finished, window)
            moved = _moved(window, means)
            if moved == window:
                break
            if not slides_left:
                return Sweep(window, [], finished, at_boundary=True)
            window, slides_left = moved, slides_left - 1
        step = _step(window)
        if not (finer and is_sharp(means, FINER.get(step, math.inf))):
            return Sweep(window, [], finished, at_boundary=False)
        window = _halved(window, means)


def around_vertex(losses: Losses, sweep: Sweep) -> Window:
    """Return a window like that of a sweep, around its vertex: where other variants start."""
    step, grid = _step(sweep.window), len(sweep.window)
    middle = round(START * vertex(losses, sweep)) / START
    return tuple(middle + (i - grid // 2) * step for i in range(grid))


def pooled(losses: Losses, seeds: Sequence[int], window: Window) -> list[float]:
    """Return the mean over seeds at each rate of a window."""
    return [math.fsum(losses[s, k] for s in seeds) / len(seeds) for k in window]


def vertex(losses: Losses, sweep: Sweep) -> float:
    """Return the power k of the ratio at which the parabola through the pooled losses is lowest, to a hundredth."""
    return round(math.log(lowest_point(losses, sweep).lr), 2)


def lowest_point(losses: Losses, sweep: Sweep) -> Tuned:
    """Return the vertex of the pooled losses, with exp(k) for the learning rate."""
    return tuned(pooled(losses, sweep.seeds, sweep.window), [math.exp(k) for k in sweep.window])


def placing_error(losses: Losses, sweep: Sweep) -> float:
    """Return by how much the loss at the vertex may lie above the lowest one, in nats: PLACING times the mean of the
    rises beside the lowest pooled loss, of which one above RISE counts as that much, and one below LEAST_RISE as that.
    All pairs that are compared at that rate share it, so that they do not show it. 0 at an end, where nothing is
    compared.
    """
    means = pooled(losses, sweep.seeds, sweep.window)
    best = lowest(means)
    if best in (0, len(means) - 1):
        return 0.0
    least = LEAST_RISE.get(_step(sweep.window), 0.0) * abs(means[best])
    return PLACING * math.fsum(max(rise, least) for rise in _rises(means, best)) / 2


def tuned(losses: Sequence[float], lrs: Sequence[float]) -> Tuned:
    """Return the vertex of the parabola in log(lr) through the lowest loss and its neighbours.

    With neighbours at the distances u < 0 < v in log(lr) that lie a and b above the lowest loss y:
    curvature c = (b / v - a / u) / (v - u), slope s = (-b u / v + a v / u) / (v - u), and the vertex
    is at -s / 2c with the loss y - s² / 4c: within half the way to either neighbour, and not further
    below y than an eighth of the larger rise. A rise above RISE y counts as that much. Where the
    lowest loss is at an end, it is the answer itself.
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
    """Return the result of one seed: its sweep by `tuned`, or its only run on the half that judges."""
    runs = sorted(runs, key=lambda run: run.lr)
    losses, lrs = [run.loss for run in runs], [run.lr for run in runs]
    best = runs[lowest(losses)]
    if len(runs) == 1 and best.halves:
        losses = [best.halves.judged]
    found = tuned(losses, lrs) if len(runs) > 1 else Tuned(losses[0], best.lr, at_boundary=False)
    return Replicate(
        variant=best.variant,
        seed=best.seed,
        loss=found.loss,
        lr=found.lr,
        best=best,
        at_boundary=found.at_boundary,
    )


def lowest(losses: Sequence[float]) -> int:
    """Return the index of the lowest loss; of equal ones the nearest to the middle."""
    middle = (len(losses) - 1) / 2
    return min(range(len(losses)), key=lambda i: (losses[i], abs(i - middle), i))


def _final_window(
    losses: Losses, seeds: Sequence[int], first: Window, refine: bool, plateau: float = math.inf
) -> tuple[Window, list[tuple[int, float]]]:
    """Return where the first seed puts the window, and the runs it needs before it can say."""
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
            # A plateau has no lowest point; rates that are too high are its usual cause. Where lower ones are clearly
            # worse it is none: too little was trained.
            if min(swept) > plateau and swept[0] <= (1 + RISE) * min(swept):
                moved = tuple(k - 1 for k in window)
            elif refine and _step(window) == 1 and is_sharp(swept):
                moved = _halved(window, swept)
            if moved == window or not moves_left:
                return window, []
            window = moved
    return first, []


def _rises(losses: Sequence[float], best: int) -> tuple[float, float]:
    """Return how much higher the neighbours of the lowest loss are, to the left and to the right."""
    most = RISE * abs(losses[best])
    left, right = (min(losses[best + side] - losses[best], most) for side in (-1, 1))
    return left, right


def _halved(window: Window, losses: Sequence[float]) -> Window:
    """Return a window of as many rates half as far apart, around the best."""
    step = _step(window) / 2
    first = window[lowest(losses)] - (len(window) // 2) * step
    return tuple(first + i * step for i in range(len(window)))


def is_sharp(losses: Sequence[float], rise: float = RISE) -> bool:
    """Return whether the loss rises by more than a share to either side of the lowest, which is at no end."""
    best = lowest(losses)
    beside = [losses[i] for i in (best - 1, best + 1) if 0 <= i < len(losses)]
    return len(beside) == 2 and max(beside) > losses[best] + rise * abs(losses[best])


def first_window(grid: int) -> Window:
    """Return as many neighbours around k = 0."""
    return range(-(grid // 2), grid - grid // 2)


def _moved(window: Window, losses: Sequence[float]) -> Window:
    """Return the window one further where the lowest loss is at an end, else as it is."""
    best = lowest(losses)
    steps = (best == len(losses) - 1) - (best == 0)
    if isinstance(window, range):
        return range(window.start + steps, window.stop + steps)
    return tuple(k + steps * _step(window) for k in window)


def _strode(window: Window, losses: Sequence[float]) -> Window:
    """Return a window of rates twice as far apart that reaches one of them beyond the end where the lowest loss is."""
    step, grid = 2 * _step(window), len(window)
    before = 1 if lowest(losses) == 0 else grid - 2
    first = window[lowest(losses)] - before * step
    return tuple(first + i * step for i in range(grid))


def _step(window: Window) -> float:
    return window[1] - window[0]


def _missing(losses: Losses, seeds: Sequence[int], window: Window) -> list[tuple[int, float]]:
    """Return the runs to do; a seed that has failed needs no more."""
    alive = (seed for seed in seeds if not _failed(losses, seed, window))
    return [(seed, k) for seed in alive for k in window if (seed, k) not in losses]


def _failed(losses: Losses, seed: int, window: Window) -> bool:
    return any(math.isnan(losses.get((seed, k), 0.0)) for k in window)
