"""The simulation of unequal valleys: what it draws, and that the lab seldom finds what is not there."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from bench import valleys
from bench.valleys import SCENARIOS, Valley, false_wins, findings, table

pytestmark = pytest.mark.slow

BY_NAME = {(s.name, s.seeds): s for s in SCENARIOS}


@pytest.mark.parametrize("name", ["10 % and 10 %", "2.8 % at the start, 10 % 0.4 steps above"])
def test_steep_valleys_are_seldom_told_apart(name):
    found = findings(BY_NAME[name, 5], 250)
    assert false_wins(found) / len(found) < 0.09
    assert abs(np.mean([f.effect.share for f in found])) < 0.001


def test_an_effect_that_is_there_is_found(monkeypatch):
    """The same draws, where the second variant's losses lie 2 % lower."""
    drawn = valleys._losses
    number = iter(range(10**6))

    def with_effect(*given):
        factor = 0.98 if next(number) % 2 else 1.0
        return {run: factor * loss for run, loss in drawn(*given).items()}

    monkeypatch.setattr(valleys, "_losses", with_effect)
    found = findings(SCENARIOS[0], 60)
    assert sum(f.effect.outcome == "better" for f in found) > 55


def test_losses_are_those_of_the_valley(monkeypatch):
    for noise in ("SEED_NOISE", "RUN_NOISE", "JITTER"):
        monkeypatch.setattr(valleys, noise, 0.0)
    valley = Valley(0.04, 0.08, wall=1.2, above=0.5)
    found = valleys._losses(valley, 0.5, np.array([0.0, 0.1]), np.random.default_rng(0))
    bottom = valleys.LOWEST
    expected = {-0.5: 1.04, 0.5: 1.0, 0.0: 1.01, 1.5: 1.08, 1.0: 1.02}
    for k, factor in expected.items():
        assert found[0, k] == pytest.approx(factor * bottom)
        assert found[1, k] == pytest.approx(factor * bottom + 0.1)
    assert found[0, 2.0] == pytest.approx(1.18 * bottom + 0.5)
    assert max(found.values()) == valleys.INITIAL


def test_draws_repeat_and_count_their_runs():
    scenario = replace(SCENARIOS[0], seeds=3)
    first, again = findings(scenario, 5), findings(scenario, 5)
    assert first == again
    assert all(f.runs >= 2 * 3 * 3 for f in first)


def test_the_table_has_a_line_for_each_scenario(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["valleys", "--draws", "3"])
    valleys.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*table(3)]
    assert len(lines) == 2 + len(SCENARIOS)
    assert len({line.count("|") for line in lines}) == 1
