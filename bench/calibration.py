"""How often the lab errs: its whole procedure replayed on a recorded pool of runs, thousands of times.

    python -m bench.calibration POOL.csv

One tiny model, trained from many seeds at every rate of a lattice, is the pool. A draw gives disjoint seeds
to two arms, which so are equal variants, and asks for a verdict: window, tuning, intervals and sentence
come from the code that judges real studies.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from archwright.lab.procedure.statistics import paired_interval
from archwright.lab.procedure.sweep import Losses, lowest, plan_sweep, replicate
from archwright.lab.procedure.verdict import effects, excludes
from archwright.lab.results import Effect, Interval, Replicate, RunResult
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec

ARMS = ("one", "other")
STUDY = StudySpec(variants={ARMS[1]: ("drawn",)}, match="none")
EFFECT = 0.02
"""Share of the loss that is planted to see whether it is found."""
RATIO = 3.0
"""Between rates, for their logarithms: another one moves rates, never losses."""


@dataclass(frozen=True)
class Pool:
    """Recorded runs of one variant."""

    losses: NDArray[np.float64]
    """[seeds, rates]"""
    powers: range
    """The powers k of the rates."""

    @property
    def limits(self) -> tuple[int, int]:
        """The lowest and highest power."""
        return self.powers[0], self.powers[-1]


@dataclass(frozen=True)
class Judgement:
    """The outcome of one draw, whatever the design."""

    won: bool
    """One arm was called better than the other."""
    right: bool
    """And it was the second."""
    interval: Interval
    """Of 95 %, second arm minus first."""
    loss: float
    """Mean of the second arm."""
    at_boundary: bool = False
    """An arm's best rate is at an end of its grid, so that nothing was concluded."""


@dataclass(frozen=True)
class Replay:
    """How a design did over many draws."""

    design: str
    seeds: int
    draws: int
    wins: int
    """Draws with a verdict of better or worse."""
    right: int
    """Draws with the second arm better."""
    superior: int
    """Draws whose interval excludes 0, before noise floor and reservations."""
    covered: int
    """Draws whose interval holds the true difference."""
    edges: int
    """Draws kept from a verdict by a rate at the end of its grid."""
    width: float
    """Median width of the interval."""
    truth: float
    """The true difference, in the units of the loss."""


Design = Callable[[Pool, NDArray[np.intp], float], Judgement]
"""(pool, rows of the seeds drawn [2, n], effect) -> judgement. The losses of the second arm are those of
the pool times 1 - effect."""


def aa(pool: Pool, draws: int = 2000, seeds: int = 5, seed: int = 0) -> Replay:
    """Replay the lab's procedure with two equal arms: whatever it finds is false."""
    return replay(pool, "the lab", draws, seeds, effect=0.0, seed=seed)


def planted(
    pool: Pool, effect: float = EFFECT, draws: int = 2000, seeds: int = 5, seed: int = 0
) -> Replay:
    """Replay it with the losses of the second arm multiplied by 1 - effect, which should be found."""
    return replay(pool, "the lab", draws, seeds, effect, seed)


def replay(
    pool: Pool, design: str, draws: int, seeds: int, effect: float = 0.0, seed: int = 0
) -> Replay:
    """Judge many draws of `seeds` disjoint pairs by one of DESIGNS.

    The true difference is -effect times what an arm without it would have on average, over all draws.
    Draws share the pool, so that bounds on what is found hold for these runs alone.
    """
    judge, extra = DESIGNS[design]
    rng, per_arm = np.random.default_rng(seed), seeds + extra
    found = []
    for _ in range(draws):
        rows = rng.choice(len(pool.losses), 2 * per_arm, replace=False)
        found.append(judge(pool, rows.reshape(2, per_arm), effect))
    truth = -effect * float(np.mean([j.loss for j in found])) / (1 - effect)
    return Replay(
        design=design,
        seeds=seeds,
        draws=draws,
        wins=sum(j.won for j in found),
        right=sum(j.right for j in found),
        superior=sum(excludes(j.interval, 0.0) for j in found),
        covered=sum(not excludes(j.interval, truth) for j in found),
        edges=sum(j.at_boundary for j in found),
        width=float(np.median([j.interval.high - j.interval.low for j in found])),
        truth=truth,
    )


def judge_as_the_lab(pool: Pool, rows: NDArray[np.intp], effect: float) -> Judgement:
    """Window, sweep of every seed, and verdict as in a study of one variant; seeds pair as drawn."""
    n = rows.shape[1]
    replicates: list[Replicate] = []
    edges = []
    for name, arm_rows, factor in zip(ARMS, rows, (1.0, 1 - effect), strict=True):
        losses = _losses(pool, arm_rows, factor)
        sweep = plan_sweep(losses, range(n), limits=pool.limits)
        assert not sweep.wanted
        edges += [name] * sweep.at_boundary
        for seed in sweep.seeds:
            replicates.append(replicate([run_at(name, seed, k, losses) for k in sweep.window]))
    found: Effect = effects(replicates, STUDY, ARMS[0], edges=edges)[0]
    won = found.outcome in ("better", "worse")
    mean = float(np.mean([r.loss for r in replicates if r.variant == ARMS[1]]))
    return Judgement(won, found.outcome == "better", found.interval, mean, bool(edges))


def judge_best_of_grid(pool: Pool, rows: NDArray[np.intp], effect: float) -> Judgement:
    """The rival that most papers use: the rate with the lowest mean of a fixed grid, on the seeds that
    are then compared."""
    middle = len(pool.powers) // 2
    arms = pool.losses[rows][..., max(0, middle - 1) : middle + 2]  # [2, n, 3]
    chosen = [arm[:, lowest([*arm.mean(0)])] for arm in arms]
    return _judged(chosen[0], chosen[1] * (1 - effect))


def judge_one_sweep(pool: Pool, rows: NDArray[np.intp], effect: float) -> Judgement:
    """The rival that saves runs: the first seed of each arm sweeps, the others confirm at its best rate."""
    chosen = []
    for arm_rows in rows:
        losses = _losses(pool, arm_rows[:1], 1.0)
        window = plan_sweep(losses, [0], limits=pool.limits, may_shift=False).window
        best = int(window[lowest([losses[0, k] for k in window])])
        chosen.append(pool.losses[arm_rows[1:], best - pool.powers[0]])
    return _judged(chosen[0], chosen[1] * (1 - effect))


DESIGNS: dict[str, tuple[Design, int]] = {
    "the lab": (judge_as_the_lab, 0),
    "best of the grid by mean": (judge_best_of_grid, 0),
    "one seed sweeps, others confirm": (judge_one_sweep, 1),
}
"""Name -> the design, and the seeds that an arm needs beyond those compared."""


def read_pool(path: Path) -> Pool:
    """Read the runs.csv of a study whose variants are the rates of a lattice; the first is where a sweep starts.

    Of its columns only seed, lr and loss count. Seeds without every rate are left out.

    Raises:
        UserError: columns are missing, the rates are no lattice, or too few seeds are complete.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"seed", "lr", "loss"} <= rows[0].keys():
        raise UserError(f"{path}: expected the columns seed, lr and loss")
    powers_of = _powers(path, [float(row["lr"]) for row in rows])
    losses = {(int(r["seed"]), powers_of[float(r["lr"])]): float(r["loss"]) for r in rows}
    powers = range(min(k for _, k in losses), max(k for _, k in losses) + 1)
    by_seed = [
        [losses.get((seed, k), math.nan) for k in powers] for seed in sorted({s for s, _ in losses})
    ]
    complete = [row for row in by_seed if all(map(math.isfinite, row))]
    if len(powers) < 3 or len(complete) < 6:
        raise UserError(
            f"{path}: expected 3 rates and 6 seeds, found {len(complete)} seeds at all of {len(powers)}"
        )
    return Pool(np.array(complete), powers)


def _powers(path: Path, rates: Sequence[float]) -> dict[float, int]:
    """Return the power k of each rate = start * ratio^k, the first rate being the start."""
    different, start = sorted(set(rates)), rates[0]
    steps = [math.log(b / a) for a, b in pairwise(different)]
    if not steps or max(steps) > 1.02 * min(steps):
        raise UserError(f"{path}: expected rates with equal ratios between neighbours")
    return {rate: i - different.index(start) for i, rate in enumerate(different)}


def table(pool: Pool, draws: int = 2000, seeds: Sequence[int] = (3, 5, 10)) -> Iterator[str]:
    """Yield the lines of a Markdown table: every design on equal arms, then with an effect planted."""
    yield (
        "| design | seeds | planted | draws | false wins, or effects found | 95 % bounds "
        "| interval excludes 0 | interval holds the truth | rate at an end | median width |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for design, (_, extra) in DESIGNS.items():
        for effect in (0.0, EFFECT):
            for n in seeds:
                if 2 * (n + extra) <= len(pool.losses):
                    yield _line(replay(pool, design, draws, n, effect), effect)


def _line(found: Replay, effect: float) -> str:
    found_or_false = found.right if effect else found.wins
    low, high = binomial_interval(found_or_false, found.draws)
    cells = [
        found.design,
        found.seeds,
        f"{effect:.0%}" if effect else "nothing",
        found.draws,
        f"{found_or_false / found.draws:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{found.superior / found.draws:.1%}",
        f"{found.covered / found.draws:.1%}",
        f"{found.edges / found.draws:.1%}",
        f"{found.width:.4f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return a two-sided interval of a proportion that covers at least `level`.

    Source: Clopper and Pearson, 1934, The use of confidence or fiducial limits.
    """
    found = stats.binomtest(successes, trials).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def _losses(pool: Pool, rows: NDArray[np.intp], factor: float) -> Losses:
    """Number the seeds of an arm as they were drawn."""
    return {
        (i, k): factor * float(loss)
        for i, row in enumerate(rows)
        for k, loss in zip(pool.powers, pool.losses[row], strict=True)
    }


def run_at(variant: str, seed: int, k: float, losses: Losses) -> RunResult:
    """Return a run of nothing but its loss at the rate RATIO^k."""
    loss = losses[seed, k]
    return RunResult("", variant, seed, RATIO**k, loss, loss / math.log(2), initial_loss=math.inf)


def _judged(old: NDArray[np.float64], new: NDArray[np.float64]) -> Judgement:
    """Call what the interval says, and nothing else."""
    interval = paired_interval([*(new - old)])
    won = excludes(interval, 0.0)
    return Judgement(won, won and interval.high < 0, interval, float(new.mean()))


def main() -> None:
    """Print the table of a pool."""
    parser = argparse.ArgumentParser(
        description="How often the lab errs, on a recorded pool of runs."
    )
    parser.add_argument(
        "pool", type=Path, help="runs.csv of a study whose variants are learning rates"
    )
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    for line in table(read_pool(options.pool), options.draws):
        print(line, flush=True)


if __name__ == "__main__":
    main()
