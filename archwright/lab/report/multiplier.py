"""The compute multiplier: how much compute the baseline needs for the loss that a variant has, read horizontally
between the curves of loss against tokens, whose points are ends of runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from archwright.lab.design.plan import horizons
from archwright.lab.procedure.statistics import t_interval
from archwright.lab.results import Effect, Horizon, Interval, Multiplier, Replicate, compared_of
from archwright.lab.running.scheduler import Execution

Floats = NDArray[np.float64]

DRAWS = 10_000
"""Of an interval; the same ones every time."""
STEEPEST = 2.0
"""Exponent of a power law beyond which a fall is noise."""


@dataclass(frozen=True)
class Drops:
    """How much the loss of one variant falls from each horizon to the next: means over seeds and their errors."""

    mean: Floats
    error: Floats
    """Standard errors."""
    seeds: int


def multiplier_of(
    effect: Effect, replicates: Sequence[Replicate], execution: Execution
) -> Multiplier | None:
    """Return how much compute a difference is worth, None where too few pairs have shorter horizons."""
    plan = execution.plan
    shares, names = horizons(plan.study), (plan.baseline.name, effect.variant)
    whole = {(r.variant, r.seed): r.loss for r in replicates}
    halved = execution.by_halves
    known = {
        (cell.variant, cell.seed, cell.share): execution.loss(run, halved)
        for cell, run in execution.shorter.items()
        if not (run.failed or run.diverged)
    }
    seeds = [s for s in effect.seeds if all((n, s, h) in known for n in names for h in shares)]
    if not shares or len(seeds) < 2:
        return None
    rows = {
        n: [[*(known[n, s, share] for share in shares), whole[n, s]] for s in seeds] for n in names
    }
    baseline, variant = (drops(rows[name]) for name in names)
    tokens, low, high = multiplier_in_tokens(
        effect.mean, effect.interval, shares, baseline, variant
    )
    base, arm = (plan.arms[name] for name in names)
    pace = {name: _tokens_per_second(name, execution) for name in names}
    differences = np.subtract(rows[effect.variant], rows[plan.baseline.name])
    return Multiplier(
        tokens=tokens,
        low=low,
        high=high,
        most=1 / shares[0],
        flops=base.counts.flops_per_token / arm.counts.flops_per_token,
        seconds=pace[effect.variant] / pace[plan.baseline.name],
        horizons=[
            *(
                horizon(plan.steps_of(share) * base.run.tokens_per_step, differences[:, i].tolist())
                for i, share in enumerate(shares)
            ),
            Horizon(
                plan.tokens_per_run,
                effect.mean,
                effect.interval.low,
                effect.interval.high,
                len(effect.seeds),
            ),
        ],
    )


def _tokens_per_second(name: str, execution: Execution) -> float:
    """Return the median over a variant's runs, of the processor."""
    runs = [run for cell, run in execution.results.items() if cell.variant == name]
    speeds = [r.tokens_per_second for r in compared_of(runs, execution.plan.study)]
    return median([speed for speed in speeds if speed > 0] or [math.nan])


def drops(losses: Sequence[Sequence[float]]) -> Drops:
    """Return the falls between horizons of runs whose losses, of each seed from the shortest horizon on, are given."""
    falls = -np.diff(np.asarray(losses, np.float64), axis=1)
    number = len(falls)
    error = (
        falls.std(axis=0, ddof=1) / math.sqrt(number) if number > 1 else np.zeros(falls.shape[1])
    )
    return Drops(falls.mean(axis=0), error, number)


def multiplier_in_tokens(
    difference: float, interval: Interval, shares: Sequence[float], baseline: Drops, variant: Drops
) -> tuple[float, float, float]:
    """Return how many times the variant's tokens the baseline needs for the same loss, and the 95 % interval.

    The loss is the higher one at the whole horizon, which both reach. The curve of the better one tells how much
    earlier it had that loss, at most by the whole horizon over the shortest. Where it falls by d between two horizons,
    h apart in ln tokens, it lies d (exp(r s) - 1) / (exp(r h) - 1) higher at s before the later one; r, the rate at
    which it gets steeper, follows from this fall and the one before. A power law with an irreducible loss is exactly
    so where horizons are equally far apart. The interval is of draws of the difference, as wide as its own interval,
    and of the falls.

    Args:
        difference: variant minus baseline at the whole horizon.
        shares: of the whole horizon, the shortest first, the whole not among them.
    """
    steps = np.diff(np.log([*shares, 1.0]))[::-1]
    value = _read(np.array([difference]), steps, baseline.mean[None], variant.mean[None])
    rng = np.random.default_rng(0)
    half = (interval.high - interval.low) / 2 / stats.norm.ppf(0.975)
    drawn = difference + half * rng.standard_normal(DRAWS)
    falls = [
        d.mean
        + d.error * stats.t.rvs(max(1, d.seeds - 1), size=(DRAWS, len(steps)), random_state=rng)
        for d in (baseline, variant)
    ]
    low, high = np.quantile(_read(drawn, steps, *falls), [0.025, 0.975])
    return float(value[0]), float(low), float(high)


def _read(differences: Floats, steps: Floats, baseline: Floats, variant: Floats) -> Floats:
    """Return the factors of many draws.

    Args:
        differences: [draws]. steps: between horizons in ln tokens, the last first: [horizons]. baseline, variant: their
        falls, the first horizon first: [draws, horizons].
    """
    # [horizons, draws], the last horizon first
    falls = np.where((differences < 0)[:, None], variant, baseline)[:, ::-1].T
    steepening = _steepening(falls, steps)
    left, back = np.abs(differences), np.zeros(len(differences))
    for step, fall, rate in zip(steps, falls, steepening, strict=True):
        # A curve that does not fall reaches the loss nowhere.
        share = np.where(fall > 0, np.clip(left / np.where(fall > 0, fall, 1.0), 0, 1), left > 0)
        straight = np.abs(rate) < 1e-9
        rate = np.where(straight, 1.0, rate)
        bent = np.log1p(share * np.expm1(rate * step)) / rate
        back += np.where(straight, share * step, bent)
        left = np.where(share < 1, 0.0, left - np.maximum(fall, 0))
    result: Floats = np.exp(np.where(differences < 0, back, -back))
    return result


def _steepening(falls: Floats, steps: Floats) -> Floats:
    """Return the exponent of each power law, from a fall and the one before; 0 if unknown."""
    found = np.zeros_like(falls)
    for i in range(len(steps) - 1):
        after, before = falls[i] / steps[i], falls[i + 1] / steps[i + 1]
        both = (after > 0) & (before > 0)
        ratio = np.log(np.where(both, before, 1.0) / np.where(both, after, 1.0))
        found[i] = np.clip(ratio / ((steps[i] + steps[i + 1]) / 2), -STEEPEST, STEEPEST)
    if len(steps) > 1:
        found[-1] = found[-2]
    return found


def horizon(tokens: int, differences: Sequence[float]) -> Horizon:
    """Return the mean difference of some pairs at a horizon, with Student's interval."""
    found = t_interval(differences)
    return Horizon(tokens, fmean(differences), found.low, found.high, len(differences))
