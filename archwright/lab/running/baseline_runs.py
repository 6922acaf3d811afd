"""Tuning batch and weight decay of a baseline by real runs, and what a study becomes by it."""

import json
import math
import shlex
import statistics
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from archwright.files import atomic_write
from archwright.lab.design.baseline import (
    RATIOS,
    Axis,
    Search,
    Setting,
    Trial,
    Tuning,
    Valley,
    expected_runs,
    search,
)
from archwright.lab.design.plan import LEAST_STEPS, Arm, Cell, Plan, of_steps
from archwright.lab.design.plan_file import Cost
from archwright.lab.design.variants import run_key, set_by
from archwright.lab.running import run_cache
from archwright.lab.running.runner import Display, Runner
from archwright.lab.running.workers import Workers
from archwright.spec.errors import UserError
from archwright.spec.run_spec import Optimizer, RunSpec
from archwright.spec.study_spec import StudySpec
from archwright.training.interrupt import Interrupt

SLOWEST = 1.5
"""Times the wall time of a run of what was given, beyond which a batch is left out where the budget is time: it would
have to be better at that many times fewer tokens."""

GAIN = 0.5
"""Share of the study's margin by which a neighbour must be better."""

SHORTER = 0.95
"""Share of a run's tokens that time must still pay for after the search, else runs of the comparison are shorter."""

OVERTIME = 1.1
"""Times the wall time that the search was planned to take, beyond which no further setting is started."""

BATCH, DECAY = "batch_size", "optimizer.weight_decay"


def open_axes(study: StudySpec, run: RunSpec) -> tuple[Axis, ...]:
    """Return the axes of a baseline that the study leaves open."""
    if not study.tuning_seed_numbers:
        raise UserError(
            "--tune-baseline: batches are tried at learning rates of their own, by seeds that are not compared later: "
            "leave out --no-tune-lr and --procedure sweep"
        )
    words = (*study.common, *study.baseline)
    given = {run_key(word).partition("=")[0] for word in words if "=" in word}
    axes: list[Axis] = []
    if BATCH not in given:
        axes.append("batch")
    if DECAY not in given and decay_of(run.optimizer):
        axes.append("decay")
    if not axes:
        raise UserError(
            f"--tune-baseline: nothing is left to tune, as {BATCH} is given, and {DECAY} is given or 0: leave out the "
            "option, or what is given"
        )
    return tuple(axes)


def decay_of(optimizer: Optimizer) -> float | None:
    """Return the weight decay of an optimizer, or None where it has none."""
    found = optimizer.model_dump().get("weight_decay")
    return None if found is None else float(found)


def at(run: RunSpec, batch_size: int, weight_decay: float | None) -> RunSpec:
    """Return a run of as many tokens with another batch size and weight decay."""
    if (batch_size, weight_decay) == (run.batch_size, decay_of(run.optimizer)):
        return run
    steps = max(1, round(run.batch_size * num_steps(run) / batch_size))
    if weight_decay is not None:
        optimizer = run.optimizer.model_copy(update={"weight_decay": weight_decay})
        run = run.model_copy(update={"optimizer": optimizer})
    run = run.model_copy(update={"batch_size": batch_size})
    return of_steps(run, steps, steps / num_steps(run))


def num_steps(run: RunSpec) -> int:
    """Return the steps of a settled run."""
    steps = run.machine.num_steps
    assert isinstance(steps, int)
    return steps


def tune(
    tuner: "Tuner", workers: Workers, show: Display, interrupt: Interrupt, until: float | None
) -> Plan:
    """Return the plan of a study after its baseline was tuned; unchanged after an interrupt.

    Args:
        until: wall time since the start at which the comparison must have ended.
    """
    plan, before = tuner.study_plan, tuner.spent
    if until is not None:
        work = tuner.expected * plan.run_seconds(plan.baseline.name, tunes=True)
        tuner.allowed = before + OVERTIME * work / plan.workers
    if not tuner.run(workers, show, interrupt):
        return plan
    took = tuner.spent - before
    tuning = tuner.found(took)
    remember(tuner.runs_folder, plan, tuning)
    if until is None:
        return tuned_plan(plan, tuning)
    new = tuned_plan(plan, tuning, until - before - tuning.seconds)
    if new.tokens_per_run >= SHORTER * plan.tokens_per_run:
        return new
    # Of other steps, the comparison has no run in common with the search.
    return tuned_plan(plan, tuning.model_copy(update={"seconds": took}), until - before - took)


@dataclass
class Tuner(Runner):
    """The runs that tune the baseline of a plan, each setting a variant of its own."""

    plateau: float = float("inf")
    """Loss above which the baseline learnt nothing."""
    allowed: float = float("inf")
    """Wall time after which no further setting is started."""

    def __post_init__(self) -> None:
        assert self.plan.tuning
        self.study_plan, self.tuning = self.plan, self.plan.tuning
        self._arms: dict[str, Arm] = {}
        self._settings: dict[str, Setting] = {}
        self._cut_short = False
        self._costs: dict[str, Cost] = {}
        self.plan = replace(self.plan, arms=self._arms, costs=self._costs, tuning=None)
        self._name(Setting())
        super().__post_init__()

    def search(self) -> Search:
        """Return where the search stands by the runs that have ended."""
        study = self.plan.study
        losses: dict[Setting, dict[tuple[int, float], float]] = {}
        for cell, run in self.results.items():
            known = losses.setdefault(self._settings[cell.variant], {})
            known[cell.seed, cell.k] = run.halves.tuning if run.halves else run.loss
        return search(
            losses,
            self.tuning.axes,
            self.tuning.seeds,
            grid=study.lr_grid_size,
            gain=GAIN * study.equivalence_margin,
            plateau=self.plateau,
            possible=self._is_possible,
        )

    def wanted(self) -> list[Cell]:
        found = self.search()
        runs = [Cell(self._name(setting), seed, k) for setting, seed, k in found.wanted]
        if not runs or self._cut_short:
            return []
        started = any(cell in self._started or self._folder(cell).started for cell in runs)
        each = self.cell_seconds(runs[0])
        if not started and self.spent + each * len(runs) / self.plan.workers > self.allowed:
            self._cut_short = bool(found.tried)
        return [] if self._cut_short else runs

    def found(self, seconds: float) -> Tuning:
        """Return what was found, in so many seconds of wall time."""
        found = self.search()
        # The comparison reads those of the first seed, as the second tunes only where losses are steep.
        own = sum(
            run.seconds
            for cell, run in self.results.items()
            if self._settings[cell.variant] == found.chosen
            and cell.seed == self.tuning.seeds[0]
            and run.seconds > 0
        )
        trials = [self._trial(setting, valley) for setting, valley in found.tried.items()]
        return self.tuning.model_copy(
            update={
                "trials": tuple(trials),
                "chosen": list(found.tried).index(found.chosen),
                "runs": len(self.results),
                "seconds": max(0.0, seconds - own / self.plan.workers),
                "cost": self._cost(found.chosen),
                "cut_short": self._cut_short,
            }
        )

    def _cost(self, found: Setting) -> float:
        took = {
            setting: [
                run.seconds
                for cell, run in self.results.items()
                if self._settings[cell.variant] == setting and run.seconds > 0
            ]
            for setting in (Setting(), found)
        }
        if not all(took.values()):
            return 1.0
        return statistics.median(took[found]) / statistics.median(took[Setting()])

    def command(self, cell: Cell) -> str:
        spec = str(self._folder(cell).path / "spec.toml")
        return shlex.join(["archwright", "train", spec, *self.parts_words()])

    def remaining(self) -> float:
        left = max(self.expected - len(self.results), len(self.wanted()))
        return left * self.run_seconds(self._name(Setting()), tunes=True) / self.plan.workers

    def words(self, left: str) -> str:
        total = max(self.expected, len(self.results) + len(self.wanted()))
        return (
            f"{len(self.results)} of about {total} runs that tune the baseline, about {left} left"
        )

    @property
    def columns(self) -> Collection[int]:
        return self.tuning.seeds

    def steps(self, cell: Cell) -> int:
        return num_steps(self._arms[cell.variant].run)

    @property
    def expected(self) -> int:
        """Runs of the whole search, about."""
        grid = self.plan.study.lr_grid_size
        return round(expected_runs(self.tuning, grid)) + len(self.tuning.seeds) * grid

    def _values(self, setting: Setting) -> tuple[float, float | None]:
        run = self.study_plan.baseline.run
        decay = decay_of(run.optimizer)
        if decay is not None and setting.decay:
            decay = float(f"{decay * float(RATIOS['decay']) ** setting.decay:.3g}")
        return run.batch_size * float(RATIOS["batch"]) ** setting.batch, decay

    def _is_possible(self, setting: Setting) -> bool:
        run = self.study_plan.baseline.run
        batch, _ = self._values(setting)
        steps = self.study_plan.steps * run.batch_size / batch
        if batch != int(batch) or batch < run.grad_accum_steps:
            return False
        if self.study_plan.study.wall_seconds and self._cost(setting) > SLOWEST:
            return False
        return setting.batch <= 0 or steps >= LEAST_STEPS

    def _name(self, setting: Setting) -> str:
        """Return what a setting is called, and know it by that."""
        batch, decay = self._values(setting)
        name = f"batch {batch:g}" + ("" if decay is None else f", weight decay {decay:g}")
        if name not in self._arms:
            baseline = self.study_plan.baseline
            self._settings[name] = setting
            # At as many tokens, and so about as long, whatever the batch.
            self._costs[name] = self.study_plan.costs[baseline.name]
            self._arms[name] = replace(baseline, name=name, run=at(baseline.run, int(batch), decay))
        return name

    def _trial(self, setting: Setting, valley: Valley) -> Trial:
        batch, decay = self._values(setting)
        lr, loss = self.plan.lr(self._name(setting), valley.k), valley.loss
        known = loss < float("inf")
        return Trial(batch_size=int(batch), weight_decay=decay, lr=lr, loss=loss if known else None)


def tuned_plan(plan: Plan, tuning: Tuning, left: float | None = None) -> Plan:
    """Return the plan of a study with the tuned batch, and the weight decay where variants set no other.

    Args:
        left: wall time for the comparison; runs are shorter where it does not pay for the tokens of the search.
    """
    before, found = plan.baseline.run, tuning.found
    arms, decay = {}, decay_of(before.optimizer)
    for name, arm in plan.arms.items():
        own = decay_of(arm.run.optimizer)
        keeps = own != decay or DECAY in set_by(plan.study.variants.get(name, ()))
        run = at(arm.run, found.batch_size, own if keeps else found.weight_decay)
        arms[name] = replace(arm, run=run)
    each = tuning.cost * found.batch_size / before.batch_size
    costs = {name: replace(cost, step=cost.step * each) for name, cost in plan.costs.items()}
    steps = num_steps(next(iter(arms.values())).run)
    new = replace(plan, arms=arms, costs=costs, steps=steps, tuning=tuning)
    if left is None:
        return new
    needed = replace(new, tuning=None).seconds
    fixed = replace(new, tuning=None, steps=0).seconds
    paid = int(steps * (left - fixed) / max(1e-9, needed - fixed))
    if paid >= SHORTER * steps:
        return new
    paid = min(steps, max(LEAST_STEPS, paid))
    arms = {
        name: replace(arm, run=of_steps(arm.run, paid, paid / num_steps(arm.run)))
        for name, arm in arms.items()
    }
    return replace(new, arms=arms, steps=paid)


def remember(runs_folder: Path, plan: Plan, tuning: Tuning) -> None:
    """Keep what was found beside the runs, for other studies of the same baseline, size and text."""
    if tuning.cut_short:
        return
    file = _file(runs_folder, plan)
    others = [found for found in _known(file) if found.tokens != tuning.tokens]
    file.parent.mkdir(parents=True, exist_ok=True)
    found = [other.model_dump(mode="json") for other in (*others, tuning)]
    atomic_write(file, json.dumps(found, indent=2) + "\n")


def remembered(runs_folder: Path, plan: Plan) -> Tuning | None:
    """Return what an earlier study found at about as many tokens a run, between half and twice, or None."""
    assert plan.tuning
    known = [found for found in _known(_file(runs_folder, plan)) if found.axes == plan.tuning.axes]
    tokens = plan.tokens_per_run
    near = [found for found in known if tokens <= 2 * found.tokens <= 4 * tokens]
    best = min(near, key=lambda found: abs(math.log(found.tokens / tokens)), default=None)
    return best and best.model_copy(update={"earlier": True, "seconds": 0.0})


def _file(runs_folder: Path, plan: Plan) -> Path:
    """Return where it is kept: by all that decides a run, apart from its number of steps."""
    run, steps = plan.baseline.run, num_steps(plan.baseline.run)
    assert isinstance(run.schedule.warmup, int)
    tenths = round(10 * run.schedule.warmup / steps)
    update = {
        "seed": 0,
        "machine": run.machine.model_copy(update={"num_steps": 1}),
        "schedule": run.schedule.model_copy(update={"warmup": tenths}),
        "evaluate": run.evaluate.model_copy(update={"every": 0}),
    }
    name = run_cache.key(run.model_copy(update=update), plan.baseline.material)
    return runs_folder / "tuned" / f"{name}.json"


def _known(file: Path) -> list[Tuning]:
    """Return what a file holds; nothing where it was damaged, as it can be found again."""
    try:
        return TypeAdapter(list[Tuning]).validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
