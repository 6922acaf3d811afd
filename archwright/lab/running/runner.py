"""Training the missing runs of a plan. Finished runs are read from the cache, and a failed run
does not stop others."""

import math
import shlex
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archwright.lab.design.plan import Cell, Plan, variant_file
from archwright.lab.results import RunResult
from archwright.lab.running import run_cache
from archwright.lab.running.run_job import training
from archwright.lab.running.workers import Done, Workers
from archwright.progress import Silent
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.training.interrupt import Interrupt

GLANCE = 0.5
"""Seconds between looks at the runs."""

UNSEEN = 60.0
"""Seconds to wait for files of another machine, for the caches of network file systems."""


class Display(Silent):
    """Progress display of a study: finished and running runs, remaining time. This one shows nothing."""

    def update(self, runner: "Runner", running: Mapping[Cell, RunFolder]) -> None:
        """Show the current state."""

    def ended(self, run: RunResult) -> None:
        """Show that a run ended."""


@dataclass
class Runner(ABC):
    """Runs of a plan in progress. Finished runs determine the next ones."""

    plan: Plan
    folder: Path
    runs_folder: Path
    results: dict[Cell, RunResult] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    spent: float = 0.0
    """Wall time of this process and of runs finished before."""
    parts: Sequence[str] = ()
    """Files with the user's choices, with their original paths."""

    def __post_init__(self) -> None:
        self._folders: dict[Cell, RunFolder] = {}
        self._started: set[Cell] = set()

    @abstractmethod
    def wanted(self) -> list[Cell]:
        """Return the missing runs, the most urgent first."""

    @abstractmethod
    def remaining(self) -> float:
        """Return the wall time that outstanding runs take together, about."""

    @abstractmethod
    def words(self, left: str) -> str:
        """Return the progress as text; `left` is the remaining time."""

    @property
    @abstractmethod
    def columns(self) -> Collection[int]:
        """The seeds that a table shows."""

    @property
    def left_out(self) -> Collection[int]:
        """Seeds for which time ran short."""
        return ()

    def run(self, workers: Workers, show: Display, interrupt: Interrupt) -> bool:
        """Train all missing runs; return False after an interrupt. Other runs continue after a failure."""
        self.take_finished()
        before = self.spent
        started = time.monotonic()
        workers.size = self.plan.workers
        while not interrupt:
            self.spent = before + time.monotonic() - started
            self.take_finished()
            running = cells_of(workers)
            wanted = [cell for cell in self.wanted() if cell not in running]
            if self._plans_anew(workers, wanted):
                continue
            if not wanted and not workers.running:
                break
            while wanted and workers.free:
                cell = wanted.pop(0)
                self._started.add(cell)
                workers.give(cell, training(self._prepare(cell).path))
            for done in workers.wait(GLANCE):
                self._end(done, show)
            show.update(self, {cell: self._folder(cell) for cell in cells_of(workers)})
        self.spent = before + time.monotonic() - started
        return not self.wanted()

    def take_finished(self) -> None:
        """Read finished runs from the cache, which may add missing runs."""
        while found := [
            cell
            for cell in self.wanted()
            if cell not in self._started and run_cache.outcome(self._folder(cell))
        ]:
            for cell in found:
                self._read(cell)
                self.spent += self.cell_seconds(cell) / self.plan.workers

    def command(self, cell: Cell) -> str:
        """Return the command that trains a run with weights, samples and page."""
        file = self.folder / variant_file(self.plan.arms, cell.variant)
        words = ["archwright", "train", str(file), f"seed={cell.seed}"]
        lr = self.plan.arms[cell.variant].run.optimizer.learning_rates[0]
        words += [f"optimizer.{lr}={self.plan.lr(cell.variant, cell.k):g}"]
        if cell.share < 1:
            run = self.plan.run(*cell)
            words += [f"machine.num_steps={run.machine.num_steps}"]
            words += [f"schedule.warmup={run.schedule.warmup}"]
        words += ["--out", f"runs/{file.stem}-seed{cell.seed}"]
        return shlex.join([*words, *self.parts_words()])

    def parts_words(self) -> list[str]:
        """Return the options of a command for files with the user's choices."""
        names = self.parts or [part.name for part in self.plan.study.parts]
        return [word for name in names for word in ("--parts", name)]

    def cell_seconds(self, cell: Cell) -> float:
        """Return the wall time that a run takes."""
        return self.run_seconds(cell.variant, cell.share, tunes=self.plan.tunes(cell.seed))

    def run_seconds(self, name: str, share: float = 1.0, *, tunes: bool = False) -> float:
        """Return the wall time of a run: measured if three runs have ended, else estimated."""
        estimated = self.plan.run_seconds(name, share, tunes=tunes)
        on_the_way = self.plan.run_seconds(name) - self.plan.run_seconds(name, tunes=True)
        took = [
            run.seconds - on_the_way * (not self.plan.tunes(cell.seed))
            for cell, run in self.results.items()
            if cell.variant == name and run.seconds > 0
        ]
        overhead = estimated - self.plan.costs[name].step * self.plan.steps_of(name, share)
        return statistics.fmean(took) * share + max(0.0, overhead) if len(took) > 2 else estimated

    def _plans_anew(self, workers: Workers, wanted: Collection[Cell]) -> bool:
        """Adjust the plan to the remaining time; return True if it changed."""
        return False

    def _folder(self, cell: Cell) -> RunFolder:
        """Return the folder of a run, which may not exist yet."""
        if cell not in self._folders:
            key = run_cache.key(self.plan.run(*cell), self.plan.arms[cell.variant].material)
            self._folders[cell] = RunFolder(self.runs_folder / key)
        return self._folders[cell]

    def _prepare(self, cell: Cell) -> RunFolder:
        """Return the prepared folder of a run."""
        arm = self.plan.arms[cell.variant]
        flops = arm.counts.flops_per_token
        run = self.plan.run(*cell)
        return run_cache.prepare(self.runs_folder, run, arm.material, self.plan.decisions, flops)

    def _read(self, cell: Cell) -> RunResult:
        lr = self.plan.lr(cell.variant, cell.k)
        folder = self._folder(cell)
        command, unit = self.command(cell), self.plan.unit
        return self._keep(cell, run_cache.read(folder, cell.variant, cell.seed, lr, command, unit))

    def _keep(self, cell: Cell, run: RunResult) -> RunResult:
        self.results[cell] = run
        return run

    def _end(self, done: Done, show: Display) -> None:
        cell = done.name
        assert isinstance(cell, Cell)
        if done.state == "done":
            _wait_until_seen(self._folder(cell))
            show.ended(self._read(cell))
            return
        lr, key = self.plan.lr(cell.variant, cell.k), self._folder(cell).path.name
        why = done.why or "it was stopped"
        command, nan = self.command(cell), math.nan
        run = RunResult(
            key, cell.variant, cell.seed, lr, nan, nan, nan, failed=why, command=command
        )
        show.ended(self._keep(cell, run))


def _wait_until_seen(folder: RunFolder) -> None:
    """Wait up to UNSEEN seconds for the files of a run of another machine."""
    end = time.monotonic() + UNSEEN
    while not run_cache.outcome(folder):
        if time.monotonic() > end:
            raise UserError(
                f"{folder.path}: trained by another machine, but nothing of it is seen here: runs need a file system "
                "that all machines share"
            )
        time.sleep(GLANCE)


def cells_of(workers: Workers) -> list[Cell]:
    """Return the runs that are being trained."""
    return [name for name in workers.running if isinstance(name, Cell)]
