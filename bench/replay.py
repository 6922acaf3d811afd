"""How often the lab errs: its procedure on simulated losses of variants whose truth is known.

    python -m bench.replay --draws 1000
    python -m bench.replay --draws 1000 --many

Two variants are equally good, each at its best learning rate, or differ by a planted share of the loss; their
best rates lie anywhere between those of a grid, and losses rise as they do in no two variants alike. With --many,
several are compared with one baseline. Which
runs are wanted, where rates are placed, looks and outcomes come from the code that judges real studies
(`bench.simulate`).
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from archwright.lab.procedure.verdict import excludes
from archwright.lab.results import Effect
from archwright.spec.study_spec import StudySpec
from bench.calibration import binomial_interval
from bench.simulate import Surface, simulate

T = TypeVar("T")
LOWEST = 4.19
"""The loss at the bottom of every valley, in nats per token; this and the noise are those of the recorded pool."""
INITIAL = 6.93
"""Loss that a diverged run counts as."""
UNIGRAM, LEARNT = 6.0, 5.2
"""Loss on a plateau, where a model knows how often tokens occur and no more; and the loss below which more was
learnt."""
SEED_NOISE = 0.019
"""Standard deviation of what all runs of a seed share, in nats."""
RUN_NOISE = 0.013
"""Standard deviation of what a run has for itself, in nats."""
JITTER = 0.08
"""Standard deviation of where a seed's bottom lies, in steps of the grid."""


@dataclass(frozen=True)
class Valley:
    """Losses over the logarithm of the rate: LOWEST (1 + rise x²), x steps away from the bottom."""

    left: float
    right: float
    """The rise to either side, as a share of the lowest loss at one step away."""
    wall: float = math.inf
    """How many steps above the bottom a wall stands, on whose other side losses are `above` nats higher."""
    above: float = 0.5
    plateau: float = math.inf
    """How many steps above the bottom nothing is learnt any more."""
    at: float | None = None
    """Where the bottom lies, in steps from the start; None: anywhere between -1/2 and 1/2."""

    def losses(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the losses at so many steps from the bottom, without noise."""
        found = LOWEST * (1 + np.where(x < 0, self.left, self.right) * x**2)
        found = found + self.above * (x > self.wall)
        return np.minimum(np.where(x > self.plateau, np.maximum(found, UNIGRAM), found), INITIAL)


@cache
def lowest_mean(valley: Valley) -> float:
    """Return the lowest loss that any one rate has in the mean over seeds, whose bottoms lie apart: what is
    compared."""
    bottoms = np.random.default_rng(0).normal(0, JITTER, 20_001)
    return min(float(valley.losses(x - bottoms).mean()) for x in np.linspace(-0.5, 0.5, 101))


@dataclass(frozen=True)
class Scenario:
    """Two variants that are compared."""

    name: str
    one: Valley
    other: Valley
    together: bool = False
    """Whether both have their bottom at one place."""
    correlation: float = 0.5
    """Between the variants, which share initial values and data, of what a seed brings."""
    freedom: float = math.inf
    """Degrees of freedom of Student's t, as which what a run has for itself is distributed."""
    effect: float = 0.0
    """Share of the loss by which the other is better."""
    variants: int = 1
    """How many others are compared with the one, each with a bottom and noise of its own."""
    better: int | None = None
    """How many of them, the first, have the effect; None: all."""
    noises: tuple[float, ...] = ()
    """How many times as much noise the runs of the last of them have."""

    @property
    def effects(self) -> list[float]:
        """The effect of each other variant."""
        better = self.variants if self.better is None else self.better
        return [self.effect] * better + [0.0] * (self.variants - better)

    @property
    def noise(self) -> list[float]:
        """The standard deviation of what a run has for itself, in nats: of the one, and of each other variant."""
        usual = 1 + self.variants - len(self.noises)
        return [RUN_NOISE * times for times in ([1.0] * usual + [*self.noises])]


def even(rise: float, at: float | None = None) -> Valley:
    """Return a valley that rises alike to both sides."""
    return Valley(rise, rise, at=at)


USUAL = 0.028
"""The rise of the recorded pool."""
WALLED = Valley(USUAL, USUAL, wall=0.6)
MEASURED = Valley(0.036, 0.012, wall=1.1)
BOTH = (even(USUAL), even(USUAL))

SCENARIOS = (
    Scenario("the same valley, 2.8 %", *BOTH, together=True),
    Scenario("2.8 % and 2.8 %", *BOTH),
    Scenario("6 % and 6 %", even(0.06), even(0.06)),
    Scenario("10 % and 10 %", even(0.10), even(0.10)),
    Scenario("17 % and 17 %", even(0.17), even(0.17)),
    Scenario("20 % and 20 %", even(0.20), even(0.20)),
    Scenario("0.5 % and 2.8 %", even(0.005), even(USUAL)),
    Scenario("10 % and 0.5 %", even(0.10), even(0.005)),
    Scenario("1 % and 6 %", even(0.01), even(0.06)),
    Scenario("2.8 % and 10 %", even(USUAL), even(0.10)),
    Scenario("2.8 % and 20 %", even(USUAL), even(0.20)),
    Scenario("20 % and 2.8 %", even(0.20), even(USUAL)),
    Scenario("2.8 % at the start, 10 % 0.4 steps above", even(USUAL, 0.0), even(0.10, 0.4)),
    Scenario("3 % left and 12 % right, 3 %", Valley(0.03, 0.12), even(0.03)),
    Scenario("12 % left and 3 % right, 3 %", Valley(0.12, 0.03), even(0.03)),
    Scenario("a wall 0.6 steps above one", even(USUAL), WALLED),
    Scenario("a wall 0.6 steps above both", WALLED, WALLED),
    Scenario("one diverges 0.9 steps above", even(USUAL), replace(WALLED, wall=0.9, above=INITIAL)),
    Scenario(
        "a plateau 1 step above one, 3 steps below the start",
        even(USUAL),
        Valley(USUAL, USUAL, plateau=1.0, at=-3.0),
    ),
    Scenario("one 3 steps above the start", even(USUAL), even(USUAL, 3.0)),
    Scenario("6 %, one 1 step above the baseline", even(0.06, 0.0), even(0.06, 1.0)),
    Scenario("10 %, 2.8 % 2 steps below it", even(0.10, 0.0), even(USUAL, -2.0)),
    Scenario("6 %, one 2.5 steps below the start", even(0.06), even(0.06, -2.5)),
    Scenario("as measured: 3.6 % left, 1.2 % right, a wall", MEASURED, MEASURED),
    Scenario("2.8 %, seeds not correlated", *BOTH, correlation=0.0),
    Scenario("2.8 %, seeds correlated by 0.9", *BOTH, correlation=0.9),
    Scenario("2.8 %, noise with heavy tails (t, 3 degrees)", *BOTH, freedom=3.0),
    Scenario("2.8 %, 0.5 % better", *BOTH, effect=0.005),
    Scenario("2.8 %, 1 % better", *BOTH, effect=0.01),
    Scenario("2.8 %, 2 % better", *BOTH, effect=0.02),
)

MANY = (
    Scenario("ten, all equally good", *BOTH, variants=10),
    Scenario("ten, steep valleys of 10 %", even(0.10), even(0.10), variants=10),
    Scenario("ten, seeds not correlated", *BOTH, correlation=0.0, variants=10),
    Scenario("ten, seeds correlated by 0.9", *BOTH, correlation=0.9, variants=10),
    Scenario("ten, noise with heavy tails (t, 3 degrees)", *BOTH, freedom=3.0, variants=10),
    Scenario("ten, one of them ten times as noisy", *BOTH, variants=10, noises=(10.0,)),
    Scenario("ten, three of them three times as noisy", *BOTH, variants=10, noises=(3.0, 3.0, 3.0)),
    Scenario(
        "ten, each noisier than the one before, up to nine times",
        *BOTH,
        variants=10,
        noises=tuple(3 ** (i / 4.5) for i in range(10)),
    ),
    Scenario("four, one of them ten times as noisy", *BOTH, variants=4, noises=(10.0,)),
    Scenario("four, all equally good", *BOTH, variants=4),
    Scenario("ten, five 1 % better: the others", *BOTH, effect=0.01, variants=10, better=5),
    Scenario("ten, all 1 % better: the first", *BOTH, effect=0.01, variants=10),
    Scenario("four, all 1 % better: the first", *BOTH, effect=0.01, variants=4),
)
"""Studies of several variants."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one draw."""

    effects: tuple[Effect, ...]
    runs: int
    """Runs of all variants."""


def findings(
    scenario: Scenario, study: StudySpec, draws: Sequence[int], *, processes: int = 1
) -> list[Finding]:
    """Return what the lab says of draws of a scenario, each of a number of its own."""
    return drawn(partial(_finding, scenario, study), draws, processes)


def drawn(work: Callable[[int], T], draws: Sequence[int], processes: int) -> list[T]:
    """Return what is found in each draw, by so many processes."""
    if processes == 1:
        return list(map(work, draws))
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(work, draws, chunksize=max(1, len(draws) // (8 * processes))))


def _finding(scenario: Scenario, study: StudySpec, draw: int) -> Finding:
    rng = np.random.default_rng(draw)
    # What a seed brings is drawn for more seeds than a study has.
    number = study.seed_numbers.stop
    arms = 1 + scenario.variants
    covariance = np.full((arms, arms), scenario.correlation)
    np.fill_diagonal(covariance, 1.0)
    shared = SEED_NOISE * rng.multivariate_normal(np.zeros(arms), covariance, number)
    anywhere = rng.uniform(-0.5, 0.5, arms)
    surfaces = {}
    for i, (effect, noise) in enumerate(zip([0.0, *scenario.effects], scenario.noise, strict=True)):
        valley = scenario.other if i else scenario.one
        bottom = anywhere[0 if scenario.together else i] if valley.at is None else valley.at
        bottoms = bottom + rng.normal(0, JITTER, number)
        level = LOWEST * (1 - effect) - lowest_mean(replace(valley, at=None))
        surfaces[f"{i}"] = _surface(
            valley, bottoms, level + shared[:, i], noise, scenario.freedom, rng
        )
    found = simulate(surfaces, study, plateau=LEARNT)
    return Finding(tuple(found.effects), found.runs)


def _surface(
    valley: Valley,
    bottoms: NDArray[np.float64],
    levels: NDArray[np.float64],
    noise: float,
    freedom: float,
    rng: np.random.Generator,
) -> Surface:
    def loss(seed: int, k: float) -> float:
        own = rng.normal() if math.isinf(freedom) else rng.standard_t(freedom) / freedom**0.5
        plain = float(valley.losses(np.asarray(k - bottoms[seed])))
        return min(plain + float(levels[seed]) + noise * float(own), INITIAL)

    return loss


STUDIES = {
    "confirm": StudySpec(),
}
"""By the name of their procedure."""


def table(
    draws: int, study: StudySpec, scenarios: Sequence[Scenario] = SCENARIOS, *, processes: int = 1
) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| rises to both sides of the bottom | draws | false wins, or found | 95 % bounds | "
        "interval holds the truth | mean error | inconclusive | seeds | runs |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for scenario in scenarios:
        found = findings(scenario, study, range(draws), processes=processes)
        yield _line(scenario, found)


def _line(scenario: Scenario, found: Sequence[Finding]) -> str:
    hits = wins(scenario, found)
    low, high = binomial_interval(hits, len(found))
    # Of several variants, these columns are of the last, which is the noisiest.
    last, effect = [f.effects[-1] for f in found], scenario.effects[-1]
    errors = np.array([one.mean for one in last]) / LOWEST + effect
    holds = [not excludes(one.interval, -effect * LOWEST) for one in last]
    cells = [
        scenario.name,
        f"{len(found):,}",
        f"{hits / len(found):.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{np.mean(holds):.1%}",
        f"{errors.mean():+.2%}",
        f"{np.mean([one.outcome == 'inconclusive' for one in last]):.0%}",
        f"{np.mean([len(one.seeds) for one in last]):.1f}",
        f"{np.mean([f.runs for f in found]):.1f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def wins(scenario: Scenario, found: Sequence[Finding]) -> int:
    """Return how many draws ended in a verdict of better or worse of any variant that is as good as the baseline; where
    none is, how many found the first to be better."""
    equal = [i for i, effect in enumerate(scenario.effects) if not effect]
    if not equal:
        return sum(f.effects[0].outcome == "better" for f in found)
    return sum(any(f.effects[i].outcome in ("better", "worse") for i in equal) for f in found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="How often the lab errs, on losses that are simulated."
    )
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--procedure", choices=STUDIES, default="confirm")
    parser.add_argument("--seeds", type=int, help="by default those of the procedure")
    parser.add_argument(
        "--ends",
        type=int,
        nargs="+",
        metavar="PAIRS",
        help="after how many pairs the study ends, and ends again with pairs that are added, as 9 15 24",
    )
    parser.add_argument(
        "--many", action="store_true", help="studies of several variants instead of one"
    )
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    study = STUDIES[options.procedure]
    if options.seeds:
        study = study.model_copy(update={"seeds": options.seeds})
    if options.ends:
        study = study.model_copy(update={"seeds": options.ends[0], "ends": tuple(options.ends)})
    scenarios = MANY if options.many else SCENARIOS
    for line in table(options.draws, study, scenarios, processes=options.processes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
