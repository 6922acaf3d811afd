"""The simulation of studies: what it draws, and that the procedure seldom finds what is not there."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from bench import replay
from bench.replay import MANY, RUN_NOISE, SCENARIOS, STUDIES, Valley, findings, wins

pytestmark = pytest.mark.slow

DRAWS = 500
NOTHING = [scenario for scenario in SCENARIOS if not scenario.effect]


@pytest.mark.parametrize("scenario", NOTHING, ids=lambda scenario: scenario.name)
def test_equal_variants_are_seldom_told_apart(scenario: replay.Scenario) -> None:
    found = findings(scenario, STUDIES["confirm"], range(DRAWS))
    assert wins(scenario, found) / DRAWS < 0.09
    assert abs(np.mean([f.effects[0].share for f in found])) < 0.0015


def test_an_effect_that_is_there_is_found() -> None:
    (scenario,) = [s for s in SCENARIOS if s.effect == 0.02]
    assert wins(scenario, findings(scenario, STUDIES["confirm"], range(60))) > 57


def test_losses_are_those_of_the_valley() -> None:
    valley = Valley(0.04, 0.08, wall=1.2, above=0.5)
    found = valley.losses(np.array([-1.0, 0.0, 0.5, 1.5])) / replay.LOWEST
    assert found == pytest.approx([1.04, 1.0, 1.02, 1.18 + 0.5 / replay.LOWEST])
    assert valley.losses(np.array([9.0])) == replay.INITIAL
    flat = Valley(0.04, 0.04, plateau=1.0)
    assert flat.losses(np.array([0.9, 1.1])) == pytest.approx([4.19 * 1.0324, replay.UNIGRAM])


def test_what_is_equal_is_the_lowest_mean_of_one_rate() -> None:
    """Over seeds whose bottoms lie apart by s, a parabola's mean is c s² above its bottom."""
    above = replay.lowest_mean(Valley(0.2, 0.2)) / replay.LOWEST - 1
    assert above == pytest.approx(0.2 * replay.JITTER**2, rel=0.03)


def test_draws_repeat_whatever_the_processes() -> None:
    first = findings(SCENARIOS[0], STUDIES["confirm"], range(6))
    assert first == findings(SCENARIOS[0], STUDIES["confirm"], range(6), processes=2)
    assert all(f.runs >= 2 * (2 * 3 + 4) for f in first)


@pytest.mark.parametrize("words", [*(("--procedure", name) for name in STUDIES), ("--many",)])
def test_the_table_has_a_line_for_each_scenario(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["replay", "--draws", "2", *words])
    monkeypatch.setattr(replay, "SCENARIOS", SCENARIOS[:2])
    monkeypatch.setattr(replay, "MANY", MANY[:1])
    replay.main()
    lines = capsys.readouterr().out.splitlines()
    expected = MANY[:1] if "--many" in words else SCENARIOS[:2]
    assert [line.split("|")[1].strip() for line in lines[2:]] == [s.name for s in expected]


def test_of_several_variants_those_count_that_are_as_good() -> None:
    scenario = replace(MANY[0], variants=3, better=1, effect=0.05, noises=(4.0,))
    assert scenario.effects == [0.05, 0.0, 0.0]
    assert scenario.noise == pytest.approx([RUN_NOISE * n for n in (1, 1, 1, 4)])
    found = findings(scenario, STUDIES["confirm"], range(3))
    assert all(f.effects[0].outcome == "better" for f in found)
    false = sum(any(e.outcome in ("better", "worse") for e in f.effects[1:]) for f in found)
    assert wins(scenario, found) == false
    assert wins(replace(scenario, variants=1), found) == 3
