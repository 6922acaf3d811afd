"""Runs that end far above the others, and what a study does about them."""

import math
import random
from typing import Any

import numpy as np
import pytest

from archwright.lab.procedure.spikes import lowered, spiked
from archwright.lab.procedure.standing import Spikes, Standing, standing
from archwright.spec.study_spec import StudySpec
from bench.simulate import simulate

STUDY = StudySpec(variants={"new": ("drawn",)}, match="none")
CALM = [4.55, 4.52, 4.51, 4.57, 4.54]


def test_runs_of_a_recorded_study_that_spiked_are_found() -> None:
    """Two of six seeds of one variant end up to half a nat higher than the others."""
    losses = {
        "modern": [4.550, 4.518, 4.514, 4.977, 4.769, 4.566],
        "no positions": [4.616, 4.623, 4.533, 4.622, 4.649, 4.573],
        "no norm": [4.493, 4.399, 4.464, 4.451, 4.554, 4.424],
    }
    assert spiked(losses) == {"modern": [3]}


def test_losses_that_are_equal_but_for_rounding_have_no_spike() -> None:
    assert spiked({"a": [4.0, 4.0, 4.0, 4.0, 4.0 + 1e-9], "b": [4.0] * 5}) == {}
    assert spiked({"a": [4.0] * 4 + [4.1], "b": [4.0] * 5}) == {"a": [4]}


def test_low_losses_failed_runs_and_too_few_runs_are_none() -> None:
    assert spiked({"a": [*CALM, 2.0], "b": CALM}) == {}
    assert spiked({"a": [*CALM, math.nan], "b": CALM}) == {}
    assert spiked({"a": [4.5, 9.0], "b": [4.5, math.nan]}) == {}


def test_the_deviation_is_pooled_over_variants() -> None:
    """Beside variants whose seeds lie as far apart, a loss is no spike."""
    wide = [4.5 + 0.3 * (-1) ** i for i in range(5)]
    assert spiked({"a": [*CALM, 5.0]}) == {"a": [5]}
    assert spiked({"a": [*CALM, 5.0], "b": wide, "c": wide}) == {}


@pytest.mark.parametrize("runs", [5, 10])
def test_normal_losses_seldom_spike(runs: int) -> None:
    drawn = np.random.default_rng(0).normal(4.2, 0.02, (4000, 2, runs))
    found = sum(bool(spiked({"a": one.tolist(), "b": other.tolist()})) for one, other in drawn)
    assert found / len(drawn) < 0.005


def test_half_a_rate_is_a_power_of_the_ratio() -> None:
    assert 3.0 ** lowered(0.3, 3.0) == pytest.approx(3.0**0.3 / 2, rel=0.01)
    assert lowered(1.0, 2.0) == 0.0


def surface(level: float, spikes: Any = lambda seed, k: False) -> Any:
    """A valley with its bottom at 0.2, whose seeds and rates differ little."""
    return lambda seed, k: (
        level + 0.1 * (k - 0.2) ** 2 + 0.01 * math.sin(seed + level) + 0.5 * spikes(seed, k)
    )


def run_all(surfaces: dict[str, Any], study: StudySpec = STUDY) -> tuple[Standing, Any]:
    losses: dict[str, dict[tuple[int, float], float]] = {name: {} for name in surfaces}
    dice = random.Random(0)
    while wanted := standing(study, losses).wanted:
        name, seed, k = dice.choice(wanted)
        losses[name][seed, k] = surfaces[name](seed, k)
    return standing(study, losses), losses


def above(seeds: set[int], rate: float) -> Any:
    return lambda seed, k: seed in seeds and k > rate


def test_a_variant_that_spikes_is_trained_again_at_half_its_rate() -> None:
    found, losses = run_all({"old": surface(4.0), "new": surface(4.0, above({3}, 0.0))})
    (spikes,) = found.spikes["new"]
    assert spikes.k == pytest.approx(0.2, abs=0.03)
    half = lowered(spikes.k, 3.0)
    assert spikes == Spikes(spikes.k, (3,), 5, halved=True)
    assert "old" not in found.spikes
    # All seeds, those of the first look included; the first runs remain.
    assert set(found.compared["new"].values()) == {(half,)}
    assert [*found.compared["new"]] == [*range(len(found.compared["new"]))]
    assert {seed for seed, k in losses["new"] if k == spikes.k and seed < 10} == {*range(5)}


def test_a_rate_is_halved_once() -> None:
    found, _ = run_all({"old": surface(4.0), "new": surface(4.0, above({2}, -9.0))})
    first, second = found.spikes["new"]
    assert (first.halved, second.halved) == (True, False)
    assert second.k == lowered(first.k, 3.0)
    assert second.seeds == first.seeds == (2,)
    assert set(found.compared["new"].values()) == {(second.k,)}


def test_a_baseline_that_spikes_is_halved_too() -> None:
    found, _ = run_all({"old": surface(4.0, above({0, 4}, 0.0)), "new": surface(4.3)})
    (spikes,) = found.spikes["old"]
    assert spikes.seeds == (0, 4)
    assert spikes.halved
    assert found.decisions["new"].outcome == "superior"


def test_a_spike_after_the_first_look_halves_the_rate_for_all_seeds() -> None:
    new = surface(4.005, above({6}, 0.0))
    noisy = lambda seed, k: new(seed, k) + 0.04 * (-1) ** seed  # noqa: E731
    found, losses = run_all({"old": surface(4.0), "new": noisy})
    (spikes,) = found.spikes["new"]
    assert (spikes.compared, spikes.seeds) == (7, (6,))
    half = lowered(spikes.k, 3.0)
    assert {seed for seed, k in losses["new"] if k == half} >= {*range(7)}


def test_without_tuning_spikes_are_reported_alone() -> None:
    study = STUDY.model_copy(update={"tune_lr": False})
    found, losses = run_all({"old": surface(4.0), "new": surface(4.0, above({3}, -9))}, study)
    (spikes,) = found.spikes["new"]
    assert (spikes.k, spikes.seeds, spikes.halved) == (0.0, (3,), False)
    assert {k for known in losses.values() for _, k in known} == {0.0}


def test_a_halved_rate_may_cost_what_its_parabola_says() -> None:
    """So that a variant is not called worse for its lower rate alone."""
    spiky = simulate(
        {"old": surface(4.0), "new": surface(4.0, lambda place, k: place == 5 and k > 0)}
    )
    calm = simulate({"old": surface(4.0), "new": surface(4.0)})
    assert spiky.effects[0].mean == pytest.approx(0.1 * (math.log(2) / math.log(3)) ** 2, abs=0.015)
    assert spiky.effects[0].outcome == "inconclusive"
    assert calm.effects[0].outcome == "equivalent"
