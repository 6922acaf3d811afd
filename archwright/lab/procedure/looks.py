"""Looking at a study before it ends: how much of the error each look may spend, and what is decided by it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from archwright.lab.procedure.statistics import NOTHING_SHARED, SharedError, half_width, t_interval
from archwright.lab.results import Interval

Floats = NDArray[np.float64]

ALPHA = 0.05
"""Probability that any variant of a study is called better or worse than a baseline that is as good."""
SharedErrors = Callable[[str, int], SharedError]
"""(variant, pairs) -> standard errors of the mean of so many pairs from what they share."""


KEPT_BACK = 0.2
"""Share of the error that a study keeps for pairs that are added after its end, which spend half of what is left
each time."""
FRACTIONS = (0.4, 0.5, 0.6, 0.8, 1.0)
"""Shares of the seeds after which a study is looked at."""
SPENDING = 2.5
"""Power of the share of the pairs with which the error is spent. Where one variant is compared this is close to
O'Brien's and Fleming's; of the tenth of the error that each of ten variants has, theirs would leave nearly nothing for
the first looks. Simulated: docs/calibration.md."""
POINTS = 2001
"""Of the sums of pairs, between the bounds, at which densities are integrated."""
FEWEST = 6
"""Seeds below which it is looked at once, at its end."""


@dataclass(frozen=True)
class Decision:
    """The outcome of a variant's pairs, and after how many."""

    look: int
    """Pairs that were looked at."""
    level: float
    """Two-sided nominal level of that look, of one variant alone."""
    outcome: Literal["superior", "equivalent", ""]
    """Empty: nothing was decided."""


@dataclass(frozen=True)
class Looks:
    """After how many pairs a study is looked at, and how they are judged then."""

    seeds: int
    """Pairs of the whole study."""
    planned: int
    """Pairs it was planned with, of which time may have left some out."""
    early: bool = True
    """Whether it is looked at before its end."""
    ends: tuple[int, ...] = ()
    """Pairs at which it ended, and at which it does with those that were added, each time."""

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """After how many pairs; the last is the end."""
        end, *later = self.ends or (self.seeds,)
        if not self.early or self.planned < FEWEST:
            return (end, *later)
        shares = (math.ceil(round(share * self.planned, 6)) for share in FRACTIONS)
        return (*dict.fromkeys(n for n in shares if n < end), end, *later)

    def level(self, alpha: float, pairs: int) -> float:
        """Return the level for the look after so many pairs; for other numbers that of the end."""
        look = self.numbers.index(pairs) if pairs in self.numbers else -1
        return self.levels(alpha)[look]

    def levels(self, alpha: float) -> tuple[float, ...]:
        """Return the two-sided nominal level of each look."""
        numbers, added = self.numbers, max(0, len(self.ends) - 1)
        return nominal_levels(alpha_spent(alpha, numbers, self.planned, added), numbers)

    def interval(
        self, differences: Sequence[float], alpha: float, shared_error: SharedError = NOTHING_SHARED
    ) -> Interval:
        """Return the interval of a mean that holds with probability 1 - alpha at all looks together."""
        level = 1 - self.level(alpha, len(differences))
        return t_interval(differences, level, shared_error)


@cache
def alpha_spent(
    alpha: float, numbers: tuple[int, ...], planned: int, added: int
) -> tuple[float, ...]:
    """Return how much of alpha is spent after each look: a t^SPENDING after a share t of the planned pairs,
    a = (1 - KEPT_BACK) alpha, all of a at the end, and half of what is left each time that pairs are added.

    Sources: Lan and DeMets, 1983, Discrete sequential boundaries; Kim and DeMets, 1987, Design and analysis of group
    sequential tests based on the type I error spending rate function (the power).

    Args:
        numbers: pairs at each look.
        added: how often pairs were added after the end.
    """
    own = (1 - KEPT_BACK) * alpha
    before = numbers[: len(numbers) - 1 - added]
    shares = [own * (n / planned) ** SPENDING for n in before]
    later = [alpha - (alpha - own) * 0.5**i for i in range(1, added + 1)]
    return (*shares, own, *later)


@cache
def nominal_levels(spent: tuple[float, ...], numbers: tuple[int, ...]) -> tuple[float, ...]:
    """Return the two-sided level of each look, so that all up to it together err with the probability that is spent by
    then where nothing is true.

    Source: Armitage, McPherson and Rowe, 1969, Repeated significance tests (the integrals).

    Args:
        numbers: pairs at each look.
    """
    levels: list[float] = []
    # Where no bound was crossed yet: the sum of the pairs so far, of unit variance each, at weighted points.
    sums: Floats = np.zeros(1)
    weights: Floats = np.ones(1)
    for before, pairs, total in zip((0, *numbers), numbers, spent, strict=False):
        scale = math.sqrt(pairs - before)
        excess = partial(
            _crossing, pairs=pairs, sums=sums, weights=weights, scale=scale, total=total
        )
        limit = float(optimize.brentq(excess, 0.01, 12.0)) * math.sqrt(pairs)
        levels.append(float(2 * stats.norm.sf(limit / math.sqrt(pairs))))
        points = np.linspace(-limit, limit, POINTS)
        # [points now, points before]
        density = stats.norm.pdf((points[:, None] - sums) / scale) / scale
        sums, weights = points, (density @ weights) * np.gradient(points)
    return tuple(levels)


def _crossing(
    bound: float, *, pairs: int, sums: Floats, weights: Floats, scale: float, total: float
) -> float:
    """Return how much more than `total` is spent where |Z| may reach the bound at this look."""
    limit = bound * math.sqrt(pairs)
    above, below = (limit - sums) / scale, (-limit - sums) / scale
    return 1 - float(weights @ (stats.norm.cdf(above) - stats.norm.cdf(below))) - total


def decide(
    differences: Mapping[str, Sequence[float]],
    margins: Sequence[float],
    judged: Looks,
    alpha: float,
    shared_errors: SharedErrors = lambda variant, pairs: NOTHING_SHARED,
) -> dict[str, Decision]:
    """Return what the pairs of each variant say, looked at as often as `looks` says: at a look all variants
    that are still open have all its pairs.

    Holm's step-down asks that an interval leaves out 0 at the level of that look for alpha / (m - r), for m
    variants of which r are superior already; what was superior once stays so. A variant is equivalent where
    its interval of two one-sided tests lies within the margin.

    Args:
        differences: variant minus baseline of each pair that is finished, in the order of the seeds; NaN where a run
            failed.
        margins: the margin after so many pairs, in the order of the seeds.
        shared_errors: those of a variant's mean over so many pairs from what they share. They are in all
            pairs alike, so that looks depend on each other more than the levels take into account, which makes them
            rarer to err.
    """
    decided: dict[str, Decision] = {}
    for look, pairs in enumerate(judged.numbers):
        waiting = {name: d[:pairs] for name, d in differences.items() if name not in decided}
        if any(len(pair) < pairs for pair in waiting.values()):
            break
        superior = sum(decision.outcome == "superior" for decision in decided.values())
        found = {name: _Pairs(pair, shared_errors(name, pairs)) for name, pair in waiting.items()}
        while superior < len(differences):
            level = judged.levels(alpha / (len(differences) - superior))[look]
            clear = [
                name
                for name, pair in found.items()
                if name not in decided and abs(pair.mean) > pair.half_width(level)
            ]
            if not clear:
                break
            decided |= {name: Decision(pairs, level, "superior") for name in clear}
            superior += len(clear)
        level = judged.levels(2 * alpha)[look]
        for name, pair in found.items():
            half = pair.half_width(level)
            if name not in decided and abs(pair.mean) + half < margins[pairs - 1]:
                decided[name] = Decision(pairs, level, "equivalent")
    return decided


class _Pairs:
    """Differences of some pairs, those that failed left out."""

    def __init__(self, differences: Sequence[float], shared_error: SharedError) -> None:
        values = np.asarray(differences, float)
        values = values[np.isfinite(values)]
        self.number, self.shared_error = len(values), shared_error
        self.mean, self.error = 0.0, math.inf
        if self.number > 1:
            self.mean = float(values.mean())
            self.error = float(values.std(ddof=1)) / math.sqrt(self.number)

    def half_width(self, level: float) -> float:
        if self.number < 2:
            return math.inf
        return half_width(self.error, self.number, level, self.shared_error)
