"""Batch and weight decay of a baseline: found on surfaces whose lowest point is known, in real runs, and only once."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from archwright.lab.compare import compare, plan
from archwright.lab.design.baseline import FURTHEST, Search, Setting, search
from archwright.lab.design.plan import Plan, of_steps
from archwright.lab.design.plan_file import PLAN
from archwright.lab.design.variants import arms
from archwright.lab.report.summary import announcement
from archwright.lab.results import StudyResults
from archwright.lab.running.baseline_runs import (
    at,
    num_steps,
    open_axes,
    remembered,
    tune,
    tuned_plan,
)
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec
from tests.lab.small import OPTIONS, losses, words, working_in

Surface = Callable[[Setting, int, float], float]
BOTH = ("batch", "decay")
SEEDS = (0, 1)


def valley(
    batch: float, decay: float, rise: float = 0.02, noise: float = 0.0, draw: int = 0
) -> Surface:
    """Return losses that are lowest at these powers, each batch at a rate of its own: the best moves by the root of
    the batch."""
    rng = np.random.default_rng(draw)

    def loss(setting: Setting, seed: int, k: float) -> float:
        off = (setting.batch - batch) ** 2 + (setting.decay - decay) ** 2
        best = 0.3 + setting.batch * 0.5 * np.log(2) / np.log(3)
        return float(4 * (1 + rise * off + 0.03 * (k - best) ** 2) + rng.normal(0, noise))

    return loss


def searched(surface: Surface, axes: tuple[str, ...] = BOTH, **options: object) -> Search:
    """Run a whole search."""
    known: dict[Setting, dict[tuple[int, float], float]] = {}
    while (found := search(known, axes, SEEDS, **options)).wanted:  # type: ignore[arg-type]
        for setting, seed, k in found.wanted:
            known.setdefault(setting, {})[seed, k] = surface(setting, seed, k)
    return found


@pytest.mark.parametrize(
    "lowest", [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (2, -1), (-3, 2), (3, 3)]
)
def test_the_lowest_setting_is_found(lowest: tuple[int, int]) -> None:
    found = searched(valley(*lowest))
    assert found.chosen == Setting(*lowest)
    assert {*found.chosen.beside("decay")} <= {*found.tried}
    assert found.tried[found.chosen].loss == pytest.approx(4.0, abs=1e-6)


def test_a_batch_is_judged_at_a_rate_of_its_own() -> None:
    """At one rate for all, the batch whose best rate that is would win."""
    rates = {setting.batch: v.k for setting, v in searched(valley(2, 0)).tried.items()}
    for batch, k in rates.items():
        assert k == pytest.approx(0.3 + batch * 0.5 * np.log(2) / np.log(3), abs=0.01)


def test_what_gains_little_changes_nothing() -> None:
    flat = valley(1, -1, rise=0.004)  # 0.4 % better
    assert searched(flat).chosen == Setting()
    assert searched(flat, gain=0.002).chosen == Setting(1, -1)


def test_noise_seldom_moves_it() -> None:
    """With the noise of real runs, the middle of a valley stays in nine of ten searches."""
    stayed = 0
    for draw in range(40):
        noisy = valley(0, 0, rise=0.002, noise=0.013, draw=draw)
        stayed += searched(noisy).chosen == Setting()
    assert stayed >= 34


def test_what_is_given_is_not_tuned() -> None:
    found = searched(valley(2, 2), axes=("decay",))
    assert found.chosen == Setting(0, 2)
    assert {setting.batch for setting in found.tried} == {0}


def test_a_search_ends() -> None:
    """Where losses fall without end, and where all runs fail."""
    found = searched(lambda setting, seed, k: 9 - setting.batch - setting.decay + k * k / 9)
    assert found.chosen == Setting(FURTHEST, FURTHEST)
    assert searched(lambda setting, seed, k: float("nan")).chosen == Setting()


def test_settings_that_cannot_be_trained_are_left_out() -> None:
    found = searched(valley(-3, 0), possible=lambda setting: setting.batch > -2)
    assert found.chosen == Setting(-1, 0)


def settled() -> RunSpec:
    """Return a run as a plan has it."""
    run = RunSpec().override(
        *("batch_size=8", "schedule.warmup=40", "evaluate.every=50", "optimizer.weight_decay=0.1")
    )
    return run.model_copy(update={"machine": run.machine.model_copy(update={"num_steps": 400})})


@pytest.mark.parametrize(
    ("batch", "steps", "warmup", "every"), [(4, 800, 80, 100), (32, 100, 10, 12)]
)
def test_another_batch_sees_as_many_tokens(batch: int, steps: int, warmup: int, every: int) -> None:
    run = settled()
    other = at(run, batch, 0.3)
    assert other.machine.num_steps == steps
    assert other.tokens_per_step * steps == run.tokens_per_step * 400
    assert (other.schedule.warmup, other.evaluate.every) == (warmup, every)
    assert other.optimizer.model_dump()["weight_decay"] == 0.3
    assert at(run, 8, 0.1) == run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("batch", "decay")),
        ({"common": ("batch_size=4",)}, ("decay",)),
        ({"baseline": ("modern", "optimizer.weight_decay=0.3")}, ("batch",)),
        ({"common": ("optimizer.weight_decay=0",)}, ("batch",)),
        (
            {"common": ("batch_size=4", "optimizer.weight_decay=0")},
            "nothing is left to tune, as batch_size is given",
        ),
        ({"tune_lr": False}, "leave out --no-tune-lr"),
        ({"procedure": "sweep"}, "--procedure sweep"),
    ],
)
def test_what_a_study_leaves_open(options: dict[str, object], expected: object) -> None:
    study = StudySpec(variants={"b": ("norm.kind=layer",)}, **options)  # type: ignore[arg-type]
    run = next(iter(arms(study, 2e5).values()))
    if isinstance(expected, tuple):
        assert open_axes(study, run) == expected
        return
    with pytest.raises(UserError, match=str(expected)):
        open_axes(study, run)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a text."""
    with working_in(tmp_path_factory.mktemp("tuned")) as folder:
        yield folder


HALVED = ":optimizer.weight_decay=0.05"
WORDS = [word for word in words("text.txt", HALVED) if "batch" not in word]
TUNED: dict[str, Any] = OPTIONS | {
    "tune_baseline": True,
    "tuning_seeds": 1,
    "budget": "8steps",
    "horizons": "none",
    "evaluation_tokens": 1024,
}


def tuned_words_of(results: StudyResults) -> str:
    """Return what a page says of batch and weight decay."""
    [held] = [held.value for held in results.held if held.what == "batch and weight decay"]
    return held


@pytest.fixture(scope="module")
def results(place: Path) -> StudyResults:
    return compare(*WORDS, quiet=True, out="study", **TUNED)


@pytest.mark.slow
def test_a_study_tunes_its_baseline_for_all_variants(results: StudyResults, place: Path) -> None:
    tuning = json.loads((place / "study" / PLAN).read_text("utf-8"))["tuning"]
    given, *others = tuning["trials"]
    found = tuning["trials"][tuning["chosen"]]
    assert (given["batch_size"], given["weight_decay"]) == (16, 0.1)
    # So few steps are made better by more of them at as many tokens.
    assert found["batch_size"] < 16
    assert found["loss"] < given["loss"]
    assert {trial["batch_size"] for trial in others} >= {8, found["batch_size"]}
    for run in results.runs:
        spec = RunFolder(place / "studies" / "runs" / run.key).spec
        assert spec.batch_size == found["batch_size"]
        assert spec.machine.num_steps == results.steps == 8 * 16 // found["batch_size"]
        decay = spec.optimizer.model_dump()["weight_decay"]
        assert decay == (0.05 if run.variant == HALVED[1:] else found["weight_decay"])
    # What tunes is not compared.
    assert not {r.seed for r in results.replicates} & {*tuning["seeds"]}
    held = tuned_words_of(results)
    assert held.startswith(f"batch {found['batch_size']} x 32 tokens and weight decay")
    assert "tuned for modern at 15.5k parameters" in held
    assert held in (place / "study" / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_study_that_goes_on_tunes_nothing_again(results: StudyResults, place: Path) -> None:
    written = {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")}
    again = compare(*WORDS, quiet=True, out="study", **TUNED)
    assert losses(again) == losses(results)
    assert again.held == results.held
    assert {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")} == written


@pytest.mark.slow
def test_a_study_that_was_cut_off_while_it_tuned_uses_its_runs(
    results: StudyResults, place: Path
) -> None:
    """Its runs are there already, and what is found is the same."""
    written = {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")}
    (place / "studies" / "runs" / "tuned").rename(place / "kept")
    found = compare(*WORDS, quiet=True, out="cut", **TUNED)
    now = {f: f.stat().st_mtime_ns for f in place.rglob("metrics.jsonl")}
    assert {f: now[f] for f in written} == written
    assert now.keys() == written.keys()
    assert tuned_words_of(found) == tuned_words_of(results)


@pytest.fixture(scope="module")
def near(results: StudyResults, place: Path) -> Plan:
    """The plan of another study, whose runs have half as many steps more."""
    return plan(*WORDS, out="other", runs="studies/runs", **TUNED | {"budget": "12steps"})


@pytest.mark.slow
def test_another_study_of_the_baseline_knows_what_was_found(near: Plan, place: Path) -> None:
    """But not where runs have far more tokens, or the baseline is another."""
    runs = place / "studies" / "runs"
    assert near.tuning
    assert near.tuning.earlier
    assert near.baseline.run.batch_size == near.tuning.found.batch_size < 16
    assert near.tokens_per_run == 12 * 16 * 32
    assert "by an earlier study, at 4.1k tokens a run" in announcement(near)
    given = as_given(near)
    assert remembered(runs, given) == near.tuning
    assert remembered(runs, replace(given, steps=17)) is None
    smooth = given.baseline.run.model_copy(update={"label_smoothing": 0.1})
    arm = replace(given.baseline, run=smooth)
    assert remembered(runs, replace(given, arms={arm.name: arm})) is None
    [file] = (runs / "tuned").iterdir()
    text = file.read_text("utf-8")
    file.write_text(text[:100], "utf-8")  # damaged: it is found again
    assert remembered(runs, given) is None


@pytest.mark.slow
def test_what_is_to_be_tuned_is_announced_and_counted(near: Plan) -> None:
    pending = as_given(near)
    said = announcement(pending)
    assert "to be tuned for modern first, by seed 0: about 18 runs" in said
    assert pending.num_runs == replace(pending, tuning=None).num_runs + 18
    assert pending.seconds > 1.5 * replace(pending, tuning=None).seconds


@pytest.mark.slow
def test_where_time_is_short_runs_are(near: Plan) -> None:
    assert near.tuning
    asked = as_given(near, steps=400)
    whole = tuned_plan(asked, near.tuning)
    assert whole.tokens_per_run == asked.tokens_per_run
    half = tuned_plan(asked, near.tuning, left=whole.seconds / 2)
    assert 0.3 < half.steps / whole.steps < 0.6
    run = half.baseline.run
    assert run.machine.num_steps == half.steps
    given = asked.baseline.run.schedule.warmup
    assert run.schedule.warmup == pytest.approx(half.steps / 400 * int(given), rel=0.05)
    assert tuned_plan(asked, near.tuning, left=whole.seconds) == whole


@pytest.mark.slow
def test_time_is_shared_with_the_comparison_only_where_it_reads_the_same_runs(
    near: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of 10 seconds, 4 of which went into runs that a comparison of as many steps reads."""
    assert near.tuning
    asked, found = as_given(near, steps=4000), near.tuning.model_copy(update={"seconds": 6.0})
    monkeypatch.setattr("archwright.lab.running.baseline_runs.remember", lambda *_: None)
    whole = replace(tuned_plan(asked, found), tuning=None).seconds
    for left, spent, shorter in ((whole + 1, 6.0, False), (0.5 * whole, 10.0, True)):
        searcher: Any = SimpleNamespace(
            study_plan=asked, spent=5.0, expected=10, runs_folder=Path("runs")
        )
        searcher.run = lambda *_, of=searcher: setattr(of, "spent", 15.0) is None
        searcher.found = lambda seconds: found
        nothing: Any = None
        plan = tune(searcher, nothing, nothing, nothing, until=5.0 + 6.0 + left)
        assert plan.tuning
        assert plan.tuning.seconds == spent
        assert (plan.tokens_per_run < 0.9 * asked.tokens_per_run) == shorter
        if shorter:  # what is left is what the clock left
            assert replace(plan, tuning=None).seconds == pytest.approx(left - 4.0, rel=0.05)


def as_given(found: Plan, steps: int = 12) -> Plan:
    """Return a plan as it was before its baseline was tuned."""
    assert found.tuning
    given, pending = found.tuning.trials[0], found.tuning.model_copy(update={"trials": ()})
    arms = {}
    for name, arm in found.arms.items():
        run = at(arm.run, given.batch_size, given.weight_decay)
        arms[name] = replace(arm, run=of_steps(run, steps, steps / num_steps(run)))
    return replace(found, arms=arms, steps=steps, tuning=pending)
