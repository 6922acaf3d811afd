"""Execution of a study of another trainer: missing runs, workers, and records."""

import inspect
import json
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from archwright.lab.design.plan import slug
from archwright.lab.external import run_job
from archwright.lab.external.command import masked
from archwright.lab.external.metric import Reading
from archwright.lab.external.run_job import Order
from archwright.lab.external.spec import ExternalSpec, code_of, content_of, hashed
from archwright.lab.procedure.compute import slope_at_end
from archwright.lab.procedure.constants import MOVES, PAIRS, SLIDES
from archwright.lab.procedure.looks import Looks
from archwright.lab.procedure.standing import Standing, runs_for_slope, shorter_runs, standing
from archwright.lab.procedure.sweep import first_window
from archwright.lab.results import Point, RunResult
from archwright.lab.running.jobs import Answer, Executor, Handle, Job, job
from archwright.lab.running.progress import described
from archwright.lab.running.workers import Workers
from archwright.spec.errors import UserError

GLANCE = 0.5
"""Seconds between looks at the runs."""
COMMAND = (sys.executable, "-P", "-m", "archwright.lab.external.run_job")


class Run(NamedTuple):
    """A run of a study."""

    variant: str
    seed: int
    k: float
    """Power of the ratio between learning rates."""
    steps: int | None
    twin: bool = False
    """A repetition that shows if the trainer is deterministic."""


@dataclass
class Execution:
    """A study under way."""

    spec: ExternalSpec
    folder: Path
    max_runs: float = math.inf
    seconds: float = math.inf
    function: Callable[..., Any] | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Variants of a function by name."""
    mix_code: bool = False
    say: Callable[[str], None] = lambda text: None
    results: dict[Run, dict[str, Any]] = field(default_factory=dict)
    spent: float = 0.0
    left_out: str = ""
    """The bound that was reached."""
    code: str = ""

    def __post_init__(self) -> None:
        self.baseline = next(iter(self.spec.variants))
        self._template = self.spec.template if self.spec.command else None
        contents = {name: repr(value) for name, value in self.objects.items()} or self.spec.values
        self._contents = {name: content_of(value) for name, value in contents.items()}

    def lr(self, k: float) -> float:
        """Return a learning rate, 0 if the trainer has none."""
        return 0.0 if self.spec.lr is None else float(f"{self.spec.lr * self.spec.lr_ratio**k:.6g}")

    def steps(self, share: float) -> int | None:
        """Return the steps of a share of a run."""
        return self.spec.steps and max(1, round(share * self.spec.steps))

    def checks(self, twin: bool) -> list[Run]:
        """Return the short run before the study, and its twin."""
        spec, steps = self.spec, self.spec.check_steps
        if steps is None and spec.steps:
            steps = min(spec.steps, max(10, spec.steps // 20))
        seed = [*spec.tuning_seed_numbers, *spec.seed_numbers][0]
        first = Run(self.baseline, seed, 0.0, steps or spec.steps)
        return [first] * bool(steps or twin) + [first._replace(twin=True)] * twin

    def standing(self, slope: float | None = None) -> Standing:
        """Return the state of the study; `slope` as in `standing`."""
        losses: dict[str, dict[tuple[int, float], float]] = {n: {} for n in self.spec.variants}
        for run in self.results:
            if run.steps == self.spec.steps and not run.twin:
                losses[run.variant][run.seed, run.k] = self.loss(run)
        bound = dict.fromkeys(losses, self.learnt)
        return standing(self.spec, losses, plateau=bound, learnt=bound, slope=slope)

    def slope(self) -> float | None:
        """Return the fall of the baseline's loss per e-fold of steps, None if unknown."""
        return slope_at_end(self.curves(self.baseline), self.spec.horizons)

    def shorter(self) -> dict[Run, float]:
        """Return the runs of shorter horizons with their shares of the steps."""
        found = shorter_runs(self.spec, self.standing().compared)
        return {Run(name, seed, k, self.steps(share)): share for name, seed, k, share in found}

    def wanted(self) -> list[Run]:
        """Return missing runs, the most urgent first."""
        now = self.standing(self.slope())
        first = runs_for_slope(self.spec, self.baseline, now) if now.wanted else []
        runs = [Run(n, seed, k, self.steps(share)) for n, seed, k, share in first]
        runs += [Run(*run, self.spec.steps) for run in now.wanted]
        return self._missing(runs) or self._missing([*self.shorter()])

    def curves(self, name: str) -> dict[int, list[float]]:
        """Return a variant's losses by seed, one per horizon, shortest first.

        Only compared seeds with complete runs at all horizons are included.
        """
        found, steps = {}, [*map(self.steps, (*self.spec.horizons, 1.0))]
        for seed, (k, *_) in self.standing().compared.get(name, {}).items():
            runs = [Run(name, seed, k, number) for number in steps]
            if not self._missing(runs) and not any(map(self.diverged, runs)):
                found[seed] = [*map(self.loss, runs)]
        return found

    @property
    def highest(self) -> float:
        """Highest finite loss of any reading, which a diverged run counts as."""
        readings = (r.value * self.sign for v in self.results.values() for r in v["readings"])
        return max(filter(math.isfinite, readings), default=1.0)

    @property
    def learnt(self) -> float:
        """Loss below which a run counts as not diverged. Learning rates move down from it."""
        diverged = any(map(self.diverged, self.results))
        return self.highest - 1e-9 * abs(self.highest) if diverged else math.inf

    @property
    def sign(self) -> int:
        """Factor between metric and loss."""
        return -1 if self.spec.maximize else 1

    def value(self, run: Run) -> float:
        """Return the metric of a run."""
        return float(self.results[run]["readings"][-1].value)

    def diverged(self, run: Run) -> bool:
        """True if the metric of a run is not finite."""
        return not math.isfinite(self.value(run))

    def loss(self, run: Run) -> float:
        """Return the loss of a run."""
        return self.highest if self.diverged(run) else self.sign * self.value(run)

    def run_result(self, run: Run) -> RunResult:
        """Return a run as a page shows it."""
        values, nan = self.results[run], math.nan
        readings, cost = values["readings"], self.spec.cost_per_step.get(run.variant, 1.0)
        return RunResult(
            key=self.place(run).name,
            variant=run.variant,
            seed=run.seed,
            lr=values.get("lr", self.lr(run.k)),
            loss=self.loss(run),
            bits_per_byte=nan,
            initial_loss=self.highest,
            diverged=self.diverged(run),
            tokens=readings[-1].tokens or run.steps or 0,
            seconds=values["seconds"],
            curve=[
                Point(r.step, r.tokens or r.step, r.step * cost, nan, self.sign * r.value)
                for r in readings
                if r.step is not None and len(readings) > 1
            ],
            command=self.command(run),
        )

    def argv(self, run: Run, out: str, lr: str = "") -> tuple[str, ...]:
        """Return the command of a run; of a function, its arguments."""
        lr = lr or f"{self.lr(run.k):g}"
        values = {"variant": self.spec.values[run.variant], "seed": run.seed, "lr": lr}
        values |= {"steps": run.steps, "out": out}
        return self._template.fill(values) if self._template else (*map(str, values.values()),)

    def command(self, run: Run, lr: str = "") -> str:
        """Return the command of a run without secrets."""
        words = self.argv(run, "OUT" if lr else str(self.place(run) / "out"), lr)
        return masked(shlex.join(words), words) if self._template else ""

    def key(self, run: Run) -> dict[str, str]:
        """Return the identity of a run, without secrets: a new token repeats no run."""
        words = self.argv(run, "{out}")
        command = hashed(masked("\0".join(words), words).encode())
        return {"command": command, "variant": self._contents[run.variant], "code": self.code}

    def place(self, run: Run) -> Path:
        """Return the folder of a run."""
        key = self.key(run)
        name = hashed(f"{key['command']} {key['variant']}".encode())[:12]
        name = f"{slug(Path(run.variant).name)}-seed{run.seed}-{name}{'-twin' * run.twin}"
        return self.folder / "runs" / name

    def take(self, run: Run) -> bool:
        """Read the record of a run; return False if it is missing.

        Raises:
            UserError: The run was made with other code.
        """
        values = run_job.result(self.place(run))
        if values is None:
            return False
        if values["key"]["code"] != self.code and not self.mix_code:
            raise UserError(
                f"{self.place(run)}: made with other code (files of the command or --code, or the git commit); "
                "give --mix-code to count its runs too, or another --out"
            )
        self.results[run] = values
        return True

    def run(self, workers: Workers, checks: Sequence[Run], stop: Callable[[], object]) -> bool:
        """Make all runs; True if the study is complete.

        Raises:
            UserError: A run failed twice.
        """
        started, size = time.monotonic(), workers.size
        self.code = hashed(_source(self.function).encode()) if self.function else code_of(self.spec)
        for runs in (partial(self._missing, checks), self.wanted):
            while not stop():
                self.spent = time.monotonic() - started
                waiting = [run for run in runs() if run not in workers.running]
                if [run for run in waiting if self.take(run)]:
                    continue
                if not workers.running and (self.left_out or not waiting):
                    break
                # The first run is alone, so that a mistake in the command costs one run.
                workers.size = size if self.results else 1
                for run in waiting[: workers.free]:
                    if not self._is_bounded(len(workers.running)):
                        workers.give(run, self._job(run))
                for done in workers.wait(GLANCE):
                    self._end(done.name, done.state)  # type: ignore[arg-type]
        return not (stop() or self.left_out)

    def _missing(self, runs: Sequence[Run]) -> list[Run]:
        return [run for run in runs if run not in self.results]

    def _is_bounded(self, running: int) -> bool:
        """True if a bound allows no further run."""
        usual = sum(v["seconds"] for v in self.results.values()) / max(1, len(self.results))
        if len(self.results) + running >= self.max_runs:
            self.left_out = "--max-runs"
        elif self.spent + usual > self.seconds:
            self.left_out = "--budget"
        return bool(self.left_out)

    def _job(self, run: Run) -> Job:
        if self.function:
            return job(json.dumps(run))
        place, spec = self.place(run).resolve(), self.spec
        argv, limits = self.argv(run, str(place / "out")), (spec.timeout, spec.diverged_exit)
        order = Order(argv, str(place), spec.metric, self.key(run), *limits)
        return job(*COMMAND, json.dumps(asdict(order)))

    def _end(self, run: Run, state: str) -> None:
        place, words = self.place(run), self.argv(run, "")
        if state != "done" or not self.take(run):
            check = run.steps != self.spec.steps and not self.results
            raise UserError(
                f"{run.variant}, seed {run.seed}: failed twice: {run_job.failure(place)}"
                f"{'; a longer --check-steps may have it' * check}",
                f"command: {self.command(run)}",
                f"log: {place / run_job.LOG}",
                *(f"  {masked(line, words)}" for line in run_job.last_lines(place)),
                "Finished runs are kept; the same command continues.",
            )
        steps = f"  {run.steps:,} steps" if run.steps != self.spec.steps else ""
        self.say(f"{len(self.results)} runs  {described(self.run_result(run))}{steps}")


class _Ended(Handle):
    """A job that has ended."""

    def poll(self) -> Answer:
        return {"state": "done"}

    def cancel(self) -> None: ...


@dataclass
class FunctionExecutor(Executor):
    """Calls of a Python function in this process, one after another."""

    execution: Execution

    def submit(self, job: Job) -> Handle:
        run, execution = Run(*json.loads(job.argv[-1])), self.execution
        place, started = execution.place(run), time.monotonic()
        (place / "out").mkdir(parents=True, exist_ok=True)
        lr = execution.lr(run.k) or None
        given = {"seed": run.seed, "lr": lr, "steps": run.steps, "out": place / "out"}
        assert execution.function
        found = readings_of(execution.function(execution.objects[run.variant], **given))
        run_job.record(place, found, time.monotonic() - started, execution.key(run))
        return _Ended()

    def close(self) -> None: ...


@dataclass
class LocalExecutor(Executor):
    """Commands as processes of this machine, each with its group of GPUs."""

    gpus: list[list[str]]

    def submit(self, job: Job) -> Handle:
        return _LocalHandle(Order(**json.loads(job.argv[-1])), self.gpus)

    def close(self) -> None: ...


class _LocalHandle(Handle):
    def __init__(self, order: Order, free: list[list[str]]) -> None:
        self._stop, self._answer = threading.Event(), dict[str, Any]()
        gpus = free.pop(0) if free else []

        def follow() -> None:
            own = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
            state = "failed"
            try:
                state = run_job.run(replace(order, environment=own), self._stop)
            finally:
                free.extend([gpus] if gpus else [])
                self._answer["state"] = state

        threading.Thread(target=follow).start()

    def poll(self) -> Answer | None:
        return self._answer or None

    def cancel(self) -> None:
        self._stop.set()


def gpu_groups(per_job: int) -> list[list[str]]:
    """Return disjoint groups of the visible GPUs.

    Raises:
        UserError: Fewer GPUs than a run needs.
    """
    if not per_job:
        return []
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        import torch

        asked = ",".join(map(str, range(torch.cuda.device_count())))
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if len(names) < per_job:
        raise UserError(f"--gpus-per-job: found {len(names)} visible GPUs; expected {per_job}")
    return [names[i : i + per_job] for i in range(0, len(names) - per_job + 1, per_job)]


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a function; its name if there is none."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", type(function).__qualname__)


def readings_of(found: Any) -> list[Reading]:
    """Return readings from a number or a curve of (step[, tokens], value).

    Raises:
        UserError: Anything else.
    """
    try:
        if not isinstance(found, (list, tuple)):
            return [Reading(None, None, float(found))]
        rows = [(r[0], r[1] if len(r) == 3 else None, r[-1]) for r in found if len(r) in (2, 3)]
        if rows and len(rows) == len(found):
            return [Reading(int(s), None if t is None else int(t), float(v)) for s, t, v in rows]
    except (TypeError, ValueError):
        pass
    raise UserError(
        f"run: returned {found!r}; expected a number, or a list of (step, value) or (step, tokens, value)"
    )


def bounds(spec: ExternalSpec, checks: int) -> tuple[int, int]:
    """Return the bounds on the number of runs without failure or divergence."""
    looks = Looks(spec.seeds, spec.seeds, spec.early_stopping).numbers
    # Each move adds a rate, or grid - 1 if it doubles the step; so does each of two halvings.
    grid, most = spec.lr_grid_size, 3 * SLIDES + (MOVES + 2) * (spec.lr_grid_size - 1)
    tuning = (grid, (grid + most) * spec.tuning_seeds) if spec.tune_lr else (0, 0)
    runs = (
        tune + pairs + min(PAIRS, pairs) * len(spec.horizons)
        for tune, pairs in zip(tuning, (looks[0], looks[-1]), strict=True)
    )
    low, high = (checks + len(spec.variants) * number for number in runs)
    return low, high


def commands(execution: Execution, checks: Sequence[Run]) -> Iterator[str]:
    """Yield the commands of a study with all its pairs; LR is the tuned learning rate."""
    spec, show = execution.spec, execution.command
    yield from map(show, checks)
    if spec.tune_lr:
        seed, window = spec.tuning_seed_numbers[0], first_window(spec.lr_grid_size)
        yield from (show(Run(execution.baseline, seed, k, spec.steps)) for k in window)
        for name, k in product([*spec.variants][1:], window):
            yield show(Run(name, seed, 0.0, spec.steps), f"LR{k:+d}")
    lr = "LR" if spec.tune_lr else ""
    for seed, name in product(spec.seed_numbers, spec.variants):
        yield show(Run(name, seed, 0.0, spec.steps), lr)
    for seed, share, name in product(spec.seed_numbers[:PAIRS], spec.horizons, spec.variants):
        yield show(Run(name, seed, 0.0, execution.steps(share)), lr)
