"""Scheduling of a study: its next runs, and cuts if time is short."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import starmap
from typing import Any

from archwright.lab.design.ngrams import Counted
from archwright.lab.design.plan import Cell, horizons
from archwright.lab.procedure.compute import slope_at_end
from archwright.lab.procedure.constants import LEAST_PAIRS
from archwright.lab.procedure.standing import Standing, runs_for_slope, shorter_runs, standing
from archwright.lab.procedure.statistics import text_error
from archwright.lab.procedure.sweep import replicate
from archwright.lab.results import Replicate, RunResult
from archwright.lab.running.runner import Runner, cells_of
from archwright.lab.running.workers import Workers

LATE = 1.02
"""Share of the budget above which pending work is cut."""

LEAST_SEEDS = 3
"""Seeds that are never left out."""
KEPT_SEEDS = 0.7
"""Share of the seeds below which shorter horizons are cut first."""

ENDING = 3.0
"""Seconds from the last run to the prompt: tables and page."""


@dataclass
class Execution(Runner):
    """A study under way."""

    shorter: dict[Cell, RunResult] = field(default_factory=dict)
    """Runs of a share of the steps."""
    fills: bool = False
    """True if the study is decided and the rest of a time budget is used."""
    shorter_pairs: int = -1
    """Pairs with runs at shorter horizons, reduced if time is short. Default: the plan's."""
    seeds: list[int] = field(default_factory=list)
    """Seeds of the study; the last ones are dropped if time is short."""
    may_shift: bool = True
    """True if time allows a window of learning rates to move for all seeds."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """Losses of n-gram counts, by variant. A variant that is no better counts as unlearnt."""

    def __post_init__(self) -> None:
        self.seeds = self.seeds or list(self.plan.study.seed_numbers)
        if self.shorter_pairs < 0:
            self.shorter_pairs = self.plan.shorter_pairs
        super().__post_init__()

    def standing(self) -> Standing:
        """Return the current state of the study."""
        slope = self.slope() if self.plan.study.margin_of_compute else None
        return self._standing(self.may_shift, slope=slope)

    def wanted(self) -> list[Cell]:
        """Return the missing runs: decisive runs, shorter horizons, then runs that fill the budget.

        The runs that measure the value of compute come first.
        """
        now = self.standing()
        if now.wanted:
            first = runs_for_slope(self.plan.study, self.plan.baseline.name, now)
            cells = [*starmap(Cell, first), *starmap(Cell, now.wanted)]
            return [cell for cell in cells if cell not in self.shorter]
        shorter = self._shorter(self.shorter_pairs)
        return [cell for cell in shorter if cell not in self.shorter] or self._filling()

    def replicates(self) -> list[Replicate]:
        """Return the compared seeds with complete runs, by variant."""
        now, found = self.standing(), []
        for name, seeds in now.compared.items():
            for seed, powers in seeds.items():
                runs = [self._as_judged(self.results[Cell(name, seed, k)]) for k in powers]
                one = replicate(runs)
                # A rate that other seeds placed is at an end where their window is.
                edge = one.at_boundary or now.sweeps[name].at_boundary
                found.append(replace(one, at_boundary=edge) if len(powers) == 1 else one)
        return found

    def curves(self, name: str) -> dict[int, list[float]]:
        """Return a variant's losses by seed, one per horizon, shortest first.

        Only compared seeds with complete runs at all horizons are included.
        """
        shares, found = (*horizons(self.plan.study), 1.0), {}
        for seed, (k, *_) in self._standing(self.may_shift).compared.get(name, {}).items():
            cells = [Cell(name, seed, k, share) for share in shares]
            runs = [self.shorter.get(cell, self.results.get(cell)) for cell in cells]
            ended = [run for run in runs if run and not (run.failed or run.diverged)]
            if len(ended) == len(shares):
                found[seed] = [self.loss(run) for run in ended]
        return found

    def slope(self) -> float | None:
        """Return the fall of the baseline's loss per e-fold of compute, None if unknown."""
        return slope_at_end(self.curves(self.plan.baseline.name), horizons(self.plan.study))

    def _shorter(self, pairs: int) -> list[Cell]:
        study, compared = self.plan.study, self.standing().compared
        return [Cell(*run) for run in shorter_runs(study, compared, pairs)]

    def _filling(self) -> list[Cell]:
        """Return the started runs of the next seed, or those within the time budget."""
        study = self.plan.study
        if study.budget.seconds is None:
            return []
        filled = self._standing(self.may_shift, fill=True).wanted
        runs = [Cell(*run) for run in filled]
        if not runs and self.shorter_pairs:
            runs = [c for c in self._shorter(len(self.seeds)) if c not in self.shorter]
        runs = [cell for cell in runs if cell.seed == runs[0].seed]
        # Together they take as long as the slowest worker, which has the most of them.
        each = max(map(self.cell_seconds, runs), default=0.0)
        rounds = math.ceil(len(runs) / self.plan.workers)
        fits = self.spent + each * rounds + ENDING <= (study.wall_seconds or 0.0)
        started = any(self._folder(cell).started for cell in runs)
        self.fills = bool(runs) and (fits or started)
        return runs if self.fills else []

    @property
    def by_halves(self) -> bool:
        """True if tuning and judging use separate halves of the held-out windows."""
        return bool(self.plan.study.tuning_seed_numbers)

    def _as_judged(self, run: RunResult) -> RunResult:
        """Return a run with its judging loss and the document sums of its `halves`."""
        if self.by_halves or run.halves is None:
            return run
        whole = None if self.plan.study.widths else replace(run.halves, judged=run.loss)
        return replace(run, halves=whole)

    @property
    def left_out(self) -> set[int]:
        """Seeds for which time ran short."""
        return {*self.plan.study.seed_numbers} - {*self.seeds}

    def outstanding(self) -> dict[str, int]:
        """Return each variant's number of pending runs without early decisions."""
        now = self.standing()
        wanted = [run[0] for run in now.wanted]
        study, found = self.plan.study, {}
        grid = study.lr_grid_size if study.tune_lr else 1
        for name, sweep in now.sweeps.items():
            there = [c for c in self.results if c.variant == name]
            if not wanted:
                found[name] = 0
            elif study.widths:
                swept = sum(c.k in sweep.window for c in there)
                found[name] = max(wanted.count(name), len(self.seeds) * grid - swept)
            else:
                judged = sum(c.seed in self.seeds for c in there)
                open_still = name not in now.decisions
                found[name] = max(wanted.count(name), (len(self.seeds) - judged) * open_still)
                found[name] += len(sweep.wanted)
        return found

    def remaining(self) -> float:
        """Return the approximate wall time of pending runs, or the rest of a budget to fill."""
        if self.fills:
            return max(0.0, (self.plan.study.wall_seconds or 0.0) - ENDING - self.spent)
        outstanding = {name: runs for name, runs in self.outstanding().items() if runs}
        sweeps = self.standing().sweeps
        work = {
            name: self._seconds_of(name, runs, len(sweeps[name].wanted))
            for name, runs in outstanding.items()
        }
        shared = sum(work.values()) + self._shorter_seconds(self.shorter_pairs)
        # The last runs do not use all workers.
        alone = (work[name] / min(self.plan.workers, runs) for name, runs in outstanding.items())
        return max(shared / self.plan.workers, max(alone, default=0.0))

    def _seconds_of(self, name: str, runs: int, swept: int) -> float:
        """Return the processor time of a variant's runs, including its sweeps."""
        tuning = min(runs, swept) if self.plan.study.tuning_seed_numbers else 0
        tuned = tuning * self.run_seconds(name, tunes=True)
        return tuned + (runs - tuning) * self.run_seconds(name)

    def words(self, left: str) -> str:
        done = len(self.results) + len(self.shorter)
        if self.fills:
            return f"{done} runs, those that decide are done, about {left} left to narrow intervals"
        total = done + sum(self.outstanding().values()) + self.outstanding_shorter()
        return f"{done} of {total} runs, about {left} left"

    @property
    def columns(self) -> list[int]:
        study = self.plan.study
        return [*study.tuning_seed_numbers, *study.seed_numbers]

    def outstanding_shorter(self) -> int:
        """Return the approximate number of pending runs at shorter horizons."""
        shares, pairs = horizons(self.plan.study), min(self.shorter_pairs, len(self.seeds))
        return max(0, pairs * len(shares) * len(self.plan.arms) - len(self.shorter))

    def _shorter_seconds(self, pairs: int) -> float:
        """Return the pending processor time of shorter horizons for a number of pairs."""
        whole = sum(
            min(pairs, len(self.seeds)) * self.run_seconds(name, share)
            for name in self.plan.arms
            for share in horizons(self.plan.study)
        )
        return max(0.0, whole - sum(map(self.cell_seconds, self.shorter)))

    def _standing(self, may_shift: bool, **given: Any) -> Standing:
        losses: dict[str, dict[tuple[int, float], float]] = {name: {} for name in self.plan.arms}
        for cell, result in self.results.items():
            losses[cell.variant][cell.seed, cell.k] = self.loss(result)
        return standing(
            self.plan.study,
            losses,
            seeds=len(self.seeds),
            may_shift=may_shift,
            plateau={name: found.plateau for name, found in self.counted.items()},
            learnt=self._learnt(),
            text_error=self._text_error,
            own_starts=self.plan.own_starts,
            **given,
        )

    def _learnt(self) -> dict[str, float]:
        """Return the loss above which a variant is not trained further.

        Exceptions: all its runs diverged, as another rate may learn; and tasks, which are solved late.
        """
        stops = self.counted and self.plan.study.early_stopping
        if not stops or self.plan.unit == "nats per answer":
            return {}
        trained = {cell.variant for cell, run in self.results.items() if not run.diverged}
        return {name: found.learnt for name, found in self.counted.items() if name in trained}

    def loss(self, run: RunResult) -> float:
        """Return the loss on the half of the windows for tuning or judging."""
        if not (self.by_halves and run.halves):
            return run.loss
        tunes = run.seed in self.plan.study.tuning_seed_numbers
        return run.halves.tuning if tunes else run.halves.judged

    def _text_error(self, variant: str, pairs: int) -> float:
        """Return the standard error of a variant's mean from the choice of documents."""
        if self.plan.study.widths:
            return 0.0
        seeds, base = self.plan.study.seed_numbers[:pairs], next(iter(self.plan.arms))
        by_seed = {
            (cell.variant, cell.seed): run.halves
            for cell, run in sorted(self.results.items(), key=lambda pair: -pair[0].k)
            if cell.variant in (variant, base) and cell.seed in seeds
        }  # of a seed that ran again at half its rate, those of the lower one
        return text_error([(by_seed.get((variant, s)), by_seed.get((base, s))) for s in seeds])

    def _keep(self, cell: Cell, run: RunResult) -> RunResult:
        (self.results if cell.share == 1.0 else self.shorter)[cell] = run
        return run

    def _plans_anew(self, workers: Workers, wanted: Collection[Cell]) -> bool:
        return self._late(workers) if wanted else self._takes_back()

    def _late(self, workers: Workers) -> bool:
        """Cut a seed (down to KEPT_SEEDS), horizons, or a window move if time is short."""
        budget = self.plan.study.wall_seconds
        if budget is None or self.spent + self.remaining() + ENDING <= LATE * budget:
            return self._takes_back()
        started = {cell.seed for cell in (*self.results, *cells_of(workers))}
        shortens = self._shorter_seconds(self.shorter_pairs) > 0
        kept = math.ceil(round(KEPT_SEEDS * self.plan.study.seeds, 6))
        least = max(LEAST_SEEDS, kept) if shortens else LEAST_SEEDS
        if self.seeds[-1] not in started and len(self.seeds) > least:
            self.seeds.pop()
            return True
        if shortens:
            self.shorter_pairs -= 1 if self.shorter_pairs > LEAST_PAIRS else self.shorter_pairs
            return True
        if self.may_shift and not self._standing(may_shift=False).wanted:
            self.may_shift = False
            self.notes.append("A grid of learning rates was not moved on: there was no time left.")
            return True
        return False

    def _takes_back(self) -> bool:
        """Restore shorter horizons, then a seed, if there is time."""
        study, planned = self.plan.study, self.plan.study.seed_numbers
        if study.widths or study.wall_seconds is None:
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
