"""Interim looks at a study: error spending and decisions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
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
"""(variant, pairs) -> errors that the first pairs of a variant share."""

POINTS = 2001
"""Quadrature points between the bounds."""


@dataclass(frozen=True)
class Decision:
    """Outcome of a look at a variant's pairs."""

    look: int
    """Number of pairs."""
    level: float
    """Two-sided nominal level of the look for this variant."""
    outcome: Literal["superior", "equivalent", ""]
    """Empty without a decision."""


@dataclass(frozen=True)
class Looks:
    """Schedule of a study's looks, with their levels."""

    seeds: int
    """Pairs of the study."""
    planned: int
    """Pairs planned at first; a time budget may leave some out."""
    early: bool = True
    """True if there are looks before the end."""
    ends: tuple[int, ...] = ()
    """Pairs at the first end, then at the end of each addition of pairs."""

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Pairs at each look; the last look is the end."""
        end, *later = self.ends or (self.seeds,)
        shares = (math.ceil(round(share * self.planned, 6)) for share in FRACTIONS * self.early)
        return (*dict.fromkeys(n for n in shares if FIRST_LOOK <= n < end), end, *later)

    def is_early(self, pairs: int) -> bool:
        """True if the look after these pairs comes before the study's first end."""
        return pairs < (self.ends or (self.seeds,))[0]

    def level(self, alpha: float, pairs: int) -> float:
        """Return the level of the look after these pairs; the end's level if there is none."""
        look = self.numbers.index(pairs) if pairs in self.numbers else -1
        return self.levels(alpha)[look]

    def levels(self, alpha: float) -> tuple[float, ...]:
        """Return the two-sided nominal level of each look."""
        numbers, added = self.numbers, max(0, len(self.ends) - 1)
        return nominal_levels(alpha_spent(alpha, numbers, self.planned, added), numbers)

    def interval(
        self, differences: Sequence[float], alpha: float, shared_error: SharedError = NOTHING_SHARED
    ) -> Interval:
        """Return the interval of a mean with coverage 1 - alpha at all looks together."""
        level = 1 - self.level(alpha, len(differences))
        return t_interval(differences, level, shared_error)


@cache
def alpha_spent(
    alpha: float, numbers: tuple[int, ...], planned: int, added: int
) -> tuple[float, ...]:
    """Return the cumulative error after each look.

    With a = (1 - KEPT_BACK) alpha: a t^SPENDING after a share t of the planned pairs, a at the end, and half of the
    remaining error at each addition of pairs. Sources: Lan and DeMets, 1983, Discrete sequential boundaries; Kim and
    DeMets, 1987, Design and analysis of group sequential tests based on the type I error spending rate function.

    Args:
        numbers: Pairs at each look.
        added: Number of additions of pairs after the end.
    """
    planned_error = (1 - KEPT_BACK) * alpha
    before = numbers[: len(numbers) - 1 - added]
    shares = [planned_error * (n / planned) ** SPENDING for n in before]
    later = [alpha - (alpha - planned_error) * 0.5**i for i in range(1, added + 1)]
    return (*shares, planned_error, *later)


@cache
def nominal_levels(spent: tuple[float, ...], numbers: tuple[int, ...]) -> tuple[float, ...]:
    """Return the two-sided nominal level of each look.

    Under the null hypothesis, the looks up to each one err together with the probability `spent`. Source: Armitage,
    McPherson and Rowe, 1969, Repeated significance tests (the integrals).

    Args:
        spent: Cumulative error after each look.
        numbers: Pairs at each look.
    """
    levels: list[float] = []
    # Density, where no bound was crossed yet, of the sum of the pairs so far, of unit variance each.
    sums: Floats = np.zeros(1)
    weights: Floats = np.ones(1)
    for before, pairs, total in zip((0, *numbers), numbers, spent, strict=False):
        scale = math.sqrt(pairs - before)
        known = (pairs, sums, weights, scale, total)
        limit = float(optimize.brentq(_excess_error, 0.01, 12.0, known)) * math.sqrt(pairs)
        levels.append(float(2 * stats.norm.sf(limit / math.sqrt(pairs))))
        points = np.linspace(-limit, limit, POINTS)
        # [points now, points before]
        density = stats.norm.pdf((points[:, None] - sums) / scale) / scale
        sums, weights = points, (density @ weights) * np.gradient(points)
    return tuple(levels)


def _excess_error(
    bound: float, pairs: int, sums: Floats, weights: Floats, scale: float, total: float
) -> float:
    """Return the error beyond `total` with a bound on |Z| at this look."""
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
    """Return the decisions of one look about the variants without one.

    Superiority is Holm's step-down procedure: with r of m variants superior, the interval at the look's level for
    alpha / (m - r) must exclude 0. The robust companion must agree, or the variant stays open. Equivalence has a
    separate step-down procedure: two one-sided tests at the same share of alpha place the mean within the margin, or
    within EARLY_MARGIN of it before the study's end. Source: Holm, 1979, A simple sequentially rejective multiple test
    procedure.

    Args:
        differences: Variant minus baseline of each pair, by variant; NaN if a run failed.
        margin: Margin of equivalence, in the unit of the loss.
        decided: Decisions of earlier looks.
        shared_errors: Errors that pairs share. Looks share them as well, so that levels are conservative.
    """
    known, new = decided or {}, dict[str, Decision]()
    look, most = judged.numbers.index(pairs), len(differences)
    pending = {
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
            passed = [n for n, pair in pending.items() if n not in new and holds(pair, level)]
            if not passed:
                break
            new |= {name: Decision(pairs, level, outcome) for name in passed}
            before += len(passed)
    return new


class _Pairs:
    """Differences of pairs without failed runs."""

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
        """True if both the interval and the robust companion exclude 0."""
        return abs(self.mean) > self.half_width(level) and agrees(self.values, self.mean)

    def is_within(self, margin: float, level: float) -> bool:
        return abs(self.mean) + self.half_width(level) < margin
