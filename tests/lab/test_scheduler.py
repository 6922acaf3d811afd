"""What is run next, and what is left out when time runs short; nothing is trained here."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.lab.batching import Cell
from archwright.lab.results import RunResult
from archwright.lab.scheduler import LATE, Execution
from archwright.spec.study_spec import StudySpec

VALLEY = {-2: 3.6, -1: 3.14, 0: 3.0, 1: 3.1, 2: 3.5}
"""A loss for each rate: the best is in the middle, and no side is steep."""


class Crew:
    """Workers that do nothing."""

    def __init__(self, *running: Cell) -> None:
        self.running = set(running)


def execution(seconds: float = 10.0, budget: str = "10m", **options: Any) -> Execution:
    options = {"procedure": "sweep", "seeds": 5} | options
    study = StudySpec(variants={"b": ("dim=8",)}, budget=budget, **options)
    plan = SimpleNamespace(
        study=study,
        arms={"modern": None, "b": None},
        workers=2,
        steps=100,
        costs={name: SimpleNamespace(step=seconds / 100) for name in ("modern", "b")},
        run_seconds=lambda name, share=1.0: seconds * share,
        steps_of=lambda share: round(100 * share),
    )
    return Execution(plan, Path("study"), Path("runs"))  # type: ignore[arg-type]


def finish(found: Execution, *cells: Cell, losses: Mapping[float, float] = VALLEY) -> None:
    for cell in cells:
        loss = losses[cell.k] + 0.01 * cell.seed
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
    found = execution(tune_lr=False, seeds=4)
    assert found.wanted() == [Cell(n, s, 0) for s in range(4) for n in ("modern", "b")]
    finish(found, *found.wanted())
    assert found.wanted() == []
    assert len(found.replicates()) == 8


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
