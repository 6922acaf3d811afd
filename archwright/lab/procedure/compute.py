"""Differences of loss as compute, read horizontally between curves of loss against tokens.

The points of a curve are ends of runs of several lengths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from archwright.lab.procedure.constants import LEAST_PAIRS, PAIRS
from archwright.lab.results import Interval

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
    difference: float, interval: Interval, shares: Sequence[float], baseline: Drops, variant: Drops
) -> tuple[float, float, float]:
    """Return how many times the variant's tokens the baseline needs for the same loss, and the 95 % interval.

    The loss is the higher one at the whole horizon, which both reach. The curve of the better one tells how much
    earlier it had that loss, at most by the whole horizon over the shortest: nothing is read beyond. Where it falls by
    d between two horizons, h apart in ln tokens, it lies d (exp(r s) - 1) / (exp(r h) - 1) higher at s before the later
    one; r, the rate at which it gets steeper, follows from this fall and the one before. A power law with an
    irreducible loss is exactly so where horizons are equally far apart. The interval is of draws of the difference,
    around the naive mean and as wide as its own interval, and of the falls.

    Args:
        difference: variant minus baseline at the whole horizon, as it is estimated.
        shares: of the whole horizon, the shortest first, the whole not among them.
    """
    steps = np.diff(np.log([*shares, 1.0]))[::-1]
    value = _read(np.array([difference]), steps, baseline.mean[None], variant.mean[None])
    rng = np.random.default_rng(0)
    half = (interval.high - interval.low) / 2 / stats.norm.ppf(0.975)
    drawn = (interval.high + interval.low) / 2 + half * rng.standard_normal(DRAWS)
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


def slope_at_end(curves: Mapping[int, Sequence[float]], shares: Sequence[float]) -> float | None:
    """Return the fall of the loss per e-fold of tokens at the whole horizon; None if it does not fall.

    None also of fewer than LEAST_PAIRS seeds: the error of one is not known.

    Args:
        curves: Losses of each seed, from the shortest horizon on.
        shares: Of the whole horizon, the shortest first, the whole not among them.
    """
    losses = [curves[seed] for seed in sorted(curves)[:PAIRS]]
    if not shares or len(losses) < LEAST_PAIRS:
        return None
    steps = np.diff(np.log([*shares, 1.0]))[::-1]
    falls = drops(losses).mean[::-1]
    rate, step = float(_steepening(falls[:, None], steps)[0, 0]), float(steps[0])
    slope = float(falls[0]) * (rate / math.expm1(rate * step) if rate else 1 / step)
    return slope if slope > 0 else None
