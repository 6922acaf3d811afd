"""Which runs are trained as one; nothing is trained here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.lab import batching
from archwright.lab.batching import Cell, Groups
from archwright.spec.study_spec import StudySpec

STUDY = StudySpec(variants={"b": ("dim=8",)}, seeds=10)
RATES = [Cell("b", 0, k) for k in (-1.0, 0.0, 1.0)]
SEEDS = [Cell("b", seed, 0.0) for seed in range(2, 10)]


class Folders:
    """Folders of runs that are kept in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stacks: dict[str, list[str]] = {}
        cache = SimpleNamespace(
            key=lambda run, material: name(run),
            prepare=self.prepare,
            stack_of=lambda folder: self.stacks.get(folder.name, []),
            part=lambda folder, why: self.stacks.update({folder.name: []}),
        )
        monkeypatch.setattr(batching, "run_cache", cache)
        monkeypatch.setattr(batching, "RunFolder", self.folder)

    def folder(self, path: Path) -> Any:
        return SimpleNamespace(path=path, name=path.name, started=path.name in self.stacks)

    def prepare(self, pool: Path, run: Cell, *_: object, stack: list[str], why: str) -> None:
        self.stacks.setdefault(name(run), list(stack))


def name(cell: Cell) -> str:
    return f"{cell.variant}{cell.seed}{cell.k}{cell.share}"


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Folders:
    return Folders(monkeypatch)


def groups(workers: int, stack: int = 8) -> Groups:
    arm = SimpleNamespace(material=None, counts=SimpleNamespace(flops_per_token=1.0))
    plan: Any = SimpleNamespace(
        study=STUDY,
        stack=stack,
        arms={"modern": arm, "b": arm},
        decisions=None,
        why="",
        run=lambda *cell: Cell(*cell),
    )
    return Groups(plan, Path("runs"), lambda cell: workers)


def dealt(found: Groups, wanted: list[Cell]) -> list[int]:
    """Return the sizes of the stacks, in the order in which they are taken."""
    sizes, left = [], list(wanted)
    while left:
        group, _ = found.take(left)
        sizes.append(len(group))
        left = [cell for cell in left if cell not in group]
    return sizes


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("wanted", "workers", "stack", "sizes"),
    [
        (RATES, 1, 8, [3]),
        (RATES, 2, 8, [2, 1]),
        (RATES[:2], 2, 8, [1, 1]),
        (RATES, 4, 8, [1, 1, 1]),
        (RATES, 2, 1, [1, 1, 1]),
        (SEEDS[:6], 1, 8, [6]),  # seeds 0 to 7 after those that tune
        (SEEDS[:6], 2, 8, [3, 3]),
        (SEEDS[:5], 1, 4, [4, 1]),
        (SEEDS, 3, 8, [3, 3, 2]),
        ([*RATES, *SEEDS[:4]], 2, 8, [2, 1, 2, 2]),
    ],
)
def test_runs_are_dealt_out_to_workers(
    wanted: list[Cell], workers: int, stack: int, sizes: list[int]
) -> None:
    assert dealt(groups(workers, stack), wanted) == sizes


def test_stacks_are_the_same_whenever_they_are_taken(folders: Folders) -> None:
    """One after the other, with other runs already finished, or by another process after the first was killed."""
    first, _ = groups(2).take(SEEDS[:4])
    assert first == (SEEDS[0], SEEDS[1])
    second, of_second = groups(2).take([SEEDS[3], SEEDS[4]])
    assert second == (SEEDS[3],)
    assert [f.path.name for f in of_second] == [name(SEEDS[2]), name(SEEDS[3])]
    assert folders.stacks[name(SEEDS[0])] == [name(SEEDS[0]), name(SEEDS[1])]
    assert name(SEEDS[4]) not in folders.stacks


def test_runs_of_a_stack_that_failed_go_on_alone(folders: Folders) -> None:
    found = groups(1)
    group, _ = found.take(RATES)
    found.part(group, "a reason")
    assert dealt(found, RATES) == [1, 1, 1]
