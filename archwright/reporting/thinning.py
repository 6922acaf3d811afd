"""Which points of a long curve are drawn, and what it is when it is smoothed."""

from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

BUCKETS = 1000
"""A curve is drawn as the lowest and highest value of each of this many stretches."""
FEWEST_TO_SMOOTH = 50
"""Steps from which curves are smoothed at first."""
MANY = 3000
"""Steps from which they are smoothed over more of them."""


def thin(values: Values, buckets: int = BUCKETS) -> NDArray[np.int64]:
    """Return the indices of the lowest and highest value of each bucket, of the first and the last.

    Peaks survive, which every n-th value would not promise. Short curves are kept whole.
    """
    if len(values) <= 2 * buckets:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, end in pairwise(edges.tolist()):
        piece = values[start:end]
        kept.add(start + int(np.argmin(np.where(np.isnan(piece), np.inf, piece))))
        kept.add(start + int(np.argmax(np.where(np.isnan(piece), -np.inf, piece))))
    return np.array(sorted(kept))


def smoothed(values: Values, weight: float) -> Values:
    """Return the exponential moving average m_n / (1 - w^n) with m_n = w m_(n-1) + (1 - w) x_n, of the n values so far
    that are finite; NaN at the others. The division takes out that m_0 is 0.

    Source: Kingma and Ba, 2015, Adam: a method for stochastic optimization, section 3.
    """
    finite = np.isfinite(values)
    found = accumulate(
        values[finite].tolist(),
        lambda mean, value: weight * mean + (1 - weight) * value,
        initial=0.0,
    )
    number = np.arange(1, finite.sum() + 1)
    mean = np.full_like(values, np.nan)
    mean[finite] = np.array([*found][1:]) / (1 - weight**number)
    return mean


def smoothing_of(steps: int) -> float:
    """Return the weight that curves of so many steps are smoothed with at first; 0 is each step."""
    return 0.0 if steps < FEWEST_TO_SMOOTH else 0.9 if steps < MANY else 0.99
