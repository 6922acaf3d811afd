"""The compute multiplier: how much compute the baseline needs for the loss that a variant has, read horizontally
between the curves of loss against tokens, whose points are ends of runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from archwright.lab.results import Horizon, Interval

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


def drops(losses: Sequence[Sequence[float]]) -> Drops:
    """Return the falls between horizons of runs whose losses, of each seed from the shortest horizon on, are given."""
    falls = -np.diff(np.asarray(losses, np.float64), axis=1)
    number = len(falls)
    error = (
        falls.std(axis=0, ddof=1) / math.sqrt(number) if number > 1 else np.zeros(falls.shape[1])
    )
    return Drops(falls.mean(axis=0), error, number)


def multiplier_in_tokens(
    difference: float,
    interval: Interval,
    shares: Sequence[float],
    baseline: Drops,
    variant: Drops,
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


def rise_before(share: float, shares: Sequence[float], falls: Drops) -> float:
    """Return how much higher the loss was after a share of the whole horizon, by the curve of the last stretch; NaN
    beyond that, and as far on the other side of the end."""
    steps = np.diff(np.log([*shares, 1.0]))[::-1]
    before, backwards = -math.log(share), falls.mean[::-1]
    if not abs(before) <= steps[0]:
        return math.nan
    rate = float(_steepening(backwards[:, None], steps)[0, 0])
    if abs(rate) < 1e-9:
        return float(backwards[0]) * before / float(steps[0])
    return float(backwards[0]) * math.expm1(rate * before) / math.expm1(rate * float(steps[0]))


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
    """Return, for each horizon and draw, at which rate in ln tokens the curve gets steeper backwards: by its fall and
    the next one's before it, the exponent of a power law; 0 where it is not known."""
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
    mean, number = float(np.mean(differences)), len(differences)
    error = float(np.std(differences, ddof=1)) / math.sqrt(number)
    half = float(stats.t.ppf(0.975, number - 1)) * error
    return Horizon(tokens, mean, mean - half, mean + half, number)
