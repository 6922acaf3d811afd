"""The signed-rank interval against brute force over all signs."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from archwright.lab.procedure.robust import agrees, companion


def kept(differences: np.ndarray, centre: float, level: float) -> bool:
    """Return whether the two-sided test of signed ranks keeps a centre, by all signs that the ranks may have."""
    values = differences - centre
    ranks = stats.rankdata(np.abs(values))
    positive = ranks[values > 0].sum()
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s)
        for signs in product((0, 1), repeat=len(ranks))
    ]
    tail = min(np.mean(np.array(sums) <= positive), np.mean(np.array(sums) >= positive))
    return bool(2 * tail > 1 - level)


@pytest.mark.parametrize("pairs", range(5, 11))
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_the_interval_holds_the_centres_that_no_test_of_all_signs_rejects(
    pairs: int, level: float
) -> None:
    differences = np.random.default_rng(pairs).normal(0.3, 1, pairs)
    found = companion(differences, level)
    gap = 1e-9
    assert kept(differences, found.low + gap, level)
    assert kept(differences, found.high - gap, level)
    assert not kept(differences, found.low - gap, level)
    assert not kept(differences, found.high + gap, level)


@pytest.mark.parametrize("pairs", [3, 5, 7, 10])
def test_it_covers_the_centre_exactly_as_often_as_it_says(pairs: int) -> None:
    drawn = np.random.default_rng(0).standard_t(3, size=(20_000, pairs))
    found = [companion(row) for row in drawn]
    share = np.mean([one.low <= 0 <= one.high for one in found])
    assert share == pytest.approx(found[0].level, abs=0.008)
    assert found[0].level >= 0.9 or pairs == 3


def test_of_few_pairs_it_goes_from_the_lowest_to_the_highest() -> None:
    for pairs, level in ((2, 0.5), (4, 0.875), (5, 0.9375)):
        differences = np.random.default_rng(pairs).normal(size=pairs).tolist()
        found = companion(differences)
        assert (found.low, found.high) == (min(differences), max(differences))
        assert found.level == level


def test_the_estimate_is_the_median_of_means_of_two() -> None:
    assert companion([0.0, 1.0, 5.0]).estimate == pytest.approx(1.75)  # of 0, .5, 1, 2.5, 3, 5


def test_it_agrees_where_all_pairs_have_the_sign_of_the_mean() -> None:
    assert agrees([0.1, 0.2, 0.3, 0.1, 5.0], 1.14)
    assert agrees([-0.1, -0.2, -0.3, -0.1, -5.0], -1.14)
    assert not agrees([-0.1, -0.2, -0.3, -0.1, 5.0], 0.86)
    assert not agrees([0.1, 0.2, 0.3, 0.1, -0.01], 0.14)
