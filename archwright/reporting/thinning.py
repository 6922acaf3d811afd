"""Thinning and smoothing of long curves."""

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

BUCKETS = 1000
"""Number of intervals per curve; the lowest and highest value of each are drawn."""
FEWEST_TO_SMOOTH = 50
"""Minimum number of steps of curves that are smoothed by default."""
MANY = 3000
"""Minimum number of steps with stronger default smoothing."""


def thin(values: Values, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """Return the indices of each bucket's extremes, and of the first and last value.

    Unlike a choice of every n-th value, they include all peaks. Curves of at most `2 * buckets` values keep all values.
    """
    if len(values) <= 2 * buckets:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    indices = {0, len(values) - 1}
    for start, end in pairwise(edges.tolist()):
        piece = values[start:end]
        indices.add(start + int(np.argmin(np.where(np.isnan(piece), np.inf, piece))))
        indices.add(start + int(np.argmax(np.where(np.isnan(piece), -np.inf, piece))))
    return np.array(sorted(indices))


def smoothed(values: Values, weight: float) -> Values:
    """Return the exponential moving average of finite values, NaN elsewhere.

    m_n / (1 - w^n) with m_0 = 0 and m_n = w m_(n-1) + (1 - w) x_n; the division corrects the bias of m_0.

    Source: Kingma and Ba, 2015, Adam: a method for stochastic optimization, section 3.
    """
    finite = np.isfinite(values)
    means = accumulate(
        values[finite].tolist(),
        lambda mean, value: weight * mean + (1 - weight) * value,
        initial=0.0,
    )
    number = np.arange(1, finite.sum() + 1)
    mean = np.full_like(values, np.nan)
    mean[finite] = np.array([*means][1:]) / (1 - weight**number)
    return mean


def smoothing_of(steps: int) -> float:
    """Return the default smoothing weight for a number of steps; 0 is no smoothing."""
    return 0.0 if steps < FEWEST_TO_SMOOTH else 0.9 if steps < MANY else 0.99
