"""What is run next, and what is left out when time runs short; nothing is trained here."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.lab.design.plan import Cell
from archwright.lab.procedure.standing import Standing, standing
from archwright.lab.results import Halves, RunResult
from archwright.lab.running.scheduler import LATE, Execution
from archwright.spec.study_spec import StudySpec

VALLEY = {-2: 3.6, -1: 3.14, 0: 3.0, 1: 3.1, 2: 3.5}
"""A loss for each rate: the best is in the middle, and no side is steep."""


class Crew:
    """Workers that do nothing."""

    def __init__(self, *running: Cell) -> None:
        self.running = set(running)


def execution(seconds: float = 10.0, budget: str = "10m", **options: Any) -> Execution:
    options = {"widths": (8, 16), "seeds": 5} | options
    study = StudySpec(variants={"b": ("dim=8",)}, budget=budget, **options)
    plan = SimpleNamespace(
        study=study,
        arms={"modern": None, "b": None},
        baseline=SimpleNamespace(name="modern"),
        workers=2,
        steps=100,
        shorter_pairs=4,
        own_starts=frozenset(),
        costs={name: SimpleNamespace(step=seconds / 100) for name in ("modern", "b")},
        run_seconds=lambda name, share=1.0, tunes=False: seconds * share,
        tunes=lambda seed: seed in study.tuning_seed_numbers,
        steps_of=lambda name, share: round(100 * share),
    )
    return Execution(plan, Path("study"), Path("runs"))  # type: ignore[arg-type]


def finish(found: Execution, *cells: Cell, losses: Mapping[float, float] = VALLEY) -> None:
    for cell in cells:
        loss = losses[cell.k] + 0.01 * (cell.seed % 1000)
        found.results[cell] = RunResult("", cell.variant, cell.seed, 3.0**cell.k, loss, 1.0, 6.0)


def test_the_first_seed_places_the_grids_before_others_run() -> None:
    found = execution()
    assert {cell.seed for cell in found.wanted()} == {0}
    assert len(found.wanted()) == 6
    finish(found, *found.wanted())
    assert [cell.seed for cell in found.wanted()] == [s for s in (1, 2, 3, 4) for _ in range(6)]


def test_seeds_come_one_after_another_so_that_whole_pairs_are_there_early() -> None:
    found = execution()
    done = 0
    while wanted := found.wanted():
        finish(found, wanted[0])
        done += 1
        assert max(len(found.standing().sweeps[n].seeds) for n in ("modern", "b")) - 1 <= min(
            len(found.standing().sweeps[n].seeds) for n in ("modern", "b")
        )
    assert done == 30
    assert len(found.replicates()) == 10


def test_fixed_rates_need_one_run_for_each_seed() -> None:
    found = execution(tune_lr=False, widths=(), horizons=(), seeds=4)
    assert found.wanted() == [Cell(n, s, 0) for s in range(4) for n in ("modern", "b")]
    finish(found, *found.wanted())
    assert found.wanted() == []
    assert len(found.replicates()) == 8


def halved(loss: float, tuning: float, judged: float) -> RunResult:
    """A run with losses on all windows, and on either half of them."""
    halves = Halves(tuning, judged, (60.0, 40.0), (60 * judged, 40 * judged + 1))
    return RunResult("", "", 0, 1e-3, loss, 1.0, 6.0, halves=halves)


def test_where_nothing_is_tuned_all_windows_judge() -> None:
    for tune_lr, loss in ((True, 3.2), (False, 3.1)):
        found = execution(widths=(), tune_lr=tune_lr, seeds=4)
        while wanted := found.standing().wanted:
            for cell in itertools.starmap(Cell, wanted):
                run = halved(3.1 + 0.1 * cell.k**2, 3.0 + 0.1 * cell.k**2, 3.2)
                found.results[cell] = replace(run, variant=cell.variant, seed=cell.seed)
        assert {one.loss for one in found.replicates()} == {loss}
        # Documents are known in either case.
        assert all(one.best.halves and one.best.halves.sums for one in found.replicates())


@pytest.mark.parametrize(
    ("seconds", "kept"), [(10.0, 5), (40.0, 5), (50.0, 4), (80.0, 3), (900.0, 3)]
)
def test_late_seeds_are_left_out_but_never_below_three(seconds: float, kept: int) -> None:
    found = execution(seconds)
    while found._late(Crew()):  # type: ignore[arg-type]
        pass
    assert len(found.seeds) == kept
    total = kept * 6 * seconds / 2
    assert kept == 3 or total <= LATE * 600


def test_what_is_left_counts_runs_that_place_a_rate_as_cheaper() -> None:
    """They are evaluated at their end alone; what compared runs took is what they cost beside their curve."""
    found = execution(10.0, widths=(), budget="10m", seeds=6)
    found.shorter_pairs = 0
    wanted = {name: len(s.wanted) for name, s in found.standing().sweeps.items()}
    runs = found.outstanding()
    assert 3 <= wanted["modern"] < runs["modern"]
    whole = found.remaining()
    found.plan.run_seconds = lambda name, share=1.0, tunes=False: 8.0 if tunes else 10.0  # type: ignore[method-assign]
    assert found.remaining() == pytest.approx(whole - 2.0 * sum(wanted.values()) / 2)
    # Measured: 9 seconds of steps and curve, of which 2 are the curve's; beside 6 of steps, 2 or 4 were estimated.
    found.plan.costs["b"].step = 0.06  # type: ignore[misc]
    for seed in (0, 1, 2):
        run = RunResult("", "b", seed, 1.0, 3.0, 1.0, 6.0, seconds=9.0)
        found.results[Cell("b", seed, 0.0)] = run
    assert found.run_seconds("b", tunes=True) == pytest.approx(7.0 + 2.0)
    assert found.run_seconds("b") == pytest.approx(7.0 + 4.0)


def test_a_seed_that_has_begun_is_not_left_out() -> None:
    found = execution(900.0)
    finish(found, Cell("b", 4, 0))
    assert not found._late(Crew())  # type: ignore[arg-type]
    assert found.seeds == [0, 1, 2, 3, 4]


def test_without_time_a_grid_is_not_moved_for_all_seeds() -> None:
    found = execution(100.0, seeds=3)
    low_end = {-2: 3.4, -1: 2.7, 0: 3.0, 1: 3.2}
    for name in ("modern", "b"):  # the first seed is best in the middle, the others at the end
        finish(found, *(Cell(name, 0, k) for k in (-1, 0, 1)))
        finish(found, *(Cell(name, s, k) for s in (1, 2) for k in (-1, 0, 1)), losses=low_end)
    assert {cell.k for cell in found.wanted()} == {-2}
    found.spent = 600.0
    assert found._late(Crew())  # type: ignore[arg-type]
    assert found.wanted() == []
    assert found.standing().sweeps["b"].at_boundary
    assert "not moved" in found.notes[0]


def test_budgets_of_steps_know_no_hurry() -> None:
    found = execution(1e6, budget="100steps")
    assert not found._late(Crew())  # type: ignore[arg-type]


def test_a_study_that_was_finished_on_whole_steps_goes_on_with_half_steps() -> None:
    """Its runs are from when one steep side was not enough; what is there is kept, the rest is asked for."""
    steep = {-1: 3.4, 0: 3.0, 1: 3.05, -0.5: 3.1, 0.5: 3.01}
    found = execution(budget="100steps")
    for name in ("modern", "b"):
        finish(found, *(Cell(name, s, k) for s in range(5) for k in (-1, 0, 1)), losses=steep)
    assert {(cell.seed, cell.k) for cell in found.wanted()} == {(0, -0.5), (0, 0.5)}
    while wanted := found.wanted():
        finish(found, *wanted, losses=steep)
    assert {tuple(sweep.window) for sweep in found.standing().sweeps.values()} == {(-0.5, 0.0, 0.5)}
    assert len(found.replicates()) == 10
    assert len(found.results) == 2 * 5 * 5


def tuned(found: Execution, better: float = 0.5) -> None:
    """Finish what tunes, and pairs of which "b" is better by so much."""
    while not (now := found.standing()).looks or any(s.wanted for s in now.sweeps.values()):
        tuning = found.plan.study.tuning_seed_numbers
        finish_confirmed(found, *(c for c in found.wanted() if c.seed in tuning), better=better)


def finish_confirmed(found: Execution, *cells: Cell, better: float = 0.5) -> None:
    for cell in cells:
        loss = 3.0 + 0.1 * cell.k**2 + 0.01 * (cell.seed % 10) - better * (cell.variant == "b")
        run = RunResult("", cell.variant, cell.seed, 3.0**cell.k, loss, 1.0, 6.0)
        found._keep(cell, run)


def confirming(monkeypatch: pytest.MonkeyPatch, seeds: int) -> Execution:
    """A study of ten minutes whose rates are tuned, and of whose runs none is on disk."""
    found = execution(budget="10m", widths=(), seeds=seeds)
    monkeypatch.setattr(found, "_folder", lambda cell: SimpleNamespace(started=False))
    tuned(found)
    return found


def test_what_decides_comes_first_then_shorter_horizons_then_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = confirming(monkeypatch, seeds=9)
    pairs = found.wanted()
    assert {cell.seed for cell in pairs} == {0, 1, 2, 3, 4}
    finish_confirmed(found, *pairs)
    assert found.standing().decisions["b"].look == 5
    shorter = found.wanted()
    assert {(c.seed, c.share) for c in shorter} == {(s, h) for s in range(4) for h in (0.25, 0.5)}
    assert {c.variant for c in shorter} == {"modern", "b"}
    finish_confirmed(found, *shorter)
    # A pair takes ten seconds on two cores, and three are kept for the page.
    found.spent = 600.0 - 3.0 - 10.0
    assert found.wanted() == [Cell("modern", 5, 0.0), Cell("b", 5, 0.0)]
    assert found.fills
    found.spent += 0.1
    assert found.wanted() == []
    assert not found.fills


def test_when_all_pairs_are_there_more_of_them_are_trained_for_shorter_horizons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = confirming(monkeypatch, seeds=6)
    seen: list[Cell] = []
    while wanted := found.wanted():
        seen += wanted
        finish_confirmed(found, *wanted)
    assert {c.seed for c in seen if c.share == 1.0} == {0, 1, 2, 3, 4, 5}
    assert [c.seed for c in seen if c.share < 1.0][-4:] == [5] * 4


def test_a_budget_of_steps_ends_with_what_was_decided() -> None:
    found = execution(budget="100steps", widths=(), seeds=9)
    tuned(found)
    while wanted := found.wanted():
        finish_confirmed(found, *wanted)
    tuning = {*found.plan.study.tuning_seed_numbers}
    assert {c.seed for c in found.results} - tuning == {0, 1, 2, 3, 4}
    assert len(found.shorter) == 2 * 4 * 2


@pytest.mark.parametrize(
    ("seconds", "kept", "pairs"),
    [
        (40.0, 9, 4),
        (60.0, 7, 4),
        (65.0, 7, 3),
        (71.0, 7, 2),
        (72.0, 8, 0),
        (100.0, 6, 0),
        (200.0, 3, 0),
    ],
)
def test_seeds_and_horizons_are_left_out_by_turns_and_seeds_come_back(
    seconds: float, kept: int, pairs: int
) -> None:
    """With a pair at a time: 7 pairs and the horizons of four, worth 3, take ten times that of one."""
    found = execution(seconds=seconds, budget="10m", widths=(), seeds=9)
    tuned(found)
    while found._late(Crew()):  # type: ignore[arg-type]
        pass
    assert (len(found.seeds), found.shorter_pairs) == (kept, pairs)
    found.plan.run_seconds = lambda name, share=1.0, tunes=False: 10.0 * share  # type: ignore[method-assign]
    while found._late(Crew()):  # type: ignore[arg-type]
        pass
    assert (len(found.seeds), found.shorter_pairs) == (9, 4)


def test_shorter_horizons_come_back_where_less_was_to_be_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = confirming(monkeypatch, seeds=9)
    found.shorter_pairs = 0
    finish_confirmed(found, *(c for c in found.wanted() if c.share == 1.0))
    found.spent = 600.0 - 3.0 - 14.9  # two pairs of a quarter and half of ten seconds take fifteen
    assert not found._takes_back()
    found.spent -= 0.1
    assert found._takes_back()
    assert {(cell.seed, cell.share) for cell in found.wanted()} == {
        (s, h) for s in (0, 1) for h in (0.25, 0.5)
    }
    assert not found._takes_back()
    found.spent -= 15.0
    assert found._takes_back()
    assert {cell.seed for cell in found.wanted()} == {0, 1, 2, 3}
    assert not found._takes_back()


def test_a_margin_of_compute_trains_the_baselines_shorter_runs_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its slope is what turns the margin into nats, without which no look finds equivalence."""
    found = confirming(monkeypatch, seeds=9)
    found.plan.study = found.plan.study.override("margin=10% of compute")  # type: ignore[misc]
    given: list[Any] = []
    real = standing

    def spied(*args: Any, slope: float | None = None, **options: Any) -> Standing:
        given.append(slope)
        return real(*args, **options)

    monkeypatch.setattr("archwright.lab.running.scheduler.standing", spied)
    first = found.wanted()
    assert first[:8] == [
        Cell("modern", s, first[0].k, h) for s in (0, 1, 2, 3) for h in (0.25, 0.5)
    ]
    assert {cell.share for cell in first[8:]} == {1.0}
    assert found.slope() is None
    for cell in first:
        loss = 2.0 + cell.share**-0.5 + 0.01 * (cell.seed % 10)
        found._keep(cell, RunResult("", cell.variant, cell.seed, 1.0, loss, 1.0, 6.0))
    assert found.slope() == pytest.approx(0.5)
    found.standing()
    assert given[-1] == pytest.approx(0.5)
    assert all(cell.share == 1.0 or cell.variant == "b" for cell in found.wanted())
    assert found.curves("b") == {}
