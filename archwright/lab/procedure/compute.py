"""Differences in loss, converted to compute along curves of loss against tokens.

The points of a curve are final losses of runs of several lengths.
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
"""Random draws for an interval; the generator has a fixed seed."""
STEEPEST = 2.0
"""Largest plausible exponent of a power law; a larger one is noise."""


@dataclass(frozen=True)
class Drops:
    """Falls of one variant's loss from each horizon to the next, over seeds."""

    mean: Floats
    error: Floats
    """Standard errors of the means."""
    seeds: int


def drops(losses: Sequence[Sequence[float]]) -> Drops:
    """Return the falls between horizons of losses [seeds, horizons], the shortest horizon first."""
    falls = -np.diff(np.asarray(losses, np.float64), axis=1)
    seeds, steps = falls.shape
    error = falls.std(axis=0, ddof=1) / math.sqrt(seeds) if seeds > 1 else np.zeros(steps)
    return Drops(falls.mean(axis=0), error, seeds)


def multiplier_in_tokens(
    difference: float, interval: Interval, shares: Sequence[float], baseline: Drops, variant: Drops
) -> tuple[float, float, float]:
    """Return the baseline's tokens over the variant's for equal loss, and the 95 % interval.

    The loss is the higher final loss of the two. The curve of the better one is interpolated back to that loss, at most
    to the shortest horizon. If a curve falls by d between two horizons at a distance h in ln tokens, it lies
    d (exp(r s) - 1) / (exp(r h) - 1) higher at a distance s before the later horizon. The steepening r follows from
    this fall and the previous one. For equidistant horizons, this is exact for a power law with an irreducible loss.
    The interval is a quantile interval of random draws of the difference and of the falls. Draws of the difference are
    centred on the naive mean, with the width of its interval.

    Args:
        difference: Estimate of variant minus baseline at the full horizon.
        shares: Shorter horizons as shares of the full one, the shortest first.
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
    """Return the token ratios of many draws.

    Args:
        differences: [draws].
        steps: Distances between horizons in ln tokens, the last first: [horizons].
        baseline, variant: Falls, the first horizon first: [draws, horizons].
    """
    # [horizons, draws], the last horizon first
    falls = np.where((differences < 0)[:, None], variant, baseline)[:, ::-1].T
    steepening = _steepening(falls, steps)
    left, back = np.abs(differences), np.zeros(len(differences))
    for step, fall, rate in zip(steps, falls, steepening, strict=True):
        # A curve that does not fall never reaches the loss.
        share = np.where(fall > 0, np.clip(left / np.where(fall > 0, fall, 1.0), 0, 1), left > 0)
        straight = np.abs(rate) < 1e-9
        rate = np.where(straight, 1.0, rate)
        bent = np.log1p(share * np.expm1(rate * step)) / rate
        back += np.where(straight, share * step, bent)
        left = np.where(share < 1, 0.0, left - np.maximum(fall, 0))
    result: Floats = np.exp(np.where(differences < 0, back, -back))
    return result


def _steepening(falls: Floats, steps: Floats) -> Floats:
    """Return the exponent of each power law, from a fall and the previous one; 0 if unknown."""
    exponents = np.zeros_like(falls)
    for i in range(len(steps) - 1):
        after, before = falls[i] / steps[i], falls[i + 1] / steps[i + 1]
        both = (after > 0) & (before > 0)
        ratio = np.log(np.where(both, before, 1.0) / np.where(both, after, 1.0))
        exponents[i] = np.clip(ratio / ((steps[i] + steps[i + 1]) / 2), -STEEPEST, STEEPEST)
    if len(steps) > 1:
        exponents[-1] = exponents[-2]
    return exponents


def slope_at_end(curves: Mapping[int, Sequence[float]], shares: Sequence[float]) -> float | None:
    """Return the fall of the loss per e-fold of tokens at the full horizon.

    Returns None if the loss does not fall, or with fewer than LEAST_PAIRS seeds.

    Args:
        curves: Losses of each seed, the shortest horizon first.
        shares: Shorter horizons as shares of the full one, the shortest first.
    """
    losses = [curves[seed] for seed in sorted(curves)[:PAIRS]]
    if not shares or len(losses) < LEAST_PAIRS:
        return None
    steps = np.diff(np.log([*shares, 1.0]))[::-1]
    falls = drops(losses).mean[::-1]
    rate, step = float(_steepening(falls[:, None], steps)[0, 0]), float(steps[0])
    slope = float(falls[0]) * (rate / math.expm1(rate * step) if rate else 1 / step)
    return slope if slope > 0 else None
