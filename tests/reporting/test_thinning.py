"""Curves: nothing that stands out is lost when they are thinned, and means are means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright.reporting.document import SMOOTHING
from archwright.reporting.thinning import smoothed, smoothing_of, thin

numbers = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(st.lists(numbers, min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_ends_and_extremes(values: list[float], buckets: int) -> None:
    array = np.array(values)
    kept = thin(array, buckets)
    assert kept[0] == 0
    assert kept[-1] == len(array) - 1
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= 2 * buckets + 2
    finite = array[np.isfinite(array)]
    if len(finite):
        assert np.nanmax(array[kept]) == finite.max()
        assert np.nanmin(array[kept]) == finite.min()


def test_short_curves_are_kept_whole() -> None:
    assert thin(np.arange(9.0), buckets=5).tolist() == list(range(9))


@pytest.mark.parametrize("weight", SMOOTHING[1:])
def test_smoothing_is_a_weighted_mean_of_the_finite_values_so_far(weight: float) -> None:
    """The value k steps before weighs w^k; weights are divided by their sum."""
    values = np.random.default_rng(0).normal(size=60)
    values[[0, 7, 30]] = np.nan, np.inf, np.nan
    finite = [v for v in values if np.isfinite(v)]
    expected = []
    for i in range(60):
        number = int(np.isfinite(values[: i + 1]).sum())
        weights = [weight**k for k in range(number)][::-1]
        mean = sum(w * v for w, v in zip(weights, finite, strict=False)) / max(sum(weights), 1)
        expected.append(mean if np.isfinite(values[i]) else math.nan)
    np.testing.assert_allclose(smoothed(values, weight), expected, atol=1e-12)


def test_what_does_not_change_is_not_changed_by_smoothing() -> None:
    np.testing.assert_allclose(smoothed(np.full(9, 2.5), 0.99), 2.5)
    assert np.isnan(smoothed(np.full(3, np.nan), 0.9)).all()


@pytest.mark.parametrize("steps", [0, 1, 49, 50, 1234, 100_000])
def test_the_weight_at_first_is_one_that_can_be_chosen(steps: int) -> None:
    assert smoothing_of(steps) in SMOOTHING
    assert (smoothing_of(steps) == 0) == (steps < 50)
