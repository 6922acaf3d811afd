"""Which runs of a study a worker trains as one, and where each is kept."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from archwright.lab import run_cache
from archwright.lab.plan import Plan
from archwright.lab.workers import Workers
from archwright.runs import RunFolder


class Cell(NamedTuple):
    """One run of a study: the learning rate is the k-th of the variant's lattice."""

    variant: str
    seed: int
    k: float
    share: float = 1.0
    """Of the study's steps."""


Group = tuple[Cell, ...]


class Groups:
    """Runs of one variant that differ in seed and learning rate alone, in stacks.

    What is stacked follows from the plan and the runs that are wanted, not from the clock. The runs of a variant that
    are wanted together are dealt out to as many workers as it has for itself, and all their stacks are written into
    their folders before the first is trained; a run that was started, in a stack or alone, goes on as it was
    started, also in another study.
    """

    def __init__(self, plan: Plan, runs_folder: Path, workers_for: Callable[[Cell], int]) -> None:
        """Keep runs in a folder; `workers_for` says how many workers are there for a run and those like it."""
        self.plan, self.runs_folder, self._workers_for = plan, runs_folder, workers_for
        self._folders: dict[Cell, RunFolder] = {}

    def folder(self, cell: Cell) -> RunFolder:
        """Return where a run is kept, whether it is there yet or not."""
        if cell not in self._folders:
            key = run_cache.key(self.plan.run(*cell), self.plan.arms[cell.variant].material)
            self._folders[cell] = RunFolder(self.runs_folder / key)
        return self._folders[cell]

    def take(self, wanted: Sequence[Cell]) -> tuple[Group, list[RunFolder]]:
        """Return the first of the runs and those that are trained with it, and the folders of the whole stack,
        begun: some may be finished already."""
        first = wanted[0]
        if self._is_new(first):
            for group in self._stacks(first, wanted):
                self._write(group, [self._name(cell) for cell in group])
        names = run_cache.stack_of(self.folder(first)) or [self._name(first)]
        group = tuple(cell for cell in wanted if self._name(cell) in names)
        self._write(group, names)
        return group, [RunFolder(self.runs_folder / name) for name in names]

    def part(self, group: Group, why: str) -> None:
        """Let each run of a stack that failed go on alone, so that one does not keep the others from being made."""
        for cell in group:
            run_cache.part(self.folder(cell), f"the stack failed: {why}")

    def _stacks(self, first: Cell, wanted: Sequence[Cell]) -> list[Group]:
        """Return the stacks of all that could be trained with a run, none much larger than another; or that run."""
        if self.plan.stack == 1:
            return [(first,)]
        place = self._place(first)
        alike = [
            c
            for c in wanted
            if (self._place(c), c.share) == (place, first.share) and self._is_new(c)
        ]
        number = max(self._workers_for(first), math.ceil(len(alike) / self.plan.stack))
        size = math.ceil(len(alike) / number)
        return [tuple(alike[i : i + size]) for i in range(0, len(alike), size)]

    def _write(self, group: Group, names: Sequence[str]) -> None:
        for cell in group:
            run_cache.prepare(
                self.runs_folder,
                self.plan.run(*cell),
                self.plan.arms[cell.variant].material,
                self.plan.decisions,
                self.plan.arms[cell.variant].counts.flops_per_token,
                stack=names if len(names) > 1 else (),
                why=self.plan.why,
            )

    def _is_new(self, cell: Cell) -> bool:
        return not self.folder(cell).started

    def _place(self, cell: Cell) -> tuple[str, int]:
        """Return what runs of one stack have in common: the variant, and neighbouring seeds. The first seed of a
        sweep, which decides what the others do, is for itself."""
        study = self.plan.study
        number = cell.seed - study.seed_numbers[0]
        if not study.tune_lr or (study.tuning_seed_numbers and number >= 0):
            return cell.variant, number // self.plan.stack
        number = cell.seed - study.first_seed
        if study.tuning_seed_numbers:
            return cell.variant, -1 - number
        return cell.variant, -1 if number == 0 else (number - 1) // seeds_each(self.plan)

    def _name(self, cell: Cell) -> str:
        return self.folder(cell).path.name


def seeds_each(plan: Plan) -> int:
    """Return how many whole sweeps a stack holds, at least one."""
    return max(1, plan.stack // plan.study.lr_grid_size)


def cells_of(workers: Workers) -> list[Cell]:
    """Return the runs that are being trained."""
    groups = [name for name in workers.running if isinstance(name, tuple)]
    return [cell for group in groups for cell in group]
