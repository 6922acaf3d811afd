"""The compute multiplier against curves whose truth is known."""

import math

import numpy as np
import pytest

from archwright.lab.procedure.compute import Drops, drops, multiplier_in_tokens, slope_at_end
from archwright.lab.results import Interval

SHARES = (0.25, 0.5)


def power_law(tokens: float, factor: float = 1.0) -> float:
    """The loss of a variant that gets `factor` times out of each token: Hoffmann et al., 2022, form of equation 2."""
    return 1.7 + 4.0 * (factor * tokens) ** -0.3


def exact(factor: float) -> tuple[float, Drops, Drops]:
    """The difference at the whole horizon and both falls, without noise."""
    curves = [[power_law(share, f) for share in (*SHARES, 1.0)] for f in (1.0, factor)]
    baseline, variant = (drops([curve] * 2) for curve in curves)
    return curves[1][-1] - curves[0][-1], baseline, variant


def point(difference: float, half: float = 0.0) -> Interval:
    return Interval(difference - half, difference + half, 0.95, "t")


@pytest.mark.parametrize("factor", [0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 3.5])
def test_it_is_the_horizontal_distance_of_power_laws(factor: float) -> None:
    difference, baseline, variant = exact(factor)
    found, low, high = multiplier_in_tokens(
        difference, point(difference), SHARES, baseline, variant
    )
    assert found == pytest.approx(factor, rel=1e-6)
    assert (low, high) == pytest.approx((found, found))


@pytest.mark.parametrize(("factor", "bound"), [(6.0, 4.0), (1 / 6, 0.25)])
def test_beyond_the_shortest_horizon_it_is_a_bound(factor: float, bound: float) -> None:
    difference, baseline, variant = exact(factor)
    found, *_ = multiplier_in_tokens(difference, point(difference), SHARES, baseline, variant)
    assert found == pytest.approx(bound)


def test_a_curve_that_does_not_fall_reaches_the_loss_nowhere() -> None:
    flat = Drops(np.array([0.0, -0.01]), np.zeros(2), 4)
    falling = Drops(np.array([0.5, 0.3]), np.zeros(2), 4)
    found, *_ = multiplier_in_tokens(-0.1, point(-0.1), SHARES, falling, flat)
    assert found == pytest.approx(4.0)
    found, *_ = multiplier_in_tokens(0.1, point(0.1), SHARES, falling, flat)
    # A third of the last fall, which is steeper by 5/3 an octave before.
    octaves = math.log(1 + (5 / 3 - 1) / 3) / math.log(5 / 3)
    assert found == pytest.approx(2**-octaves)
    none, *_ = multiplier_in_tokens(0.0, point(0.0), SHARES, falling, flat)
    assert none == 1.0


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.6])
def test_the_interval_holds_the_truth(factor: float) -> None:
    rng = np.random.default_rng(int(10 * factor))
    held = 0
    for _ in range(300):
        shared = rng.normal(0, 0.02, size=(9, 1, 3))
        noise = shared + rng.normal(0, 0.012, size=(9, 2, 3))
        truth = [[power_law(share, f) for share in (*SHARES, 1.0)] for f in (1.0, factor)]
        losses = np.array(truth) + noise
        differences = losses[:, 1, -1] - losses[:, 0, -1]
        half = 2.306 * differences.std(ddof=1) / 3
        _, low, high = multiplier_in_tokens(
            float(differences.mean()),
            point(float(differences.mean()), half),
            SHARES,
            drops(losses[:4, 0]),
            drops(losses[:4, 1]),
        )
        held += low <= factor <= high
    assert held / 300 > 0.92


@pytest.mark.parametrize("irreducible", [0.0, 1.7])
def test_the_slope_is_that_of_the_power_law_at_its_end(irreducible: float) -> None:
    """dL / d ln t = -a A t^-a at t = 1, of L = E + A t^-a."""
    curve = [irreducible + 4.0 * share**-0.3 for share in (*SHARES, 1.0)]
    assert slope_at_end({0: curve, 1: curve}, SHARES) == pytest.approx(0.3 * 4.0)
    assert slope_at_end({seed: [3.0, 2.9, 2.95] for seed in range(2)}, SHARES) is None
    assert slope_at_end({0: curve}, SHARES) is None


def test_draws_are_around_the_naive_mean_and_the_value_is_the_estimate() -> None:
    difference, baseline, variant = exact(2.0)
    naive = point(difference, 0.1)
    small, *ends = multiplier_in_tokens(difference / 2, naive, SHARES, baseline, variant)
    large, *same = multiplier_in_tokens(difference, naive, SHARES, baseline, variant)
    assert ends == same
    assert 1 < small < large == pytest.approx(2.0)
