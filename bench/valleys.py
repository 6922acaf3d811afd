"""How often the lab errs where variants have unequal valleys: its whole procedure on simulated losses.

    python -m bench.valleys

Two variants have equal lowest losses, at learning rates that lie anywhere between those of the grid, so that
whatever is found is false. Half steps, tuning, intervals and outcome come from the code that judges real studies.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from archwright.lab.results import Effect
from archwright.lab.sweep import plan_sweep, replicate
from archwright.lab.verdict import effects, excludes
from bench.calibration import ARMS, STUDY, binomial_interval, run_at

LOWEST = 4.19
"""The loss at the bottom of every valley, in nats per token; this and the noise are those of the recorded pool."""
INITIAL = 6.93
"""Loss that a diverged run counts as."""
SEED_NOISE = 0.019
"""Standard deviation of what all runs of a seed share, in nats."""
CORRELATION = 0.5
"""Of that between the two variants, which share initial values and data."""
RUN_NOISE = 0.013
"""Standard deviation of what a run has for itself, in nats."""
JITTER = 0.08
"""Standard deviation of where a seed's bottom lies, in steps of the grid."""
HALF_STEPS = 20
"""How far from the start losses are drawn, in half steps: farther than a window may move."""


@dataclass(frozen=True)
class Valley:
    """Losses over the logarithm of the rate: LOWEST (1 + rise x²), x steps away from the bottom."""

    left: float
    right: float
    """The rise to either side, as a share of the lowest loss at one step away."""
    wall: float = math.inf
    """How many steps above the bottom a wall stands, on whose other side losses are `above` nats higher."""
    above: float = 0.5
    at: float | None = None
    """Where the bottom lies, in steps from the start; None: anywhere between -1/2 and 1/2."""


@dataclass(frozen=True)
class Scenario:
    """Two valleys that are compared."""

    name: str
    one: Valley
    other: Valley
    seeds: int = 5
    together: bool = False
    """Whether both have their bottom at one place."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one draw."""

    effect: Effect
    runs: int
    """Runs of both variants."""


def _even(rise: float, at: float | None = None) -> Valley:
    return Valley(rise, rise, at=at)


USUAL = 0.028
"""The rise of the recorded pool."""
WALLED = Valley(USUAL, USUAL, wall=0.6)

SCENARIOS = (
    Scenario("the same valley, 2.8 %", _even(USUAL), _even(USUAL), together=True),
    Scenario("2.8 % and 2.8 %", _even(USUAL), _even(USUAL)),
    Scenario("6 % and 6 %", _even(0.06), _even(0.06)),
    Scenario("10 % and 10 %", _even(0.10), _even(0.10)),
    Scenario("20 % and 20 %", _even(0.20), _even(0.20)),
    Scenario("1 % and 6 %", _even(0.01), _even(0.06)),
    Scenario("2.8 % and 10 %", _even(USUAL), _even(0.10)),
    Scenario("2.8 % and 10 %", _even(USUAL), _even(0.10), seeds=10),
    Scenario("2.8 % at the start, 10 % 0.4 steps above", _even(USUAL, 0.0), _even(0.10, 0.4)),
    Scenario("3 % left and 12 % right, 3 %", Valley(0.03, 0.12), _even(0.03)),
    Scenario("a wall 0.6 steps above one", _even(USUAL), WALLED),
    Scenario("a wall 0.6 steps above both", WALLED, WALLED),
    Scenario(
        "one diverges 0.9 steps above",
        _even(USUAL),
        Valley(USUAL, USUAL, wall=0.9, above=INITIAL),
    ),
)


def findings(scenario: Scenario, draws: int, seed: int = 0) -> list[Finding]:
    """Return what the lab says of many draws of a scenario."""
    rng = np.random.default_rng(seed)
    return [_finding(scenario, rng) for _ in range(draws)]


def _finding(scenario: Scenario, rng: np.random.Generator) -> Finding:
    """Draw two variants, sweep every seed as a study does, and judge."""
    seeds, anywhere = range(scenario.seeds), rng.uniform(-0.5, 0.5, 2)
    covariance = SEED_NOISE**2 * np.array([[1, CORRELATION], [CORRELATION, 1]])
    seed_shifts = rng.multivariate_normal([0, 0], covariance, scenario.seeds)
    replicates, edges, number = [], [], 0
    for i, (name, valley) in enumerate(zip(ARMS, (scenario.one, scenario.other), strict=True)):
        bottom = anywhere[0 if scenario.together else i] if valley.at is None else valley.at
        table = _losses(valley, bottom, seed_shifts[:, i], rng)
        losses: dict[tuple[int, float], float] = {}
        while wanted := plan_sweep(losses, seeds, refine=True).wanted:
            losses |= {run: table[run] for run in wanted}
        sweep = plan_sweep(losses, seeds, refine=True)
        edges += [name] * sweep.at_boundary
        number += len(losses)
        for s in sweep.seeds:
            replicates.append(replicate([run_at(name, s, k, losses) for k in sweep.window]))
    return Finding(effects(replicates, STUDY, ARMS[0], edges=edges)[0], number)


def _losses(
    valley: Valley, bottom: float, seed_shifts: np.ndarray, rng: np.random.Generator
) -> dict[tuple[int, float], float]:
    """Return the loss of each (seed, k) of a variant at every rate that a sweep may come to."""
    k = np.arange(-HALF_STEPS, HALF_STEPS + 1) / 2
    x = k - bottom - rng.normal(0, JITTER, (len(seed_shifts), 1))
    losses = LOWEST * (1 + np.where(x < 0, valley.left, valley.right) * x**2)
    losses += valley.above * (x > valley.wall)
    losses += seed_shifts[:, None] + rng.normal(0, RUN_NOISE, losses.shape)
    losses = np.minimum(losses, INITIAL)
    return {(s, float(at)): float(row[j]) for s, row in enumerate(losses) for j, at in enumerate(k)}


def table(draws: int, scenarios: Sequence[Scenario] = SCENARIOS) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield (
        "| rises to both sides of the bottom | seeds | draws | false wins | 95 % bounds | interval holds 0 "
        "| mean error | mean size of errors | runs |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for scenario in scenarios:
        yield _line(scenario, findings(scenario, draws))


def _line(scenario: Scenario, found: Sequence[Finding]) -> str:
    low, high = binomial_interval(false_wins(found), len(found))
    errors = np.array([f.effect.mean for f in found]) / LOWEST
    holds = np.mean([not excludes(f.effect.interval, 0.0) for f in found])
    cells = [
        scenario.name,
        scenario.seeds,
        len(found),
        f"{false_wins(found) / len(found):.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{holds:.1%}",
        f"{errors.mean():+.2%}",
        f"{np.abs(errors).mean():.2%}",
        f"{np.mean([f.runs for f in found]):.1f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def false_wins(found: Sequence[Finding]) -> int:
    """Return how many draws ended in a verdict of better or worse."""
    return sum(f.effect.outcome in ("better", "worse") for f in found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description="How often the lab errs where variants have unequal valleys."
    )
    parser.add_argument("--draws", type=int, default=1000)
    for line in table(parser.parse_args().draws):
        print(line, flush=True)


if __name__ == "__main__":
    main()
