"""Statistics against tables, closed formulas, brute force and simulated coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from archwright.lab.procedure.statistics import (
    SharedError,
    half_width,
    t_interval,
    text_error,
)
from archwright.lab.results import Halves
from bench.replay import binomial_interval

SLEEP = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
"""Student's first group (Cushny and Peebles, 1905): mean 2.33, s 2.002."""


def test_the_t_interval_of_students_own_data():
    found = t_interval(SLEEP)
    half = 2.2622 * 2.00225 / math.sqrt(10)  # from the table: 9 degrees of freedom
    assert (found.low, found.high) == pytest.approx((2.33 - half, 2.33 + half), abs=1e-4)
    assert (found.level, found.method) == (0.95, "t")


@pytest.mark.parametrize(("n", "half"), [(3, 2.484), (5, 1.242), (8, 0.836), (10, 0.715)])
def test_half_widths_of_the_table(n, half):
    values = np.random.default_rng(n).normal(size=n)
    found = t_interval(values)
    assert (found.high - found.low) / 2 / values.std(ddof=1) == pytest.approx(half, abs=1e-3)


def test_differences_that_vary_little_still_vary():
    differences = [1.0, 1.001, 0.999, 1.0005, 0.9995]
    expected = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    found = t_interval(differences)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-12)
    assert found.low < 1 < found.high


@pytest.mark.parametrize("n", [2, 5, 10, 12])
@pytest.mark.parametrize("value", [0.1, -0.3, 1e-9, 0.0])
def test_equal_differences_leave_no_doubt(n, value):
    found = t_interval([value] * n)
    assert found.low == found.high == pytest.approx(value, rel=1e-12)


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize(("n", "trials"), [(3, 3000), (5, 3000), (10, 3000)])
def test_intervals_cover_as_often_as_they_say(n, trials):
    rng = np.random.default_rng(n)
    covered = 0
    for _ in range(trials):
        found = t_interval(rng.normal(0.3, 1.0, n))
        covered += found.low <= 0.3 <= found.high
    low, high = binomial_interval(covered, trials, 0.999)
    assert low <= 0.95 <= high
    assert covered / trials > 0.92


def test_equivalence_is_two_one_sided_tests():
    for margin in np.linspace(0.5, 4.5, 41):
        lower = stats.ttest_1samp(SLEEP, -margin, alternative="greater").pvalue
        upper = stats.ttest_1samp(SLEEP, margin, alternative="less").pvalue
        found = t_interval(SLEEP, 0.90)
        assert (max(lower, upper) < 0.05) == (-margin < found.low and found.high < margin)


def halves(tokens, nats):
    return Halves(0.0, 0.0, tuple(tokens), tuple(nats))


def test_the_error_of_the_text_is_that_of_drawing_documents_again():
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 2000, size=60)
    per_token = 3 + rng.normal(0, 0.5, size=60)
    pairs = []
    for _ in range(4):
        base = tokens * (per_token + rng.normal(0, 0.01, size=60))
        pairs.append(
            (halves(tokens, base + tokens * rng.normal(0.1, 0.2, size=60)), halves(tokens, base))
        )
    difference = np.mean([np.subtract(v.sums, b.sums) for v, b in pairs], axis=0)
    drawn = rng.integers(0, 60, size=(20_000, 60))
    means = difference[drawn].sum(axis=1) / tokens[drawn].sum(axis=1)
    assert text_error(pairs) == pytest.approx(means.std(), rel=0.04)


def test_what_all_documents_share_is_no_error_of_the_text():
    tokens = [100, 300, 50]
    base = halves(tokens, [300.0, 1000.0, 140.0])
    worse = halves(tokens, [300.0 + 10, 1000.0 + 30, 140.0 + 5])
    assert text_error([(worse, base)] * 3) == pytest.approx(0, abs=1e-12)
    assert text_error([(halves([], []), base), (None, base)]) == 0


def test_an_interval_with_the_texts_error_holds_for_other_documents():
    rng = np.random.default_rng(1)
    held, without = 0, 0
    for _ in range(600):
        of_text = rng.normal(0, 0.01)
        differences = 0.2 + of_text + rng.normal(0, 0.01, size=9)
        found = t_interval(differences, shared_error=SharedError(text=0.01))
        alone = t_interval(differences)
        held += found.low < 0.2 < found.high
        without += alone.low < 0.2 < alone.high
    assert held / 600 > 0.94
    assert without / 600 < 0.75


@pytest.mark.parametrize("pairs", [4, 10])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("level", [0.05, 0.001])
def test_intervals_of_errors_that_are_known_unequally_well_hold_at_least_as_often_as_they_say(
    pairs: int, ratio: float, level: float
) -> None:
    """Where one degree of freedom was made up for both, those of four pairs would err up to nine times as often."""
    rng, draws = np.random.default_rng(0), 200_000
    own = rng.chisquare(pairs - 1, draws) / (pairs - 1)
    text = ratio * rng.chisquare(19, draws) / 19
    means = rng.normal(0, math.sqrt(1 + ratio), draws)
    halves = np.hypot(
        half_width(1.0, pairs, level) * np.sqrt(own),
        half_width(0.0, pairs, level, SharedError(text=1.0)) * np.sqrt(text),
    )
    assert (np.abs(means) > halves).mean() < level + 3 * math.sqrt(level / draws)
