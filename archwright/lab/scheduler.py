"""Running what a plan wants: runs that are there already are read, the others trained, whatever happens to them."""

import math
import shlex
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from archwright.lab import run_cache
from archwright.lab.batching import Cell, Groups, cells_of
from archwright.lab.plan import Plan, file_of
from archwright.lab.procedure import Standing, standing
from archwright.lab.results import Replicate, RunResult
from archwright.lab.statistics import text_error
from archwright.lab.sweep import replicate
from archwright.lab.workers import Done, Workers
from archwright.progress import Silent
from archwright.runs import RunFolder
from archwright.training.interrupt import Interrupt

LATE = 1.15
"""Times the budget, beyond which seeds that have not started are left out."""

LEAST_SEEDS = 3
"""Seeds that are never left out."""

GLANCE = 0.5
"""Seconds between looks at the runs."""


class Display(Silent):
    """Shows which runs are done, which go on, and how long the rest takes; this one shows nothing."""

    def update(self, execution: "Execution", running: Mapping[Cell, RunFolder]) -> None:
        """Show where a study stands."""

    def ended(self, run: RunResult) -> None:
        """Show that a run ended."""


@dataclass
class Execution:
    """A study under way."""

    plan: Plan
    folder: Path
    runs_folder: Path
    results: dict[Cell, RunResult] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """Those that are run; the last ones are left out where time runs out."""
    may_shift: bool = True
    """Whether time allows a window of learning rates to move for all seeds."""
    learnt: float = math.inf
    """Loss of counting bigrams: a variant that is not better learnt too little to be judged."""
    plateau: float = math.inf
    """Loss above which hardly more was learnt than how often each token occurs."""
    spent: float = 0.0
    """Wall time of this process, and of runs that were there before it."""

    def __post_init__(self) -> None:
        self.seeds = self.seeds or list(self.plan.study.seed_numbers)
        self._groups = Groups(self.plan, self.runs_folder)
        self._started: set[Cell] = set()

    def run(self, workers: Workers, show: Display, interrupt: Interrupt) -> bool:
        """Train all that is wanted; return False where an interrupt came first.

        A run that fails does not keep the others from being made.
        """
        self._take_finished()
        before = self.spent
        started = time.monotonic()
        workers.size = self.plan.workers
        while not interrupt:
            self.spent = before + time.monotonic() - started
            self._take_finished()
            running = cells_of(workers)
            wanted = [cell for cell in self.wanted() if cell not in running]
            if not wanted and not workers.running:
                break
            if wanted and self._late(workers):
                continue
            while wanted and workers.free:
                group, folders = self._groups.take(wanted)
                self._started.update(group)
                wanted = [cell for cell in wanted if cell not in group]
                workers.give(group, {"do": "train", "folders": [str(f.path) for f in folders]})
            for done in workers.wait(GLANCE):
                self._end(done, show)
            show.update(self, {cell: self._folder(cell) for cell in cells_of(workers)})
        self.spent = before + time.monotonic() - started
        return not self.wanted()

    def standing(self) -> Standing:
        """Return where the study stands by the runs that have ended."""
        return self._standing(self.may_shift)

    def wanted(self) -> list[Cell]:
        """Return the runs still to be made, the most urgent first."""
        return [Cell(*run) for run in self.standing().wanted]

    def replicates(self) -> list[Replicate]:
        """Return the seeds that are compared, of each variant those that have all their runs."""
        now, found = self.standing(), []
        for name, seeds in now.compared.items():
            for seed, powers in seeds.items():
                runs = [self.results[Cell(name, seed, k)] for k in powers]
                one = replicate(runs if self.by_halves else [replace(r, halves=None) for r in runs])
                # A rate that other seeds placed is at an end where their window is.
                edge = one.at_boundary or now.sweeps[name].at_boundary
                found.append(replace(one, at_boundary=edge) if len(powers) == 1 else one)
        return found

    @property
    def by_halves(self) -> bool:
        """Whether learning rates are tuned on one half of the held-out windows and variants judged on the other:
        where all runs have both, which those of earlier versions have not."""
        confirms = self.plan.study.procedure == "confirm"
        return confirms and all(run.halves or run.failed for run in self.results.values())

    @property
    def left_out(self) -> set[int]:
        """Seeds for which time ran short."""
        return {*self.plan.study.seed_numbers} - {*self.seeds}

    def command(self, cell: Cell) -> str:
        """Return what trains one run alone, with weights, samples and a page of its own."""
        file = file_of(self.plan, self.folder, cell.variant)
        words = ["archwright", "train", str(file), f"seed={cell.seed}"]
        lr = self.plan.arms[cell.variant].run.optimizer.learning_rates[0]
        words += [f"optimizer.{lr}={self.plan.lr(cell.variant, cell.k):g}"]
        words += ["--out", f"runs/{file.stem}-seed{cell.seed}"]
        for part in self.plan.study.parts:
            words += ["--parts", part.name]
        return shlex.join(words)

    def run_seconds(self, name: str) -> float:
        """Return the wall time that a run of a variant takes: as measured, else as estimated."""
        took = [r.seconds for r in self.results.values() if r.variant == name and r.seconds > 0]
        estimated = self.plan.run_seconds(name)
        overhead = estimated - self.plan.costs[name].step * self.plan.steps
        return statistics.fmean(took) + max(0.0, overhead) if len(took) > 2 else estimated

    def outstanding(self) -> dict[str, int]:
        """Return how many runs each variant still has, those included that are not wanted yet, as if none was
        decided before the last seed."""
        now = self.standing()
        wanted = [run[0] for run in now.wanted]
        study, found = self.plan.study, {}
        grid = study.lr_grid_size if study.tune_lr else 1
        for name, sweep in now.sweeps.items():
            there = [c for c in self.results if c.variant == name]
            if not wanted:
                found[name] = 0
            elif study.procedure == "sweep":
                swept = sum(c.k in sweep.window for c in there)
                found[name] = max(wanted.count(name), len(self.seeds) * grid - swept)
            else:
                judged = sum(c.seed in self.seeds for c in there)
                open_still = name not in now.decisions
                found[name] = max(wanted.count(name), (len(self.seeds) - judged) * open_still)
                found[name] += len(sweep.wanted)
        return found

    def remaining(self) -> float:
        """Return the wall time that outstanding runs take together, about, those under way as if they had just
        begun."""
        work = sum(self.run_seconds(name) * n for name, n in self.outstanding().items())
        return work / self.plan.workers

    def _standing(self, may_shift: bool) -> Standing:
        losses: dict[str, dict[tuple[int, float], float]] = {name: {} for name in self.plan.arms}
        for cell, result in self.results.items():
            losses[cell.variant][cell.seed, cell.k] = self._loss(result)
        return standing(
            self.plan.study,
            losses,
            seeds=len(self.seeds),
            may_shift=may_shift,
            plateau=self.plateau,
            text_error=self._text_error,
        )

    def _loss(self, run: RunResult) -> float:
        """Return the loss that counts: on the half of the windows that tunes, or on the one that judges."""
        if not (self.by_halves and run.halves):
            return run.loss
        tunes = run.seed in self.plan.study.tuning_seed_numbers
        return run.halves.tuning if tunes else run.halves.judged

    def _text_error(self, variant: str, pairs: int) -> float:
        """Return the standard error of a variant's mean from the choice of documents."""
        seeds = [*self.plan.study.seed_numbers][:pairs]
        by_seed = {
            (cell.variant, cell.seed): run.halves
            for cell, run in self.results.items()
            if cell.seed in seeds and self.by_halves
        }
        base = next(iter(self.plan.arms))
        return text_error([(by_seed.get((variant, s)), by_seed.get((base, s))) for s in seeds])

    def _folder(self, cell: Cell) -> RunFolder:
        """Return where a run is kept, whether it is there yet or not."""
        return self._groups.folder(cell)

    def _take_finished(self) -> None:
        """Read the runs that are wanted and were made before, which may make others wanted."""
        while found := [
            cell
            for cell in self.wanted()
            if cell not in self._started and run_cache.outcome(self._folder(cell))
        ]:
            for cell in found:
                self._read(cell)
                self.spent += self.run_seconds(cell.variant) / self.plan.workers

    def _read(self, cell: Cell) -> None:
        lr = self.plan.lr(cell.variant, cell.k)
        folder = self._folder(cell)
        self.results[cell] = run_cache.read(folder, cell.variant, cell.seed, lr, self.command(cell))

    def _end(self, done: Done, show: Display) -> None:
        assert isinstance(done.name, tuple)
        group: tuple[Cell, ...] = done.name
        why = done.why or "it was stopped"
        if done.state != "done" and len(group) > 1:
            self._groups.part(group, why)
            return
        for cell in group:
            if done.state == "done":
                self._read(cell)
            else:
                lr, key = self.plan.lr(cell.variant, cell.k), self._folder(cell).path.name
                self.results[cell] = run_cache.failure(
                    cell.variant, cell.seed, lr, key, why, self.command(cell)
                )
            show.ended(self.results[cell])

    def _late(self, workers: Workers) -> bool:
        """Leave out the last seed, or the move of a window, where there is no time for it."""
        budget = self.plan.study.wall_seconds
        if budget is None or self.spent + self.remaining() <= LATE * budget:
            return False
        started = {cell.seed for cell in (*self.results, *cells_of(workers))}
        if self.seeds[-1] not in started and len(self.seeds) > LEAST_SEEDS:
            left_out = self.seeds.pop()
            self.notes.append(f"Seed {left_out} was left out: the runs take longer than estimated.")
            return True
        if self.may_shift and not self._standing(may_shift=False).wanted:
            self.may_shift = False
            self.notes.append("A grid of learning rates was not moved on: there was no time left.")
            return True
        return False
