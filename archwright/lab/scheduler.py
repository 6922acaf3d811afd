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
from archwright.lab.looks import no_text_error
from archwright.lab.ngrams import Counted
from archwright.lab.plan import Plan, file_of, horizons
from archwright.lab.procedure import Standing, shorter_runs, standing
from archwright.lab.results import Replicate, RunResult
from archwright.lab.statistics import text_error
from archwright.lab.sweep import replicate
from archwright.lab.workers import Done, Workers
from archwright.progress import Silent
from archwright.runs import RunFolder
from archwright.training.interrupt import Interrupt

LATE = 1.02
"""Times the budget, beyond which what has not started is left out."""

LEAST_SEEDS = 3
"""Seeds that are never left out."""

ENDING = 3.0
"""Seconds from the last run to the prompt: tables and page."""

LEAST_PAIRS = 2
"""Pairs whose shorter horizons tell anything: the error of a mean of one is not known."""

GLANCE = 0.5
"""Seconds between looks at the runs."""


class Display(Silent):
    """Shows which runs are done, which go on, and how long the rest takes; this one shows nothing."""

    def update(self, execution: "Execution", running: Mapping[Cell, RunFolder]) -> None:
        """Show where a study stands."""

    def ended(self, run: RunResult) -> None:
        """Show that a run ended."""


def fewer(pairs: int) -> int:
    """Return the next lower number of pairs that tells anything, else none."""
    return pairs - 1 if pairs > LEAST_PAIRS else 0


@dataclass
class Execution:
    """A study under way."""

    plan: Plan
    folder: Path
    runs_folder: Path
    results: dict[Cell, RunResult] = field(default_factory=dict)
    shorter: dict[Cell, RunResult] = field(default_factory=dict)
    """Runs of a share of the steps."""
    fills: bool = False
    """Whether all is decided and what is left of a budget in time is being used."""
    shorter_pairs: int = -1
    """Pairs for whose runs of a share of the steps time is left; by default those that were planned."""
    notes: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """Those that are run; the last ones are left out where time runs out."""
    may_shift: bool = True
    """Whether time allows a window of learning rates to move for all seeds."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """Losses of counting tokens: a variant that is not better learnt too little to be judged."""
    spent: float = 0.0
    """Wall time that the user waited for this process, and that of runs which were there before it."""

    def __post_init__(self) -> None:
        self.seeds = self.seeds or list(self.plan.study.seed_numbers)
        if self.shorter_pairs < 0:
            self.shorter_pairs = self.plan.shorter_pairs
        self._groups = Groups(self.plan, self.runs_folder)
        self._started: set[Cell] = set()

    def run(self, workers: Workers, show: Display, interrupt: Interrupt) -> bool:
        """Train all that is wanted; return False where an interrupt came first.

        A run that fails does not keep the others from being made.
        """
        self.take_finished()
        before = self.spent
        started = time.monotonic()
        workers.size = self.plan.workers
        while not interrupt:
            self.spent = before + time.monotonic() - started
            self.take_finished()
            running = cells_of(workers)
            wanted = [cell for cell in self.wanted() if cell not in running]
            if self._late(workers) if wanted else self._takes_back():
                continue
            if not wanted and not workers.running:
                break
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
        """Return the runs still to be made, the most urgent first: those that decide, then those of shorter horizons,
        then, where a budget in time leaves some, more of what narrows intervals."""
        if wanted := [Cell(*run) for run in self.standing().wanted]:
            return wanted
        shorter = self._shorter(self.shorter_pairs)
        return [cell for cell in shorter if cell not in self.shorter] or self._filling()

    def replicates(self) -> list[Replicate]:
        """Return the seeds that are compared, of each variant those that have all their runs."""
        now, halved, found = self.standing(), self.by_halves, []
        for name, seeds in now.compared.items():
            for seed, powers in seeds.items():
                runs = [self.results[Cell(name, seed, k)] for k in powers]
                one = replicate(runs if halved else [replace(r, halves=None) for r in runs])
                # A rate that other seeds placed is at an end where their window is.
                edge = one.at_boundary or now.sweeps[name].at_boundary
                found.append(replace(one, at_boundary=edge) if len(powers) == 1 else one)
        return found

    def _shorter(self, pairs: int) -> list[Cell]:
        study, compared = self.plan.study, self.standing().compared
        return [Cell(*run) for run in shorter_runs(study, compared, pairs)]

    def _filling(self) -> list[Cell]:
        """Return the runs of the next seed that fit into what is left of a budget in time, or were started when they
        did: of variants that were decided early, then of shorter horizons."""
        study = self.plan.study
        if study.budget.seconds is None:
            return []
        filled = self._standing(self.may_shift, fill=True).wanted
        runs = [Cell(*run) for run in filled]
        if not runs and self.shorter_pairs:
            runs = [c for c in self._shorter(len(self.seeds)) if c not in self.shorter]
        runs = [cell for cell in runs if cell.seed == runs[0].seed]
        # Together they take as long as the slowest worker, which has the most of them.
        each = max((self.run_seconds(c.variant, c.share) for c in runs), default=0.0)
        rounds = math.ceil(len(runs) / self.plan.workers)
        fits = self.spent + each * rounds + ENDING <= (study.wall_seconds or 0.0)
        started = any(self._folder(cell).started for cell in runs)
        self.fills = bool(runs) and (fits or started)
        return runs if self.fills else []

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
        if cell.share < 1:
            run = self.plan.run(*cell)
            words += [f"machine.num_steps={run.machine.num_steps}"]
            words += [f"schedule.warmup={run.schedule.warmup}"]
            words += [f"evaluate.every={run.evaluate.every}"]
        words += ["--out", f"runs/{file.stem}-seed{cell.seed}"]
        for part in self.plan.study.parts:
            words += ["--parts", part.name]
        return shlex.join(words)

    def run_seconds(self, name: str, share: float = 1.0) -> float:
        """Return the wall time that a run of a variant takes, or one of a share of its steps: as measured, else as
        estimated."""
        took = [r.seconds for r in self.results.values() if r.variant == name and r.seconds > 0]
        estimated = self.plan.run_seconds(name, share)
        overhead = estimated - self.plan.costs[name].step * self.plan.steps_of(share)
        return statistics.fmean(took) * share + max(0.0, overhead) if len(took) > 2 else estimated

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
        started; what is left of the budget where that is being used up."""
        if self.fills:
            return max(0.0, (self.plan.study.wall_seconds or 0.0) - ENDING - self.spent)
        work = sum(self.run_seconds(name) * n for name, n in self.outstanding().items())
        return (work + self._shorter_seconds(self.shorter_pairs)) / self.plan.workers

    def outstanding_shorter(self) -> int:
        """Return how many runs of shorter horizons are still to be made, about."""
        shares, pairs = horizons(self.plan.study), min(self.shorter_pairs, len(self.seeds))
        return max(0, pairs * len(shares) * len(self.plan.arms) - len(self.shorter))

    def _shorter_seconds(self, pairs: int) -> float:
        """Return the processor time of the runs of shorter horizons that so many pairs still need."""
        whole = sum(
            min(pairs, len(self.seeds)) * self.run_seconds(name, share)
            for name in self.plan.arms
            for share in horizons(self.plan.study)
        )
        return max(0.0, whole - sum(self.run_seconds(c.variant, c.share) for c in self.shorter))

    def _standing(self, may_shift: bool, *, fill: bool = False) -> Standing:
        losses: dict[str, dict[tuple[int, float], float]] = {name: {} for name in self.plan.arms}
        halved = self.by_halves
        for cell, result in self.results.items():
            losses[cell.variant][cell.seed, cell.k] = self.loss(result, halved)
        return standing(
            self.plan.study,
            losses,
            seeds=len(self.seeds),
            may_shift=may_shift,
            fill=fill,
            plateau={name: found.plateau for name, found in self.counted.items()},
            text_error=self._text_error if halved else no_text_error,
        )

    def loss(self, run: RunResult, by_halves: bool) -> float:
        """Return the loss that counts: on the half of the windows that tunes, or on the one that judges."""
        if not (by_halves and run.halves):
            return run.loss
        tunes = run.seed in self.plan.study.tuning_seed_numbers
        return run.halves.tuning if tunes else run.halves.judged

    def _text_error(self, variant: str, pairs: int) -> float:
        """Return the standard error of a variant's mean from the choice of documents."""
        seeds, base = self.plan.study.seed_numbers[:pairs], next(iter(self.plan.arms))
        by_seed = {
            (cell.variant, cell.seed): run.halves
            for cell, run in self.results.items()
            if cell.variant in (variant, base) and cell.seed in seeds
        }
        return text_error([(by_seed.get((variant, s)), by_seed.get((base, s))) for s in seeds])

    def _folder(self, cell: Cell) -> RunFolder:
        """Return where a run is kept, whether it is there yet or not."""
        return self._groups.folder(cell)

    def take_finished(self) -> None:
        """Read the runs that are wanted and were made before, which may make others wanted."""
        while found := [
            cell
            for cell in self.wanted()
            if cell not in self._started and run_cache.outcome(self._folder(cell))
        ]:
            for cell in found:
                self._read(cell)
                self.spent += self.run_seconds(cell.variant, cell.share) / self.plan.workers

    def _read(self, cell: Cell) -> None:
        lr = self.plan.lr(cell.variant, cell.k)
        folder = self._folder(cell)
        command, unit = self.command(cell), self.plan.unit
        self._keep(cell, run_cache.read(folder, cell.variant, cell.seed, lr, command, unit))

    def _keep(self, cell: Cell, run: RunResult) -> None:
        (self.results if cell.share == 1.0 else self.shorter)[cell] = run

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
                run = run_cache.failure(cell.variant, cell.seed, lr, key, why, self.command(cell))
                self._keep(cell, run)
            show.ended((self.results | self.shorter)[cell])

    def _late(self, workers: Workers) -> bool:
        """Leave out the last seed, the shorter horizons of a pair, or the move of a window, where there is no time for
        it: seeds down to those of the second look, then horizons, then seeds again."""
        budget = self.plan.study.wall_seconds
        if budget is None or self._end_of_study() <= LATE * budget:
            return self._takes_back()
        started = {cell.seed for cell in (*self.results, *cells_of(workers))}
        shortens = self._shorter_seconds(self.shorter_pairs) > 0
        least = max(LEAST_SEEDS, 2 * self.plan.study.seeds // 3) if shortens else LEAST_SEEDS
        if self.seeds[-1] not in started and len(self.seeds) > least:
            self.seeds.pop()
            return True
        if shortens:
            self.shorter_pairs = fewer(self.shorter_pairs)
            return True
        if self.may_shift and not self._standing(may_shift=False).wanted:
            self.may_shift = False
            self.notes.append("A grid of learning rates was not moved on: there was no time left.")
            return True
        return False

    def _end_of_study(self) -> float:
        """Return the wall time from the user's Enter to the prompt, about."""
        return self.spent + self.remaining() + ENDING

    def _takes_back(self) -> bool:
        """Take back the shorter horizons that were left out, where the runs turned out to be faster or less was to be
        decided, then a seed, where the last look is still to come."""
        study, planned = self.plan.study, self.plan.study.seed_numbers
        if study.procedure == "sweep" or study.wall_seconds is None:
            return False
        # What fills a budget gives way to them.
        left = study.wall_seconds - ENDING - self.spent - (0 if self.fills else self.remaining())
        for pairs in range(self.plan.shorter_pairs, self.shorter_pairs, -1):
            more = self._shorter_seconds(pairs) - self._shorter_seconds(self.shorter_pairs)
            if pairs >= LEAST_PAIRS and more / self.plan.workers <= left:
                self.shorter_pairs = pairs
                return True
        if len(self.seeds) == len(planned) or not self.standing().wanted:
            return False
        pair = sum(map(self.run_seconds, self.plan.arms)) / self.plan.workers
        if pair > left:
            return False
        self.seeds.append(planned[len(self.seeds)])
        return True
