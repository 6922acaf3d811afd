"""Intervals of a mean difference. The unit of replication is the seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from archwright.lab.results import Halves, Interval

FLAT = 1e-12
"""Differences that vary by a smaller share of the largest are equal but for rounding."""
DOCUMENTS = 20
"""Held-out documents from whose scatter `text_error` is estimated, at least (`archwright.training.evaluation`)."""


class SharedError(NamedTuple):
    """Standard errors of a mean difference from what its pairs share, in nats: more pairs do not lower them."""

    text: float = 0.0
    """From the choice of held-out documents, estimated from DOCUMENTS of them or more."""
    placing: float = 0.0
    """From where learning rates were placed: of a size that is known, not estimated from the pairs."""


NOTHING_SHARED = SharedError()
"""Pairs share nothing, or it is not known."""


def t_interval(
    differences: Sequence[float], level: float = 0.95, shared_error: SharedError = NOTHING_SHARED
) -> Interval:
    """mean ± `half_width` of n differences, s their standard deviation.

    Exact where differences are normal and share nothing. Source: Student, 1908, The probable error of a mean.
    """
    mean, error = _mean_and_error(differences)
    half = half_width(error, len(differences), 1 - level, shared_error)
    return Interval(mean - half, mean + half, level, "t")


def half_width(
    error: float, pairs: int, level: float, shared_error: SharedError = NOTHING_SHARED
) -> float:
    """sqrt((t(n - 1) e)² + (t(DOCUMENTS - 1) text)² + (z placing)²), e = s / sqrt(n) the standard error of the mean of
    n pairs, t(f) the quantile 1 - level / 2 of Student's distribution with f degrees of freedom, and z that of the
    normal distribution.

    Each error has the quantile of its own degrees of freedom: the few of the pairs say nothing of how well the others
    are known. Intervals of this width hold at least as often as they say, however unequal the errors are, where these
    are normal and independent. Source: Banerjee, 1961, On confidence interval for two-means problem based on separate
    estimates of variances and tabulated values of t-table.
    """
    text, placing = shared_error
    # Lower tails, as 1 - level / 2 rounds a small level away; several times faster than those of scipy.stats.
    return math.hypot(
        float(special.stdtrit(pairs - 1, level / 2)) * error,
        float(special.stdtrit(DOCUMENTS - 1, level / 2)) * text,
        float(special.ndtri(level / 2)) * placing,
    )


def text_error(pairs: Sequence[tuple[Halves | None, Halves | None]]) -> float:
    """Return the standard error of a mean difference, variant minus baseline, from the choice of held-out documents.

    With d_c the difference in document c, meaned over the pairs, w_c its share of all text, and d the sum of w_c d_c:
    sqrt(n / (n - 1) sum of w_c² (d_c - d)²) of n documents. 0 where documents are not known, as of runs that diverged.
    Source: Cochran, 1977, Sampling techniques, section 6.4 (the error of a ratio).
    """
    known = [(v, b) for v, b in pairs if v and b and v.sums and len(v.sizes) == len(b.sizes)]
    if not known or len(known[0][1].sizes) < 2:
        return 0.0
    sizes = np.asarray(known[0][1].sizes, np.float64)
    # Where tokens differ, a document's may end a byte or two apart.
    total = np.mean(
        [
            np.subtract(v.sums, np.multiply(b.sums, np.divide(v.sizes, b.sizes)))
            for v, b in known
            if len(v.sizes) == len(sizes)
        ],
        axis=0,
    )
    residuals = (total - sizes * total.sum() / sizes.sum()) / sizes.sum()
    error = math.sqrt(len(sizes) / (len(sizes) - 1) * float((residuals**2).sum()))
    return error if math.isfinite(error) else 0.0


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, 0 where all differences are equal."""
    values = np.asarray(differences, dtype=np.float64)
    assert len(values) >= 2
    assert np.isfinite(values).all()
    mean = float(values.mean())
    if float(np.ptp(values)) <= FLAT * float(np.abs(values).max()):
        return mean, 0.0
    return mean, float(values.std(ddof=1)) / math.sqrt(len(values))
