"""Robust companion of a mean: the Hodges-Lehmann estimate and its interval of signed ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from archwright.lab.procedure.constants import COMPANION


@dataclass(frozen=True)
class RobustInterval:
    """Confidence interval of the centre of symmetric differences."""

    estimate: float
    """Median of all Walsh averages (Hodges and Lehmann, 1963)."""
    low: float
    high: float
    level: float
    """Exact for symmetric differences without ties; lower than requested for too few pairs."""


def companion(differences: Sequence[float], level: float = COMPANION) -> RobustInterval:
    """Return the interval of Wilcoxon's signed ranks.

    Its ends are the (c + 1)-th lowest and highest of the n (n + 1) / 2 Walsh averages (d_i + d_j) / 2, i <= j, with the
    largest c for which 2 P(T <= c) <= 1 - level, T the sum of the ranks of positive signs. If no c has this level, the
    ends are the lowest and highest difference. Source: Hollander and Wolfe, 1999, Nonparametric statistical methods,
    section 3.3.
    """
    values = np.asarray(differences, np.float64)
    i, j = np.triu_indices(len(values))
    walsh = np.sort((values[i] + values[j]) / 2)
    tails = _tails(len(values))
    cut = max(0, int(np.searchsorted(tails, (1 - level) / 2 * (1 + 1e-12), "right")) - 1)
    ends = float(walsh[cut]), float(walsh[-1 - cut])
    return RobustInterval(float(np.median(walsh)), *ends, level=1 - 2 * tails[cut])


def agrees(differences: Sequence[float], mean: float) -> bool:
    """True if the companion's interval excludes 0 on the side of the mean."""
    interval = companion(differences)
    return interval.low > 0 if mean > 0 else interval.high < 0


@cache
def _tails(pairs: int) -> tuple[float, ...]:
    """Return P(T <= c) for each c, with T the sum of the ranks 1 to n with positive signs."""
    counts = np.zeros(pairs * (pairs + 1) // 2 + 1)
    counts[0] = 1
    for rank in range(1, pairs + 1):
        counts[rank:] = counts[rank:] + counts[:-rank].copy()
    return tuple(np.cumsum(counts / 2.0**pairs).tolist())
