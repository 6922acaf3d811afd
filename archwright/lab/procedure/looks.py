"""Looking at a study before it ends: how much of the error each look may spend, and what is decided by it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from archwright.lab.procedure.constants import (
    ALPHA,
    EARLY_MARGIN,
    FIRST_LOOK,
    FRACTIONS,
    KEPT_BACK,
    SPENDING,
)
from archwright.lab.procedure.robust import agrees
from archwright.lab.procedure.statistics import NOTHING_SHARED, SharedError, half_width, t_interval
from archwright.lab.results import Interval

Floats = NDArray[np.float64]

SharedErrors = Callable[[str, int], SharedError]
"""(variant, pairs) -> standard errors of the mean of so many pairs from what they share."""

POINTS = 2001
"""Of the sums of pairs, between the bounds, at which densities are integrated."""


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
        shares = (math.ceil(round(share * self.planned, 6)) for share in FRACTIONS * self.early)
        return (*dict.fromkeys(n for n in shares if FIRST_LOOK <= n < end), end, *later)

    def is_early(self, pairs: int) -> bool:
        """Return whether the look after so many pairs comes before the study's first end."""
        return pairs < (self.ends or (self.seeds,))[0]

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
    margin: float,
    judged: Looks,
    pairs: int,
    alpha: float = ALPHA,
    decided: Mapping[str, Decision] | None = None,
    shared_errors: SharedErrors = lambda variant, pairs: NOTHING_SHARED,
) -> dict[str, Decision]:
    """Return the decisions of one look: of every variant that is still open.

    Superiority is Holm's step-down: an interval leaves out 0 at the look's level for alpha / (m - r), for m variants
    with r superior ones. The robust companion must agree, or the variant stays open. Equivalence is a step-down of its
    own over those that are equivalent: two one-sided tests, each with its share of alpha, place the mean within the
    margin, before the study's end within EARLY_MARGIN of it.
    Source: Holm, 1979, A simple sequentially rejective multiple test procedure.

    Args:
        differences: variant minus baseline of each pair, of all variants; NaN for a failed run.
        margin: of equivalence, in the unit of the loss.
        shared_errors: standard errors of a mean from what its pairs share. All looks share them too, so that levels
            err on the safe side.
    """
    known, new = decided or {}, dict[str, Decision]()
    look, most = judged.numbers.index(pairs), len(differences)
    found = {
        name: _Pairs(pair[:pairs], shared_errors(name, pairs))
        for name, pair in differences.items()
        if name not in known
    }
    within = margin * (EARLY_MARGIN if judged.is_early(pairs) else 1.0)
    tests: Mapping[Literal["superior", "equivalent"], Callable[[_Pairs, float], bool]] = {
        "superior": lambda pair, level: pair.differs(level),
        "equivalent": lambda pair, level: pair.is_within(within, level),
    }
    for outcome, holds in tests.items():
        share = alpha if outcome == "superior" else 2 * alpha
        before = sum(decision.outcome == outcome for decision in known.values())
        while before < most:
            level = judged.levels(share / (most - before))[look]
            passed = [n for n, pair in found.items() if n not in new and holds(pair, level)]
            if not passed:
                break
            new |= {name: Decision(pairs, level, outcome) for name in passed}
            before += len(passed)
    return new


class _Pairs:
    """Differences of some pairs, those that failed left out."""

    def __init__(self, differences: Sequence[float], shared_error: SharedError) -> None:
        values = np.asarray(differences, float)
        self.values = values = values[np.isfinite(values)]
        self.number, self.shared_error = len(values), shared_error
        self.mean, self.error = 0.0, math.inf
        if self.number > 1:
            self.mean = float(values.mean())
            self.error = float(values.std(ddof=1)) / math.sqrt(self.number)

    def half_width(self, level: float) -> float:
        if self.number < 2:
            return math.inf
        return half_width(self.error, self.number, level, self.shared_error)

    def differs(self, level: float) -> bool:
        """Return whether the interval leaves out 0 and the robust companion does, too."""
        return abs(self.mean) > self.half_width(level) and agrees(self.values, self.mean)

    def is_within(self, margin: float, level: float) -> bool:
        return abs(self.mean) + self.half_width(level) < margin
