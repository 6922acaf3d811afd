"""Error rates of the lab: its procedure on simulated losses of variants whose truth is known.

    python -m bench.replay --draws 3000
    python -m bench.replay --draws 3000 --surfaces held-out

Two variants are equally good, each at its best learning rate, or differ by a planted share of the loss. Constants of
the procedure were chosen on the surfaces TUNING; the surfaces HELD_OUT judge them. Wanted runs, learning rates, looks
and outcomes come from the code of real studies (`bench.simulate`).
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from archwright.lab.procedure.verdict import excludes
from archwright.lab.results import Effect
from archwright.spec.study_spec import StudySpec
from bench.simulate import Surface, simulate

T = TypeVar("T")
LOWEST = 4.19
"""The loss at the bottom of every valley, in nats per token; this and the noise are those of a recorded pool."""
INITIAL = 6.93
"""Loss that a diverged run counts as."""
UNIGRAM, LEARNT = 6.0, 5.2
"""Loss on a plateau, where a model knows only the frequencies of tokens; and the loss below which more was learnt."""
SEED_NOISE = 0.019
"""Standard deviation shared by all runs of a seed, in nats."""
RUN_NOISE = 0.013
"""Standard deviation of a single run, in nats."""
JITTER = 0.08
"""Standard deviation of the place of a seed's bottom, in steps of the grid."""
SMALL = 0.32
"""Times the noise above, differences of pairs deviate by 0.2 % of the loss."""
TEN_CHOICES = 0.48
"""Times the noise above is that of docs/ten-choices/0.2M: differences deviate by 0.3 % of the loss, in the median."""
QUANTILES = stats.norm.ppf((np.arange(200) + 0.5) / 200).tolist()
POWERS = (0.0025, 0.005, 0.01, 0.02)
"""Planted effects of the columns of power, as shares of the loss."""


@dataclass(frozen=True)
class Valley:
    """Losses over the logarithm of the rate: LOWEST (1 + rise |x|^power), x steps away from the bottom."""

    left: float
    right: float
    """Rise to either side, as a share of the lowest loss at one step away."""
    wall: float = math.inf
    """Steps above the bottom of a wall, beyond which losses are `above` nats higher."""
    above: float = 0.5
    plateau: float = math.inf
    """Steps above the bottom beyond which nothing is learnt."""
    at: float | None = None
    """Place of the bottom, in steps from the start; None: anywhere between -1/2 and 1/2."""
    power: float = 2.0
    """1 for a kink."""
    spikes: float = 0.0
    """Share of the runs that end `spike` nats higher."""
    spike: float = 0.3
    spikes_from: float = -math.inf
    """Steps above the bottom where spikes begin; one step further all of the share is reached, and beyond it more."""

    def loss(self, x: float) -> float:
        """Return the loss at so many steps from the bottom, without noise and spikes."""
        found = LOWEST * (1 + (self.left if x < 0 else self.right) * abs(x) ** self.power)
        found += self.above * (x > self.wall)
        return min(max(found, UNIGRAM) if x > self.plateau else found, INITIAL)

    def spiking(self, x: float) -> float:
        """Return the probability of a spike at so many steps from the bottom."""
        if math.isinf(self.spikes_from):
            return self.spikes
        return min(1.0, self.spikes * max(0.0, x - self.spikes_from))


def mean_loss(valley: Valley, jitter: float, x: float) -> float:
    """Return the mean loss over seeds, spikes included, x steps above the mean of their bottoms."""
    away = [x - jitter * z for z in QUANTILES]
    return fmean(valley.loss(d) + valley.spike * valley.spiking(d) for d in away)


@cache
def lowest_mean(valley: Valley, jitter: float) -> float:
    """Return the lowest mean loss of any one rate: variants with equal ones are equally good."""
    return min(mean_loss(valley, jitter, x) for x in np.linspace(-0.6, 0.6, 121))


Shape = Literal["normal", "t", "exp+", "exp-", "logn+", "logn-"]
"""Distribution of a run's noise: normal, Student's t with 3 degrees, exponential or lognormal with a long tail upwards
or downwards."""


@dataclass(frozen=True)
class Scenario:
    """A baseline and the variants that are compared with it."""

    name: str
    one: Valley
    other: Valley
    together: bool = False
    """Whether both have their bottom at one place."""
    correlation: float = 0.5
    """Between the variants, which share initial values and data, of a seed's noise."""
    scale: float = 1.0
    """Factor of all noise but the jitter."""
    noises: tuple[float, ...] = (1.0,)
    """Factors of the noise of single runs: of the baseline, then of the variants; the last one of all others."""
    shapes: tuple[Shape, Shape] = ("normal", "normal")
    """Of the baseline and of the variants."""
    jitter: float = JITTER
    seed_slope: float = 0.0
    """Standard deviation of a slope that a seed adds to the valley, in nats per step."""
    effect: float = 0.0
    """Share of the loss by which the other is better."""
    variants: int = 1
    """Number of variants, each with a bottom and noise of its own."""
    equal_but_for_spikes: bool = False
    """Whether variants are equal without their spikes, which make them worse; else with them."""
    powers: bool = False
    """Whether the table has its power."""
    smooth: bool = False
    """Whether it counts for the pooled share of false wins of smooth surfaces."""


def even(rise: float, at: float | None = None) -> Valley:
    """Return a valley that rises alike to both sides."""
    return Valley(rise, rise, at=at)


USUAL = 0.028
"""The rise of the recorded pool."""
WALLED = Valley(USUAL, USUAL, wall=0.6)
MEASURED = Valley(0.036, 0.012, wall=1.1)
BOTH = (even(USUAL), even(USUAL))
SIX = (even(0.06), even(0.06))


def _spiky(valley: Valley, share: float, height: float) -> Valley:
    return replace(valley, spikes=share, spike=height)


SMOOTH = (
    Scenario("the same valley, 2.8 %", *BOTH, together=True),
    Scenario("2.8 % and 2.8 %", *BOTH, powers=True),
    Scenario("6 % and 6 %", *SIX, powers=True),
    Scenario("10 % and 10 %", even(0.10), even(0.10)),
    Scenario("20 % and 20 %", even(0.20), even(0.20)),
    Scenario("0.5 % and 2.8 %", even(0.005), even(USUAL)),
    Scenario("10 % and 0.5 %", even(0.10), even(0.005)),
    Scenario("1 % and 6 %", even(0.01), even(0.06)),
    Scenario("2.8 % and 20 %", even(USUAL), even(0.20)),
    Scenario("3 % left and 12 % right, 3 %", Valley(0.03, 0.12), even(0.03)),
    Scenario("12 % left and 3 % right, 3 %", Valley(0.12, 0.03), even(0.03)),
    Scenario("one 3 steps above the start", even(USUAL), even(USUAL, 3.0)),
    Scenario("6 %, one 2.5 steps below the start", even(0.06), even(0.06, -2.5)),
    Scenario("2.8 %, seeds not correlated", *BOTH, correlation=0.0),
    Scenario("2.8 %, seeds correlated by 0.9", *BOTH, correlation=0.9),
)
TUNING = (
    *(replace(scenario, smooth=True) for scenario in SMOOTH),
    Scenario("a wall 0.6 steps above one", even(USUAL), WALLED),
    Scenario("a wall 0.6 steps above both", WALLED, WALLED),
    Scenario("one diverges 0.9 steps above", even(USUAL), replace(WALLED, wall=0.9, above=INITIAL)),
    Scenario(
        "a plateau 1 step above one, 3 steps below the start",
        even(USUAL),
        Valley(USUAL, USUAL, plateau=1.0, at=-3.0),
    ),
    Scenario("as measured: 3.6 % left, 1.2 % right, a wall", MEASURED, MEASURED),
    Scenario("noise with heavy tails (t, 3 degrees)", *BOTH, shapes=("t", "t")),
    Scenario("run noise x 2, 1 %", even(0.01), even(0.01), noises=(2.0,)),
    Scenario("run noise x 2, 6 %", *SIX, noises=(2.0,)),
    Scenario("run noise x 2 in the baseline", *BOTH, noises=(2.0, 1.0)),
    Scenario("bottoms move 0.16 steps, 6 %", *SIX, jitter=0.16),
    Scenario("bottoms move 0.16 steps, 6 %, small noise", *SIX, jitter=0.16, scale=SMALL),
    Scenario("bottoms move 0.2 steps, 2.8 %", *BOTH, jitter=0.2),
    Scenario("one run in twenty 0.2 nats high in the variant", BOTH[0], _spiky(BOTH[1], 0.05, 0.2)),
    Scenario(
        "one run in twenty 0.2 nats high in both", *(_spiky(valley, 0.05, 0.2) for valley in BOTH)
    ),
    Scenario("four, all equally good", *BOTH, variants=4),
)
"""Surfaces on which the constants of the procedure were chosen."""

HELD_OUT = (
    Scenario("ten-choices: noise of 0.3 %, 2.8 %", *BOTH, scale=TEN_CHOICES, powers=True),
    Scenario("small noise, 2.8 %", *BOTH, scale=SMALL, powers=True),
    Scenario("small noise, 6 %", *SIX, scale=SMALL, powers=True),
    Scenario("small noise, 2.8 % and 10 %", even(USUAL), even(0.10), scale=SMALL),
    Scenario("4 % and 1.5 %", even(0.04), even(0.015), smooth=True),
    Scenario("8 % and 8 %", even(0.08), even(0.08), smooth=True),
    Scenario("2.8 %, seeds correlated by -0.5", *BOTH, correlation=-0.5, smooth=True),
    Scenario(
        "10 % left and 1.5 % right, and its mirror",
        Valley(0.1, 0.015),
        Valley(0.015, 0.1),
        scale=SMALL,
    ),
    Scenario("kinks of 3 %", *(replace(valley, power=1.0) for valley in (even(0.03), even(0.03)))),
    Scenario("fourth powers of 6 %", *(replace(valley, power=4.0) for valley in SIX)),
    Scenario("run noise x 3, 0.5 %", even(0.005), even(0.005), noises=(3.0,)),
    Scenario("run noise x 3, 1 %", even(0.01), even(0.01), noises=(3.0,)),
    Scenario("run noise x 3, 2.8 %", *BOTH, noises=(3.0,), powers=True),
    Scenario("run noise x 3 in the baseline", *BOTH, noises=(3.0, 1.0)),
    Scenario("run noise x 3 in the variant", *BOTH, noises=(1.0, 3.0)),
    Scenario("exponential tails upwards in both", *BOTH, shapes=("exp+", "exp+")),
    Scenario("exponential tails downwards in the variant", *BOTH, shapes=("normal", "exp-")),
    Scenario("lognormal tails upwards in the variant", *BOTH, shapes=("normal", "logn+")),
    Scenario("lognormal tails downwards in the variant", *BOTH, shapes=("normal", "logn-")),
    Scenario("one run in ten 0.3 nats high in the variant", BOTH[0], _spiky(BOTH[1], 0.1, 0.3)),
    Scenario(
        "one run in ten 0.3 nats high in both", *(_spiky(valley, 0.1, 0.3) for valley in BOTH)
    ),
    Scenario(
        "one run in ten 0.3 nats high in the variant, the others equal",
        BOTH[0],
        _spiky(BOTH[1], 0.1, 0.3),
        equal_but_for_spikes=True,
    ),
    Scenario(
        "spikes ever likelier 0.3 steps above",
        BOTH[0],
        replace(BOTH[1], spikes=0.5, spike=1.0, spikes_from=0.3),
    ),
    Scenario("bottoms move 0.25 steps, 2.8 %", *BOTH, jitter=0.25),
    Scenario("bottoms move 0.25 steps, 6 %", *SIX, jitter=0.25),
    Scenario(
        "bottoms move 0.25 steps, 8 %, small noise",
        even(0.08),
        even(0.08),
        jitter=0.25,
        scale=SMALL,
    ),
    Scenario("a seed's slope of 0.05 nats a step", *BOTH, seed_slope=0.05),
    Scenario("twelve, all equally good", *BOTH, variants=12, powers=True),
    Scenario("twelve, small noise", *BOTH, variants=12, scale=SMALL, powers=True),
    Scenario("twelve, lognormal tails downwards", *BOTH, variants=12, shapes=("normal", "logn-")),
    Scenario("twelve, six with run noise x 3", *BOTH, variants=12, noises=(*[1.0] * 7, 3.0)),
    Scenario("twelve, bottoms move 0.25 steps, 6 %", *SIX, variants=12, jitter=0.25),
)
"""Surfaces that no constant was chosen on."""
SETS = {"tuning": TUNING, "held-out": HELD_OUT}


@dataclass(frozen=True)
class Finding:
    """The outcome of one draw."""

    effects: tuple[Effect, ...]
    runs: int
    """Runs of all variants."""


def findings(
    scenario: Scenario, study: StudySpec, draws: Sequence[int], *, processes: int = 1
) -> list[Finding]:
    """Return the outcomes of draws of a scenario, each from its own random numbers."""
    return drawn(partial(_finding, scenario, study), draws, processes)


def drawn(work: Callable[[int], T], draws: Sequence[int], processes: int) -> list[T]:
    """Return the result of each draw, by so many processes."""
    if processes == 1:
        return list(map(work, draws))
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(work, draws, chunksize=max(1, len(draws) // (8 * processes))))


def surfaces_of(scenario: Scenario, draw: int, seeds: int) -> dict[str, Surface]:
    """Draw the surfaces of a baseline and its variants."""
    rng = np.random.default_rng(draw)
    arms = 1 + scenario.variants
    covariance = np.full((arms, arms), scenario.correlation)
    np.fill_diagonal(covariance, 1.0)
    shared = SEED_NOISE * scenario.scale
    shared = shared * rng.multivariate_normal(np.zeros(arms), covariance, seeds)
    anywhere = rng.uniform(-0.5, 0.5, arms)
    surfaces = {}
    for i in range(arms):
        valley = scenario.other if i else scenario.one
        bottom = anywhere[0 if scenario.together else i] if valley.at is None else valley.at
        noise = scenario.scale * RUN_NOISE * scenario.noises[min(i, len(scenario.noises) - 1)]
        level = LOWEST * (1 - scenario.effect * (i > 0))
        judged = replace(valley, at=None)
        if scenario.equal_but_for_spikes:
            judged = replace(judged, spikes=0.0)
        surfaces[f"{i}"] = _surface(
            valley,
            bottom,
            bottom + rng.normal(0, scenario.jitter, seeds),
            level - lowest_mean(judged, scenario.jitter) + shared[:, i],
            rng.normal(0, scenario.seed_slope, seeds),
            lambda i=i, noise=noise: noise * _noise(scenario.shapes[i > 0], rng),
            rng,
        )
    return surfaces


def _noise(shape: Shape, rng: np.random.Generator) -> float:
    """Draw noise of mean 0 and standard deviation 1."""
    if shape == "normal":
        return float(rng.normal())
    if shape == "t":
        return float(rng.standard_t(3.0)) / 3.0**0.5
    sign = 1.0 if shape.endswith("+") else -1.0
    if shape.startswith("exp"):
        return sign * (float(rng.exponential()) - 1)
    mean, deviation = math.exp(0.5), math.exp(0.5) * (math.e - 1) ** 0.5
    return sign * (float(rng.lognormal()) - mean) / deviation


def _surface(
    valley: Valley,
    bottom: float,
    bottoms: NDArray[np.float64],
    levels: NDArray[np.float64],
    slopes: NDArray[np.float64],
    noise: Callable[[], float],
    rng: np.random.Generator,
) -> Surface:
    def loss(place: int, k: float) -> float:
        x = k - float(bottoms[place])
        found = valley.loss(x) + float(levels[place]) + float(slopes[place]) * (k - bottom)
        if valley.spikes and rng.random() < valley.spiking(x):
            found += valley.spike
        return min(found + noise(), INITIAL)

    return loss


def _finding(scenario: Scenario, study: StudySpec, draw: int) -> Finding:
    surfaces = surfaces_of(scenario, draw, study.tuning_seeds + len(study.seed_numbers))
    found = simulate(surfaces, study, plateau=LEARNT)
    return Finding(tuple(found.effects), found.runs)


def wins(scenario: Scenario, found: Sequence[Finding]) -> int:
    """Return the draws with a false win: any variant better or worse; if all are better, those that found the first."""
    if scenario.effect:
        return sum(f.effects[0].outcome == "better" for f in found)
    return sum(any(e.outcome in ("better", "worse") for e in f.effects) for f in found)


def binomial_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return a two-sided interval of a proportion that covers at least `level`.

    Source: Clopper and Pearson, 1934, The use of confidence or fiducial limits.
    """
    found = stats.binomtest(successes, trials).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)


def table(
    draws: int, study: StudySpec, scenarios: Sequence[Scenario], *, processes: int = 1
) -> Iterator[str]:
    """Yield the lines of a Markdown table: false wins of each scenario, and of all smooth ones together.

    Studies of several variants have a quarter of the draws, columns of power a third of those of their row.
    """
    powers = " | ".join(f"{effect:.2%} found" for effect in POWERS)
    yield (
        "| surfaces | draws | false wins | at most | interval holds the truth | equivalent | pairs | runs | "
        f"{powers} |"
    )
    yield "|---|" + "---:|" * (7 + len(POWERS))
    smooth = [0, 0]
    for scenario in scenarios:
        number = max(1, draws // 4) if scenario.variants > 1 else draws
        found = findings(scenario, study, range(number), processes=processes)
        if scenario.smooth:
            smooth = [smooth[0] + wins(scenario, found), smooth[1] + len(found)]
        power = [""] * len(POWERS)
        if scenario.powers:
            better = [replace(scenario, effect=effect) for effect in POWERS]
            fewer = range(max(1, number // 3))
            power = [
                f"{wins(one, findings(one, study, fewer, processes=processes)) / len(fewer):.1%}"
                for one in better
            ]
        yield _line(scenario, found, power)
    if smooth[1]:
        most = binomial_interval(*smooth)[1]
        cells = ["all smooth ones", f"{smooth[1]:,}", f"{smooth[0] / smooth[1]:.1%}", f"{most:.1%}"]
        yield f"| {' | '.join([*cells, *[''] * (4 + len(POWERS))])} |"


def _line(scenario: Scenario, found: Sequence[Finding], power: Sequence[str]) -> str:
    hits = wins(scenario, found)
    effects = [effect for one in found for effect in one.effects]
    holds = [not excludes(one.interval, -scenario.effect * LOWEST) for one in effects]
    cells = [
        scenario.name,
        f"{len(found):,}",
        f"{hits / len(found):.1%}",
        f"{binomial_interval(hits, len(found))[1]:.1%}",
        f"{np.mean(holds):.1%}",
        f"{np.mean([one.outcome == 'equivalent' for one in effects]):.0%}",
        f"{np.mean([len(one.seeds) for one in effects]):.1f}",
        f"{np.mean([f.runs for f in found]):.1f}",
        *power,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="How often the lab errs, on losses that are simulated."
    )
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--surfaces", choices=SETS, help="by default both sets, one after another")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--seeds", type=int, default=StudySpec().seeds)
    parser.add_argument(
        "--ends",
        type=int,
        nargs="+",
        metavar="PAIRS",
        help="after how many pairs the study ends, and ends again with pairs that are added, as 10 16 25",
    )
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    study = StudySpec(seeds=options.seeds)
    if options.ends:
        study = study.model_copy(update={"seeds": options.ends[0], "ends": tuple(options.ends)})
    for name in [options.surfaces] if options.surfaces else SETS:
        print(f"\n{name}\n", flush=True)
        rows = [scenario for scenario in SETS[name] if options.rows in scenario.name]
        for line in table(options.draws, study, rows, processes=options.processes):
            print(line, flush=True)


if __name__ == "__main__":
    main()
