"""Looks before the end spend an error that was fixed beforehand, and decide by what they have."""

import math

import numpy as np
import pytest
from scipy import stats

from archwright.lab.procedure.looks import ALPHA, Looks, alpha_spent, decide, nominal_levels


def test_bounds_of_two_looks_are_those_of_a_bivariate_normal() -> None:
    """The first spends what its formula says; the second leaves 96 % inside both, as 1 % is kept for later."""
    looks = Looks(100, 100)
    assert looks.numbers == (40, 50, 60, 80, 100)
    spent = alpha_spent(0.05, (50, 100), 100, 0)
    assert spent == pytest.approx((0.04 * 0.5**2.5, 0.04))
    levels = nominal_levels(spent, (50, 100))
    first, second = (stats.norm.isf(level / 2) for level in levels)
    assert levels[0] == pytest.approx(spent[0], rel=1e-4)
    both = stats.multivariate_normal([0, 0], [[1, 0.5**0.5], [0.5**0.5, 1]])
    inside = both.cdf([first, second], lower_limit=[-first, -second])
    assert inside == pytest.approx(0.96, abs=1e-4)
    assert nominal_levels((0.05,), (7,)) == pytest.approx((0.05,))


@pytest.mark.parametrize(
    ("looks", "spent"),
    [
        (Looks(9, 9), 0.04),
        (Looks(7, 9), 0.04),
        (Looks(10, 10), 0.04),
        (Looks(15, 9, ends=(9, 15)), 0.045),
        (Looks(13, 9, ends=(7, 13)), 0.045),
        (Looks(60, 9, ends=(9, 20, 60)), 0.0475),
        (Looks(9, 3, ends=(3, 9)), 0.045),
    ],
)
def test_all_looks_together_err_as_often_as_they_say(looks: Looks, spent: float) -> None:
    numbers = looks.numbers
    sums = np.random.default_rng(0).normal(size=(400_000, numbers[-1])).astype("f4").cumsum(1)
    bounds = [stats.norm.isf(level / 2) for level in looks.levels(0.05)]
    crossed = np.zeros(len(sums), bool)
    for pairs, bound in zip(numbers, bounds, strict=True):
        crossed |= np.abs(sums[:, pairs - 1]) > bound * math.sqrt(pairs)
    assert crossed.mean() == pytest.approx(spent, abs=0.0012)


def test_added_pairs_leave_earlier_looks_as_they_were() -> None:
    before, after = Looks(9, 9), Looks(20, 9, ends=(9, 15, 20))
    assert after.numbers == (4, 5, 6, 8, 9, 15, 20)
    assert after.levels(0.05)[:5] == before.levels(0.05)
    assert all(0 < level < 0.05 for level in after.levels(0.05))


def test_how_often_a_study_is_looked_at() -> None:
    assert Looks(10, 10).numbers == (4, 5, 6, 8, 10)
    assert Looks(9, 9).numbers == (4, 5, 6, 8, 9)
    assert Looks(6, 9).numbers == (4, 5, 6)
    assert Looks(5, 9).numbers == (4, 5)
    assert Looks(5, 5).numbers == (5,)
    assert Looks(9, 9, early=False).numbers == (9,)


def spread(mean: float, pairs: int, width: float = 0.02) -> list[float]:
    return [mean + width * (-1) ** i for i in range(pairs)]


def test_a_large_difference_is_decided_at_once_and_a_small_one_later() -> None:
    margins = [0.001] * 9
    looks = Looks(9, 9)
    for mean, pairs, look in ((0.5, 4, 4), (0.075, 4, 0), (0.075, 5, 5), (0.02, 9, 9)):
        found = decide({"new": spread(mean, pairs)}, margins, looks, ALPHA)
        assert [d.look for d in found.values()] == [look] * bool(look), mean
        assert all(d.outcome == "superior" for d in found.values())


def test_what_is_the_same_is_equivalent_once_the_interval_is_short() -> None:
    found = decide({"new": spread(0.0, 9, 0.01)}, [0.04] * 9, Looks(9, 9), ALPHA)
    assert (found["new"].look, found["new"].outcome) == (4, "equivalent")
    assert not decide({"new": spread(0.0, 9, 0.2)}, [0.04] * 9, Looks(9, 9), ALPHA)


def test_all_that_are_open_are_looked_at_together() -> None:
    losses = {"clear": spread(0.5, 9), "late": spread(0.5, 3)}
    assert not decide(losses, [0.04] * 9, Looks(9, 9), ALPHA)
    found = decide(losses | {"late": spread(0.5, 4)}, [0.04] * 9, Looks(9, 9), ALPHA)
    assert {name: d.look for name, d in found.items()} == {"clear": 4, "late": 4}


def test_holm_gives_each_its_share_of_the_error() -> None:
    """Alone it would be superior; beside two others that are not, it needs a third of the level."""
    differences = spread(0.021 - 0.02 / 9, 9)
    alone = decide({"new": differences}, [0.001] * 9, Looks(9, 9), ALPHA)
    assert alone["new"].outcome == "superior"
    others = {f"{i}": spread(0.0, 9) for i in range(2)}
    assert not decide({"new": differences} | others, [0.001] * 9, Looks(9, 9), ALPHA)


def test_a_pair_that_failed_is_left_out() -> None:
    differences = [math.nan, *spread(0.5, 8)]
    found = decide({"new": differences}, [0.04] * 9, Looks(9, 9), ALPHA)
    assert found["new"].look == 4


def test_intervals_hold_at_all_looks_together() -> None:
    looks, differences = Looks(9, 9), spread(0.1, 4)
    error = np.std(differences, ddof=1) / 2
    half = float(stats.t.isf(Looks(9, 9).levels(0.05)[0] / 2, 3)) * error
    found = looks.interval(differences, 0.05)
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half))


def test_a_large_difference_beside_nine_others_is_decided_at_the_first_look() -> None:
    """The error is spent by the share of the pairs, so that a tenth of it leaves something for the first of them."""
    none = {f"{i}": spread(0.0, 10, 0.2) for i in range(9)}
    found = decide({"clear": spread(0.2, 10, 0.01)} | none, [0.001] * 10, Looks(10, 10), ALPHA)
    assert {name: d.look for name, d in found.items()} == {"clear": 4}
