"""What a study wants to be run follows from losses alone, whatever their order."""

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from archwright.lab.procedure.constants import MISPLACED, PLACING, USUAL_SPREAD
from archwright.lab.procedure.standing import Run, Standing, standing
from archwright.lab.procedure.sweep import replicate
from archwright.lab.procedure.verdict import effects
from archwright.lab.results import RunResult
from archwright.spec.study_spec import TUNING_FROM as TUNING
from archwright.spec.study_spec import StudySpec
from bench.simulate import simulate


def study(**options: Any) -> StudySpec:
    return StudySpec(**{"variants": {"new": ("drawn",)}, "match": "none", **options})


def valley(at: float, lowest: float = 4.0, rise: float = 0.1) -> Any:
    """A loss for each rate, by the seed as high as a hash says."""
    return lambda seed, k: (
        lowest + rise * (k - at) ** 2 + 0.02 * math.sin(37.0 * seed + 11.0 * lowest)
    )


def run_all(
    asked: StudySpec, surfaces: dict[str, Any], dice: random.Random, **options: Any
) -> tuple[Standing, dict[str, dict[tuple[int, float], float]]]:
    """Train what is wanted, in an order of chance."""
    losses: dict[str, dict[tuple[int, float], float]] = {name: {} for name in surfaces}
    while wanted := standing(asked, losses, **options).wanted:
        name, seed, k = dice.choice(wanted)
        losses[name][seed, k] = surfaces[name](seed, k)
    return standing(asked, losses, **options), losses


def test_seeds_that_tune_come_first_and_are_not_compared() -> None:
    asked, surfaces = study(), {"old": valley(0.3), "new": valley(-0.4)}
    first: list[Run] = list(standing(asked, {"old": {}, "new": {}}).wanted)
    one, other = asked.tuning_seed_numbers
    assert first == [("old", one, k) for k in (-1, 0, 1)]
    found, losses = run_all(asked, surfaces, random.Random(0))
    for name, at in (("old", 0.3), ("new", -0.4)):
        assert {seed for seed, _ in losses[name] if seed >= TUNING} == {one, other}
        powers = {k for seed, k in losses[name] if seed < TUNING}
        assert [*powers] == [pytest.approx(at, abs=0.02)]
        assert [*found.compared[name]] == list(range(len(found.compared[name])))


@pytest.mark.parametrize("widths", [(), (32, 64)])
def test_the_order_in_which_runs_end_changes_nothing(widths: tuple[int, ...]) -> None:
    surfaces = {"old": valley(0.3, rise=0.3), "new": valley(-1.6, 4.01), "other": valley(0.1, 4.2)}
    found = [
        run_all(study(widths=widths, seeds=7), surfaces, random.Random(seed)) for seed in range(6)
    ]
    assert all(one == found[0] for one in found)


def test_what_is_decided_is_trained_no_further() -> None:
    surfaces = {"old": valley(0.0), "new": valley(0.0, 4.01, 0.12), "far": valley(0.0, 5.0)}
    found, losses = run_all(study(), surfaces, random.Random(0))
    assert (found.decisions["far"].outcome, found.decisions["far"].look) == ("superior", 5)
    judged = {name: sum(seed < TUNING for seed, _ in known) for name, known in losses.items()}
    assert judged["far"] == 5
    assert judged["old"] == max(judged.values())
    whole, losses = run_all(study(early_stopping=False), surfaces, random.Random(0))
    assert all(sum(seed < TUNING for seed, _ in known) == 10 for known in losses.values())
    assert whole.decisions["far"].look == 10


def test_fixed_rates_need_no_tuning() -> None:
    found, losses = run_all(
        study(tune_lr=False, seeds=3), {"old": valley(0), "new": valley(1)}, random.Random(0)
    )
    assert {run for known in losses.values() for run in known} == {(s, 0.0) for s in range(3)}
    assert not found.placing


def test_a_plateau_is_left_to_lower_rates() -> None:
    """Nothing is learnt at the first three rates, where the noise says that the highest is best."""

    def flat(seed: int, k: float) -> float:
        return 6.0 - 0.01 * k if k > -1.5 else 4.0 + 0.1 * (k + 3) ** 2

    _, losses = run_all(
        study(seeds=4),
        {"old": flat, "new": flat},
        random.Random(0),
        plateau={"old": 5.5, "new": 5.5},
    )
    assert [*{k for seed, k in losses["new"] if seed < TUNING}] == [pytest.approx(-3.0, abs=0.05)]
    _, losses = run_all(study(seeds=4), {"old": flat, "new": flat}, random.Random(0))
    assert min(k for _, k in losses["new"]) > -1.5


@pytest.mark.parametrize("tune_lr", [True, False])
def test_a_study_ends_when_its_first_runs_have_learnt_too_little(tune_lr: bool) -> None:
    """A baseline above the loss of bigrams ends all, a variant its own runs, and the last variant the baseline's."""
    asked = study(seeds=4, tune_lr=tune_lr, variants={"new": ("drawn",), "other": ("drawn",)})
    tuned = 6 if tune_lr else 0
    for losses, runs in (
        ({"old": 5.0, "new": 4.0, "other": 4.0}, {"old": tuned or 1, "new": 0, "other": 0}),
        ({"old": 4.0, "new": 5.0, "other": 4.1}, {"new": tuned or 1}),
        ({"old": 4.0, "new": 5.0, "other": 5.0}, {"old": tuned or 1, "new": tuned or 1}),
    ):
        known: dict[str, dict[tuple[int, float], float]] = {name: {} for name in losses}
        learnt = dict.fromkeys(losses, 4.5)
        while wanted := standing(asked, known, learnt=learnt).wanted:
            name, seed, k = wanted[0]
            known[name][seed, k] = valley(0.0, losses[name], 0.05)(seed, k)
        found = standing(asked, known, learnt=learnt)
        assert {*found.unlearnt} == {n for n, loss in losses.items() if loss == 5.0}
        assert {n: len(known[n]) for n in runs} == runs
        judged = {"old", "other"} if losses["other"] == 4.1 else set()
        assert {n for n, seeds in found.compared.items() if seeds} - judged <= {"old"}
        assert judged <= {n for n, seeds in found.compared.items() if len(seeds) == 4}
        assert all(loss > 4.5 for loss in found.unlearnt.values())


def test_a_narrow_valley_gets_finer_rates() -> None:
    _, losses = run_all(
        study(seeds=4), {"old": valley(0.2, rise=1.2), "new": valley(0.2)}, random.Random(0)
    )
    one, other = study().tuning_seed_numbers
    assert {k for seed, k in losses["old"] if seed == one} == {-1, -0.5, 0, 0.5, 1}
    assert {k for seed, k in losses["old"] if seed == other} == {-0.5, 0, 0.5}
    assert [*{k for seed, k in losses["old"] if seed < TUNING}] == [pytest.approx(0.2, abs=0.07)]


def test_others_start_around_the_best_rate_of_the_baseline_unless_theirs_are_other_rates() -> None:
    surfaces = {"old": valley(0.9, rise=0.3), "new": valley(1.0, rise=0.3), "own": valley(0.0)}
    asked = study(variants={"new": ("drawn",), "own": ("drawn",)})
    _, losses = run_all(asked, surfaces, random.Random(0), own_starts={"own"})
    first = asked.tuning_seed_numbers[0]
    tuned = {name: sorted(k for s, k in known if s == first) for name, known in losses.items()}
    assert tuned["own"] == [-1, -0.5, 0, 0.5, 1]
    assert len(tuned["new"]) == 3
    assert tuned["new"][1] == pytest.approx(0.9, abs=0.03)
    assert tuned["new"][2] - tuned["new"][1] == 0.5


def test_a_baseline_that_cannot_be_tuned_leaves_others_to_start_by_themselves() -> None:
    surfaces = {"broken": lambda seed, k: math.nan, "new": valley(0.0)}
    found, losses = run_all(study(), surfaces, random.Random(0))
    assert not found.wanted
    assert {k for s, k in losses["new"] if s >= TUNING} >= {-1, 0, 1}


def test_where_a_rate_was_placed_is_in_the_interval() -> None:
    """Without noise all pairs are alike, and what is left is that of the rates, of both variants."""

    def plain(at: float, lowest: float, rise: float) -> Any:
        return lambda seed, k: lowest + rise * (k - at) ** 2

    found = simulate({"old": plain(0.0, 4.0, 0.04), "new": plain(0.0, 3.9, 0.02)})
    (effect,) = found.effects
    # Of three degrees of freedom, the one that seeds do not tell has the usual spread.
    each = PLACING + MISPLACED * USUAL_SPREAD**2 / 2 / 3
    assert found.standing.placing == {
        "old": pytest.approx(each * 0.04),
        "new": pytest.approx(each * 0.02),
    }
    expected = math.hypot(each * 0.04, each * 0.02)
    assert effect.placing_error == pytest.approx(expected)
    level = found.standing.looks.level(0.05, len(effect.seeds))
    half = stats.norm.isf(level / 2) * expected
    assert effect.interval.high - effect.mean == pytest.approx(half, rel=1e-6)


def test_a_difference_as_small_as_the_error_of_the_rates_is_none() -> None:
    """However alike the pairs: 0.15 % apart where losses rise by 5 %, and by 0.3 %."""

    def plain(lowest: float, rise: float) -> Any:
        return lambda seed, k: lowest * (1 + rise * k**2) + 1e-5 * math.sin(seed)

    asked = StudySpec(margin="0.01% of the loss")
    blind = simulate({"old": plain(4.0, 0.05), "new": plain(4.0 * 0.9985, 0.05)}, asked)
    sees = simulate({"old": plain(4.0, 0.003), "new": plain(4.0 * 0.9985, 0.003)}, asked)
    assert blind.effects[0].outcome != "better"
    assert sees.effects[0].outcome == "better"


def test_a_failed_run_takes_its_seed_and_the_study_ends() -> None:
    def breaks(seed: int, k: float) -> float:
        return math.nan if seed in (1, 4) else valley(0.0)(seed, k)

    found, _ = run_all(study(), {"old": valley(0.0), "new": breaks}, random.Random(0))
    assert not found.wanted
    assert {1, 4}.isdisjoint(found.compared["new"])
    assert found.decisions["new"].outcome == "equivalent"


def test_a_variant_that_cannot_be_tuned_keeps_no_other_from_being_decided() -> None:
    surfaces = {"old": valley(0.0), "broken": lambda seed, k: math.nan, "new": valley(0.0, 5.0)}
    found, _ = run_all(study(), surfaces, random.Random(0))
    assert (found.decisions["new"].outcome, found.decisions["new"].look) == ("superior", 5)
    assert not found.compared["broken"]
    assert "broken" not in found.decisions


@pytest.mark.filterwarnings("error")
def test_a_baseline_whose_first_pair_failed_is_compared_by_the_others() -> None:
    old = lambda seed, k: math.nan if seed == 0 else valley(0.0)(seed, k)  # noqa: E731
    found, _ = run_all(study(), {"old": old, "new": valley(0.0, 5.0)}, random.Random(0))
    assert found.decisions["new"].outcome == "superior"


def test_seeds_that_time_does_not_allow_are_not_wanted() -> None:
    noisy = {"old": valley(0.0), "new": lambda seed, k: valley(0.0)(seed, k) + 0.3 * (-1) ** seed}
    found, losses = run_all(study(), noisy, random.Random(0), seeds=5)
    assert max(seed for seed, _ in losses["old"] if seed < TUNING) == 4
    assert not found.decisions


def test_simulated_studies_are_judged_as_real_ones() -> None:
    found = simulate({"old": valley(0.0), "new": valley(0.4, 3.8)})
    assert found.effects[0].outcome == "better"
    assert found.runs == sum(map(len, found.losses.values()))
    assert found.effects[0].seeds == (0, 1, 2, 3, 4)


def judged(now: Standing, losses: dict[str, dict[tuple[int, float], float]]) -> str:
    """Return the outcome of a study of two variants."""
    replicates = [
        replicate([RunResult("", name, seed, 3.0**k, losses[name][seed, k], 1.0, 7.0)])
        for name, seeds in now.compared.items()
        for seed, (k,) in seeds.items()
    ]
    return effects(replicates, study(), "old", **now.judged)[0].outcome


def test_runs_that_fill_a_budget_turn_no_outcome() -> None:
    """Of differences that are barely found, or barely none, intervals of all pairs would say otherwise."""
    found: Counter[str] = Counter()
    for draw in range(60):
        drawn = np.random.default_rng(draw).normal(0, 0.02, (2, 40))
        surfaces = {
            name: lambda seed, k, own=own, level=level: (
                level * (1 + 0.028 * k**2) + float(own[seed % 40])
            )
            for name, own, level in zip(("old", "new"), drawn, (4.19, 4.16), strict=True)
        }
        early, losses = run_all(study(), surfaces, random.Random(0))
        outcome = judged(early, losses)
        filled, losses = run_all(study(), surfaces, random.Random(0), fill=True)
        assert len(filled.compared["new"]) == 10
        found[outcome] += 1
        found["earlier"] += len(early.compared["new"]) < 10
        assert judged(filled, losses) == outcome
    assert min(found["better"], found["equivalent"], found["earlier"]) >= 8, found


def test_tuning_seeds_follow_from_what_is_compared_and_are_never_compared() -> None:
    one = study().tuning_seed_numbers
    assert one == study(seeds=5, budget="20steps", ends=(5, 9)).tuning_seed_numbers
    others = [
        study(variants={"other": ("drawn",)}),
        study(baseline=("textbook",)),
        study(common=("data.text=notes.txt",)),
        study(first_seed=1),
    ]
    assert len({one[0], *(other.tuning_seed_numbers[0] for other in others)}) == 5
    for first in (0, 7, 2**62):
        most = study(seeds=1000, ends=(1000, 5000), first_seed=first, tuning_seeds=1000)
        assert most.seed_numbers == range(first, first + 5000)
        assert most.tuning_seed_numbers[0] >= most.seed_numbers.stop
        assert most.tuning_seed_numbers[-1] < 2**63
        assert len(most.tuning_seed_numbers) == 1000
    assert not study(tune_lr=False).tuning_seed_numbers
    assert not study(widths=(32, 64)).tuning_seed_numbers


class OfCompute(StudySpec):
    """A study whose margin is 10 % of compute."""

    @property
    def margin_of_loss(self) -> float | None:
        return None

    @property
    def margin_of_compute(self) -> float | None:
        return 0.1


def test_a_margin_of_compute_is_that_of_the_slope_and_unknown_without_it() -> None:
    surfaces = {"old": valley(0.0), "new": valley(0.0, 4.0005)}
    asked = OfCompute(variants={"new": ("drawn",)}, match="none")
    for slope, outcome in ((0.5, "equivalent"), (0.02, ""), (None, "")):
        found, _ = run_all(asked, surfaces, random.Random(0), slope=slope)
        decision = found.decisions.get("new")
        assert (decision.outcome if decision else "") == outcome, slope


def test_equivalence_beside_others_is_that_of_its_look_and_not_of_its_interval() -> None:
    """One variant's pairs lie close enough alone, but not if five others are compared, too."""

    def surface(own: float) -> Any:
        return lambda place, k: 4.0 + 0.002 * k**2 + own * (-1) ** place

    alone = simulate({"old": surface(0.0), "new": surface(0.048)})
    assert alone.effects[0].outcome == "equivalent"
    others = {f"{i}": surface(0.048) for i in range(6)}
    found = simulate({"old": surface(0.0), **others})
    for effect in found.effects:
        low, high = effect.equivalence.low, effect.equivalence.high
        assert -effect.margin < low < high < effect.margin
        assert effect.outcome == "inconclusive"
