"""The simulation of studies: what it draws, and that the procedure seldom finds what is not there."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from archwright.spec.study_spec import StudySpec
from bench import replay
from bench.replay import (
    BOTH,
    HELD_OUT,
    LOWEST,
    SETS,
    TUNING,
    Scenario,
    Valley,
    binomial_interval,
    findings,
    lowest_mean,
    surfaces_of,
    wins,
)

STUDY = StudySpec()
DRAWS = 300
SPIKES_UNSEEN = "one run in ten 0.3 nats high in the variant"
"""Its false wins are those of studies without any spike (docs/calibration.md)."""
JUDGED = [s for s in (*TUNING, *HELD_OUT) if s.variants == 1 and s.name != SPIKES_UNSEEN]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", JUDGED, ids=lambda scenario: scenario.name)
def test_equal_variants_are_seldom_told_apart(scenario: Scenario) -> None:
    found = findings(scenario, STUDY, range(DRAWS))
    assert wins(scenario, found) / DRAWS < 0.11


@pytest.mark.slow
def test_at_the_noise_of_ten_choices_small_effects_are_found_and_equal_variants_equivalent() -> (
    None
):
    scenario = next(s for s in HELD_OUT if s.name.startswith("ten-choices"))
    better = replace(scenario, effect=0.005)
    assert wins(better, findings(better, STUDY, range(100))) >= 90
    found = findings(scenario, STUDY, range(100))
    assert sum(f.effects[0].outcome == "equivalent" for f in found) >= 90


def test_names_of_surfaces_are_their_own_and_no_surface_is_in_both_sets() -> None:
    names = [scenario.name for scenarios in SETS.values() for scenario in scenarios]
    assert len({*names}) == len(names) >= 40
    assert not {replace(s, name="") for s in TUNING} & {replace(s, name="") for s in HELD_OUT}


def test_losses_are_those_of_the_valley() -> None:
    valley = Valley(0.04, 0.08, wall=1.2, above=0.5)
    found = [valley.loss(x) / LOWEST for x in (-1.0, 0.0, 0.5, 1.5)]
    assert found == pytest.approx([1.04, 1.0, 1.02, 1.18 + 0.5 / LOWEST])
    assert valley.loss(9.0) == replay.INITIAL
    flat = Valley(0.04, 0.04, plateau=1.0)
    assert (flat.loss(0.9), flat.loss(1.1)) == pytest.approx((4.19 * 1.0324, replay.UNIGRAM))
    assert Valley(0.03, 0.03, power=1.0).loss(-0.5) == pytest.approx(LOWEST * 1.015)


def test_what_is_equal_is_the_lowest_mean_of_one_rate() -> None:
    """Over seeds whose bottoms lie apart by s, a parabola's mean is c s² above its bottom; spikes add their share."""
    for jitter in (0.08, 0.25):
        above = lowest_mean(Valley(0.1, 0.1), jitter) / LOWEST - 1
        assert above == pytest.approx(0.1 * jitter**2, rel=0.03)
    spiky = lowest_mean(Valley(0.1, 0.1, spikes=0.1, spike=0.3), 0.08)
    assert spiky - lowest_mean(Valley(0.1, 0.1), 0.08) == pytest.approx(0.03)


@pytest.mark.parametrize("shape", ["normal", "t", "exp+", "exp-", "logn+", "logn-"])
def test_noise_has_the_same_deviation_whatever_its_shape(shape: replay.Shape) -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([replay._noise(shape, rng) for _ in range(40_000)])
    assert drawn.mean() == pytest.approx(0, abs=0.02)
    assert drawn.std() == pytest.approx(1, rel=0.15)
    if shape not in ("normal", "t"):
        assert np.sign(stats.skew(drawn)) == (1 if shape.endswith("+") else -1)


def test_drawn_losses_have_the_noise_that_a_scenario_says() -> None:
    """Pairs at one place: their differences deviate by what is not shared."""
    scenario = Scenario("", *(replace(v, at=0.0) for v in BOTH), jitter=0.0, noises=(1.0, 3.0))
    surfaces = surfaces_of(scenario, 0, 4000)
    pairs = [surfaces["1"](place, 0.0) - surfaces["0"](place, 0.0) for place in range(4000)]
    own = replay.RUN_NOISE**2 * (1 + 9) + replay.SEED_NOISE**2 * 2 * (1 - 0.5)
    assert np.std(pairs) == pytest.approx(own**0.5, rel=0.05)
    assert np.mean(pairs) == pytest.approx(0, abs=0.003)


def test_draws_repeat_whatever_the_processes() -> None:
    first = findings(TUNING[0], STUDY, range(6))
    # As text, since NaN is not NaN.
    assert repr(first) == repr(findings(TUNING[0], STUDY, range(6), processes=2))
    assert all(f.runs >= 2 * (2 * 3 + 5) for f in first)


def test_the_table_has_a_line_for_each_scenario_and_one_for_the_smooth_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["replay", "--draws", "3", "--surfaces", "tuning"])
    monkeypatch.setitem(SETS, "tuning", TUNING[:2])
    replay.main()
    lines = capsys.readouterr().out.splitlines()[3:]
    assert len({line.count("|") for line in lines}) == 1
    names = [line.split("|")[1].strip() for line in lines[2:]]
    assert names == [TUNING[0].name, TUNING[1].name, "all smooth ones"]
    assert lines[-1].split("|")[2].strip() == "6"
    assert [bool(line.split("|")[-2].strip()) for line in lines[2:]] == [False, True, False]


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (3, 50), (20, 20), (71, 2000)])
def test_binomial_bounds_solve_their_equations(successes: int, trials: int) -> None:
    low, high = binomial_interval(successes, trials)
    if successes:
        assert stats.binom.sf(successes - 1, trials, low) == pytest.approx(0.025)
    if successes < trials:
        assert stats.binom.cdf(successes, trials, high) == pytest.approx(0.025)
    assert 0 <= low <= successes / trials <= high <= 1
