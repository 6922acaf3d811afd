"""Looks before the end spend an error that was fixed beforehand, and decide by what they have."""

import math

import numpy as np
import pytest
from scipy import stats

from archwright.lab.procedure.constants import ALPHA
from archwright.lab.procedure.looks import Decision, Looks, alpha_spent, decide, nominal_levels


def test_bounds_of_two_looks_are_those_of_a_bivariate_normal() -> None:
    """The first spends what its formula says; the second leaves 96 % inside both, as 1 % is kept for later."""
    looks = Looks(100, 100)
    assert looks.numbers == (50, 70, 100)
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
    assert after.numbers == (5, 7, 9, 15, 20)
    assert after.levels(0.05)[:3] == before.levels(0.05)
    assert all(0 < level < 0.05 for level in after.levels(0.05))


def test_how_often_a_study_is_looked_at() -> None:
    assert Looks(10, 10).numbers == (5, 7, 10)
    assert Looks(9, 9).numbers == (5, 7, 9)
    assert Looks(6, 9).numbers == (5, 6)
    assert Looks(5, 9).numbers == (5,)
    assert Looks(6, 6).numbers == (5, 6)
    assert Looks(5, 5).numbers == (5,)
    assert Looks(3, 3).numbers == (3,)
    assert Looks(9, 9, early=False).numbers == (9,)


def spread(mean: float, pairs: int, width: float = 0.02) -> list[float]:
    """Return differences of this mean that alternate around it, of an even number of pairs exactly."""
    middle = width / pairs if pairs % 2 else 0.0
    return [mean - middle + width * (-1) ** i for i in range(pairs)]


def decided(
    differences: dict[str, list[float]], margin: float, looks: Looks
) -> dict[str, Decision]:
    """Look at finished pairs as often as a study does."""
    found: dict[str, Decision] = {}
    for pairs in looks.numbers:
        if any(len(d) < pairs for name, d in differences.items() if name not in found):
            break
        found |= decide(differences, margin, looks, pairs, decided=found)
    return found


def test_a_large_difference_is_decided_at_once_and_a_small_one_later() -> None:
    looks = Looks(10, 10)
    for mean, pairs, look in ((0.5, 5, 5), (0.04, 5, 0), (0.04, 7, 7), (0.0205, 10, 10)):
        found = decided({"new": spread(mean, pairs)}, 0.001, looks)
        assert [d.look for d in found.values()] == [look] * bool(look), mean
        assert all(d.outcome == "superior" for d in found.values())


def test_before_the_last_look_equivalence_asks_for_half_the_margin() -> None:
    looks, differences = Looks(10, 10), spread(0.0, 10, 0.01)
    levels = looks.levels(2 * ALPHA)
    half = [
        float(stats.t.isf(level / 2, n - 1)) * np.std(differences[:n], ddof=1) / math.sqrt(n)
        + abs(np.mean(differences[:n]))
        for level, n in zip(levels, looks.numbers, strict=True)
    ]
    for margin, look in ((2.01 * half[0], 5), (1.99 * half[0], 7), (1.01 * half[2], 10)):
        found = decided({"new": differences}, margin, looks)
        assert (found["new"].look, found["new"].outcome) == (look, "equivalent"), margin
    assert not decided({"new": differences}, 0.99 * half[2], looks)


def test_pairs_that_are_added_after_the_end_need_the_whole_margin_alone() -> None:
    looks = Looks(16, 10, ends=(10, 16))
    assert [looks.is_early(n) for n in looks.numbers] == [True, True, False, False]
    assert [Looks(8, 10).is_early(n) for n in (5, 7, 8)] == [True, True, False]


def test_equivalence_is_corrected_for_several_variants_step_by_step() -> None:
    """Of two, the closer one needs the level of alpha / 2, and then the other the whole level."""
    looks = Looks(10, 10, early=False)
    error = 0.01 * math.sqrt(10 / 9) / math.sqrt(10)
    widths = [float(stats.t.isf(looks.level(2 * ALPHA / m, 10) / 2, 9)) * error for m in (1, 2)]
    same = {"one": spread(0.0, 10, 0.01), "two": spread(0.0, 10, 0.01)}
    between = (widths[0] + widths[1]) / 2
    assert decided({"one": same["one"]}, between, looks)["one"].outcome == "equivalent"
    assert not decided(same, between, looks)
    closer = same | {"two": spread(0.0, 10, 0.005)}
    found = decided(closer, between, looks)
    assert {name: d.outcome for name, d in found.items()} == {
        "one": "equivalent",
        "two": "equivalent",
    }


def test_all_that_are_open_are_looked_at_together() -> None:
    looks, far = Looks(9, 9), spread(0.5, 9)
    assert {name: d.look for name, d in decided({"a": far, "b": far}, 0.04, looks).items()} == {
        "a": 5,
        "b": 5,
    }
    late = {"clear": far, "late": spread(0.5, 9, 0.8)}
    found = decided(late, 0.04, looks)
    assert found["clear"].look == 5
    assert decide(late, 0.04, looks, 9, decided={"clear": found["clear"]}).keys() <= {"late"}


def test_holm_gives_each_its_share_of_the_error() -> None:
    """Alone it would be superior; beside two others that are not, it needs a third of the level."""
    alone = decided({"new": spread(0.0205, 10)}, 0.001, Looks(10, 10))
    assert alone["new"].outcome == "superior"
    others = {f"{i}": spread(0.0, 10) for i in range(2)}
    assert not decided({"new": spread(0.0205, 10)} | others, 0.001, Looks(10, 10))


def test_a_mean_that_the_median_does_not_share_is_not_superior() -> None:
    """The t interval leaves out 0, but signed ranks do not: half of the pairs carry the mean."""
    differences = [0.2, -0.001, -0.002, 0.2, 0.21, -0.003, 0.19, -0.004, -0.005, 0.2]
    looks = Looks(10, 10, early=False)
    assert looks.interval(differences, ALPHA).low > 0
    assert decide({"new": differences}, 0.001, looks, 10) == {}
    shifted = [d + 0.01 for d in differences]
    assert decide({"new": shifted}, 0.001, looks, 10)["new"].outcome == "superior"


def test_a_pair_that_failed_is_left_out() -> None:
    found = decided({"new": [math.nan, *spread(0.5, 8)]}, 0.04, Looks(9, 9))
    assert found["new"].look == 5


def test_intervals_hold_at_all_looks_together() -> None:
    looks, differences = Looks(9, 9), spread(0.1, 5)
    error = np.std(differences, ddof=1) / math.sqrt(5)
    half = float(stats.t.isf(Looks(9, 9).levels(0.05)[0] / 2, 4)) * error
    found = looks.interval(differences, 0.05)
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half))


def test_a_large_difference_beside_nine_others_is_decided_at_the_first_look() -> None:
    """The error is spent by the share of the pairs, so that a tenth of it leaves something for the first of them."""
    none = {f"{i}": spread(0.0, 10, 0.2) for i in range(9)}
    found = decided({"clear": spread(0.2, 10, 0.01)} | none, 0.001, Looks(10, 10))
    assert {name: d.look for name, d in found.items()} == {"clear": 5}
