"""Intervals of a mean difference. The unit of replication is the seed."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from archwright.lab.results import Halves, Interval

FLAT = 1e-12
"""Largest spread of equal differences through rounding, as a share of the largest one."""
DOCUMENTS = 20
"""Fewest held-out documents for `text_error` (`archwright.training.evaluation`)."""


class SharedError(NamedTuple):
    """Standard errors of a mean in nats, shared by its pairs: more pairs do not lower them."""

    text: float = 0.0
    """Error from the choice of held-out documents, estimated from at least DOCUMENTS of them."""
    placing: float = 0.0
    """Error from the tuning of learning rates, not estimated from the pairs."""


NOTHING_SHARED = SharedError()


def t_interval(
    differences: Sequence[float], level: float = 0.95, shared_error: SharedError = NOTHING_SHARED
) -> Interval:
    """Return mean ± `half_width` of differences.

    Exact for normal differences without shared errors. Source: Student, 1908, The probable error of a mean.
    """
    values = np.asarray(differences, dtype=np.float64)
    assert len(values) >= 2
    assert np.isfinite(values).all()
    mean, error = float(values.mean()), 0.0
    if float(np.ptp(values)) > FLAT * float(np.abs(values).max()):
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = half_width(error, len(values), 1 - level, shared_error)
    return Interval(mean - half, mean + half, level, "t")


def half_width(
    error: float, pairs: int, level: float, shared_error: SharedError = NOTHING_SHARED
) -> float:
    """Return half the width of a mean's confidence interval.

    sqrt((t(n - 1) e)² + (t(DOCUMENTS - 1) text)² + (z placing)²), with e the standard error of the mean of n pairs,
    t(f) the quantile 1 - level / 2 of Student's distribution with f degrees of freedom, and z that of the normal
    distribution. Each error has the quantile for its degrees of freedom. For independent normal errors the interval is
    conservative. Source: Banerjee, 1961, On confidence interval for two-means problem based on separate estimates of
    variances and tabulated values of t-table.
    """
    text, placing = shared_error
    # Lower tails, as 1 - level / 2 rounds a small level away; several times faster than those of scipy.stats.
    return math.hypot(
        float(special.stdtrit(pairs - 1, level / 2)) * error,
        float(special.stdtrit(DOCUMENTS - 1, level / 2)) * text,
        float(special.ndtri(level / 2)) * placing,
    )


def text_error(pairs: Sequence[tuple[Halves | None, Halves | None]]) -> float:
    """Return the error of a mean difference from the choice of documents.

    With d_c the mean difference in document c, w_c its share of all text, and d the sum of w_c d_c:
    sqrt(n / (n - 1) sum of w_c² (d_c - d)²) for n documents; 0 if documents are unknown, as after divergence.
    Source: Cochran, 1977, Sampling techniques, section 6.4 (the error of a ratio).

    Args:
        pairs: Losses of variant and baseline.
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
