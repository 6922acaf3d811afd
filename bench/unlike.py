"""How often the lab errs on real losses of two unlike variants: its procedure replayed on a recorded pool.

    python -m bench.unlike docs/unlike-pool.csv --draws 10000
    python -m bench.unlike --gather STUDY ... > POOL.csv

The pool has two variants, trained from many seeds at each learning rate of a fine lattice. One is shifted
by the difference of the lowest mean losses over all seeds, so that both are equally good, each at its own best
rate. A draw begins at any rate within half a step of the baseline's best, tunes on some seeds and compares others,
which it draws with replacement: without, so few would lie too near the mean of all, by which variants were made
equal. Pairs, tuning and outcomes come from the code that judges real studies (`bench.simulate`), losses
from real runs.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archwright.lab.procedure.verdict import excludes
from archwright.lab.results import Effect
from archwright.spec.errors import UserError
from archwright.spec.study_spec import StudySpec
from bench.replay import binomial_interval, drawn
from bench.simulate import Surface, simulate

STEP = 4
"""Rates of the lattice in one step of a study, a factor of 3."""
PLATEAU = 5.17
"""Loss above which a study says that hardly more was learnt than how often each token occurs, on this text, in nats."""
GAP = 2
"""Distance of neighbouring rates at most, which far from the bottom may be twice that of the lattice."""


LEAST_SEEDS = 16
"""Of fewer, the same pairs would come again and again."""


@dataclass(frozen=True)
class Recorded:
    """Runs of one variant."""

    losses: NDArray[np.float64]
    """[seeds, rates], in nats per token"""
    powers: NDArray[np.int64]
    """Of each rate its power k, 3^(k/4) times a common one."""

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean loss of each rate over the seeds, [rates]."""
        return np.asarray(self.losses.mean(0))

    @property
    def bottom(self) -> int:
        """The power of the rate with the lowest mean."""
        return int(self.powers[self.means.argmin()])

    def surface(self, seeds: Sequence[int], start: float, change: float) -> Surface:
        """Return the losses of these seeds as a study asks for them: the mean between those of the recorded rates, and
        the deviation from it that the seed had at the nearest. Rounded to a recorded rate, a rate that is placed an
        eighth of a step beside the best would count as one a quarter beside it.

        Args:
            start: the power of the lattice at which the study starts.
            change: what is added, as a share of the lowest mean.
        """
        added = change * self.means.min()

        def loss(seed: int, k: float) -> float:
            power = start + STEP * k
            at = np.abs(self.powers - power).argmin()
            deviation = self.losses[seeds[seed], at] - self.means[at]
            return float(np.interp(power, self.powers, self.means) + deviation) + added

        return loss


@dataclass(frozen=True)
class Row:
    """Two variants of the pool that are compared."""

    name: str
    one: str
    other: str
    effect: float = 0.0
    """Share of the loss by which the other is better, at the lowest mean of each."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one draw."""

    effect: Effect
    runs: int
    """Runs of both variants."""


Pool = dict[str, Recorded]


def read_pool(path: Path) -> Pool:
    """Read columns variant, seed, lr and loss; seeds without a loss at every rate of every variant are left out.

    Raises:
        UserError: columns are missing, rates are no lattice, or too few seeds are complete.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"variant", "seed", "lr", "loss"} <= rows[0].keys():
        raise UserError(f"{path}: expected the columns variant, seed, lr and loss")
    powers = {float(row["lr"]): 0.0 for row in rows}
    first = min(powers)
    for lr in powers:
        powers[lr] = math.log(lr / first, 3) * STEP
    if any(abs(power - round(power)) > 0.05 for power in powers.values()):
        raise UserError(f"{path}: expected rates at powers of 3^(1/{STEP})")
    losses = {
        (row["variant"], int(row["seed"]), round(powers[float(row["lr"])])): float(row["loss"])
        for row in rows
    }
    found = {}
    seeds = sorted({seed for _, seed, _ in losses})
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = sorted({k for name, _, k in losses if name == variant})
        if any(b > a + GAP for a, b in pairwise(mine)):
            raise UserError(f"{path}: expected no gap in the rates of {variant}")
        seeds = [seed for seed in seeds if all((variant, seed, k) in losses for k in mine)]
        found[variant] = mine
    if len(seeds) < LEAST_SEEDS:
        raise UserError(f"{path}: expected {LEAST_SEEDS} seeds at all rates, found {len(seeds)}")
    return {
        variant: Recorded(
            np.array([[losses[variant, seed, k] for k in mine] for seed in seeds]), np.array(mine)
        )
        for variant, mine in found.items()
    }


def rows_of(pool: Pool) -> list[Row]:
    """Return what is compared: either variant with itself, both made equal, and effects planted."""
    one, other = pool
    return [
        Row(f"{one} and itself", one, one),
        Row(f"{other} and itself", other, other),
        Row(f"{one} and {other}, made equal", one, other),
        *(
            Row(f"{one} and {other}, {effect:.1%} better", one, other, effect)
            for effect in (0.005, 0.01, 0.02)
        ),
    ]


def findings(
    pool: Pool, row: Row, study: StudySpec, draws: Sequence[int], *, processes: int = 1
) -> list[Finding]:
    """Return what the lab says of draws of a row, each of a number of its own."""
    return drawn(partial(_finding, pool, row, study), draws, processes)


def _finding(pool: Pool, row: Row, study: StudySpec, draw: int) -> Finding:
    rng = np.random.default_rng(draw)
    one, other = pool[row.one], pool[row.other]
    start = one.bottom + rng.uniform(-STEP / 2, STEP / 2)
    tunes, pairs = len(study.tuning_seed_numbers), len(study.seed_numbers)
    tuning = rng.permutation(len(one.losses))
    first, second, judged = tuning[:tunes], tuning[tunes : 2 * tunes], tuning[2 * tunes :]
    seeds = [[*first, *rng.choice(judged, pairs)]] * 2
    if (
        row.one == row.other
    ):  # a variant with itself: by seeds of its own, or all pairs would be equal
        seeds[1] = [*second, *rng.choice(judged, pairs)]
    change = (one.means.min() * (1 - row.effect) - other.means.min()) / other.means.min()
    surfaces = {
        "one": one.surface(seeds[0], start, 0.0),
        "other": other.surface(seeds[1], start, float(change)),
    }
    found = simulate(surfaces, study, plateau=PLATEAU)
    return Finding(found.effects[0], found.runs)


def table(
    pool: Pool, draws: int, study: StudySpec, rows: Sequence[Row], *, processes: int = 1
) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| compared | pairs at most | draws | false wins, or found | 95 % bounds | interval holds the truth | "
        "mean error | inconclusive | seeds | runs |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        yield _line(pool, row, study, findings(pool, row, study, range(draws), processes=processes))


def _line(pool: Pool, row: Row, study: StudySpec, found: Sequence[Finding]) -> str:
    right = ("better",) if row.effect else ("better", "worse")
    hits = sum(f.effect.outcome in right for f in found)
    low, high = binomial_interval(hits, len(found))
    lowest = float(pool[row.one].means.min())
    errors = np.array([f.effect.mean for f in found]) / lowest + row.effect
    holds = [not excludes(f.effect.interval, -row.effect * lowest) for f in found]
    cells = (
        row.name,
        str(study.seeds),
        f"{len(found):,}",
        f"{hits / len(found):.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{np.mean(holds):.1%}",
        f"{errors.mean():+.2%}",
        f"{np.mean([f.effect.outcome == 'inconclusive' for f in found]):.0%}",
        f"{np.mean([len(f.effect.seeds) for f in found]):.1f}",
        f"{np.mean([f.runs for f in found]):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def gather(studies: Sequence[Path]) -> Iterator[tuple[str, str, str, str]]:
    """Yield variant, seed, lr and loss of all runs of studies whose variants are models at rates."""
    for study in studies:
        with (study / "runs.csv").open(newline="", encoding="utf-8") as file:
            for run in csv.DictReader(file):
                post = "residual.kind=post" in run["variant"]
                name = "post-norm" if post else "modern"
                yield name, run["seed"], f"{float(run['lr']):.4g}", f"{float(run['loss']):.5f}"


def main() -> None:
    """Print the table of a pool, or gather one."""
    parser = argparse.ArgumentParser(
        description="How often the lab errs, on recorded runs of two unlike variants."
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--gather", action="store_true", help="print runs of studies as a pool")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10])
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.gather:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("variant", "seed", "lr", "loss"))
        writer.writerows(gather(options.paths))
        return
    pool = read_pool(options.paths[0])
    for name, recorded in pool.items():
        at, lowest = int(recorded.means.argmin()) + 1, recorded.means.min()
        seeds, rates = recorded.losses.shape
        print(
            f"{name}: {seeds} seeds, lowest mean {lowest:.4f} at rate {at} of {rates}",
            file=sys.stderr,
        )
    for pairs in options.seeds:
        study = StudySpec(seeds=pairs)
        for line in table(pool, options.draws, study, rows_of(pool), processes=options.processes):
            print(line, flush=True)


if __name__ == "__main__":
    main()
