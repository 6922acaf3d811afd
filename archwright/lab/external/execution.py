"""Running a study: which runs are wanted, given to workers, and read from their records."""

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
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from archwright.lab.design.plan import slug
from archwright.lab.external import run_job
from archwright.lab.external.command import masked, secrets
from archwright.lab.external.metric import Reading
from archwright.lab.external.run_job import Order
from archwright.lab.external.spec import ExternalSpec, Limits, code_of, content_of, hashed
from archwright.lab.procedure.standing import PAIRS, Standing, shorter_runs, standing
from archwright.lab.procedure.sweep import MOVES, SLIDES, first_window
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
    """A repetition that shows whether the trainer is deterministic."""


Function = Callable[..., Any]


class LocalExecutor(Executor):
    """Commands as processes of this machine, each with its own GPUs."""

    def __init__(self, gpus: Sequence[Sequence[str]] = ()) -> None:
        self._free = [*gpus]

    def submit(self, job: Job) -> Handle:
        order = Order(**json.loads(job.argv[-1]))
        return _LocalHandle(order, self._free)

    def close(self) -> None: ...


class _LocalHandle(Handle):
    def __init__(self, order: Order, free: list[Sequence[str]]) -> None:
        self._stop, self._answer = threading.Event(), dict[str, Any]()
        gpus = free.pop(0) if free else None

        def follow() -> None:
            own = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
            state = "failed"
            try:
                state = run_job.run(replace(order, environment=own), self._stop)
            finally:
                if gpus is not None:
                    free.append(gpus)
                self._answer["state"] = state

        self._thread = threading.Thread(target=follow)
        self._thread.start()

    def poll(self) -> Answer | None:
        return self._answer or None

    def cancel(self) -> None:
        self._stop.set()


@dataclass
class Execution:
    """A study under way."""

    spec: ExternalSpec
    folder: Path
    limits: Limits = Limits()
    function: Function | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Variants of a function by name."""
    mix_code: bool = False
    say: Callable[[str], None] = lambda text: None
    results: dict[Run, dict[str, Any]] = field(default_factory=dict)
    spent: float = 0.0
    left_out: str = ""
    """The bound that left runs out."""
    code: str = ""

    def __post_init__(self) -> None:
        self._command = self.spec.template if self.spec.command else None
        objects = {name: repr(value) for name, value in self.objects.items()}
        values = objects or self.spec.values
        self._contents = {name: content_of(value) for name, value in values.items()}
        if self.function:
            self.code = hashed(_source(self.function).encode())

    # What is wanted.

    def lr(self, k: float) -> float:
        """Return a learning rate, 0 if the trainer has none."""
        return 0.0 if self.spec.lr is None else float(f"{self.spec.lr * self.spec.lr_ratio**k:.6g}")

    def steps(self, share: float) -> int | None:
        """Return the steps of a share of a run."""
        return self.spec.steps and max(1, round(share * self.spec.steps))

    def check_runs(self, twin: bool) -> list[Run]:
        """Return the short run before the study, and its twin."""
        spec, steps = self.spec, self.spec.check_steps
        if steps is None and spec.steps:
            steps = min(spec.steps, max(10, spec.steps // 20))
        seed = [*spec.tuning_seed_numbers, *spec.seed_numbers][0]
        first = Run(next(iter(spec.variants)), seed, 0.0, steps or spec.steps)
        checks = [first] if (steps and self.function is None) or twin else []
        return [*checks, first._replace(twin=True)] if twin else checks

    def standing(self) -> Standing:
        """Return the state of the study by the runs that have ended."""
        losses: dict[str, dict[tuple[int, float], float]] = {
            name: {} for name in self.spec.variants
        }
        for run in self.results:
            if run.steps == self.spec.steps and not run.twin:
                losses[run.variant][run.seed, run.k] = self.loss(run)
        diverged = any(map(self.diverged, self.results))
        # A diverged run has the highest loss, so that learning rates move down from it.
        least = self.highest - 1e-9 * abs(self.highest) if diverged else math.inf
        bound = dict.fromkeys(losses, least)
        return standing(self.spec, losses, plateau=bound, learnt=bound)

    def shorter(self) -> list[tuple[Run, float]]:
        """Return the runs of shorter horizons, with their shares of the steps."""
        found = shorter_runs(self.spec, self.standing().compared)
        return [(Run(name, seed, k, self.steps(share)), share) for name, seed, k, share in found]

    def wanted(self) -> list[Run]:
        """Return missing runs, the most urgent first."""
        runs = [Run(*run, self.spec.steps) for run in self.standing().wanted]
        return runs or [run for run, _ in self.shorter() if run not in self.results]

    # Losses.

    @property
    def highest(self) -> float:
        """Highest finite loss of any reading, which a diverged run counts as."""
        readings = (r.value * self.sign for v in self.results.values() for r in v["readings"])
        return max(filter(math.isfinite, readings), default=1.0)

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
        readings, nan = self.results[run]["readings"], math.nan
        cost = self.spec.cost_per_step.get(run.variant, 1.0)
        curve = [
            Point(r.step, r.tokens or r.step, r.step * cost, nan, self.sign * r.value)
            for r in readings
            if r.step is not None and len(readings) > 1
        ]
        return RunResult(
            key=self.place(run).name,
            variant=run.variant,
            seed=run.seed,
            lr=self.lr(run.k),
            loss=self.loss(run),
            bits_per_byte=nan,
            initial_loss=self.highest,
            diverged=self.diverged(run),
            tokens=readings[-1].tokens or run.steps or 0,
            seconds=self.results[run]["seconds"],
            curve=curve,
            command=self.command(run),
        )

    # Commands.

    def argv(self, run: Run, out: str = "{out}", lr: str = "") -> tuple[str, ...]:
        """Return the command of a run."""
        values = {"variant": self.spec.values[run.variant], "seed": run.seed, "out": out}
        values |= {"lr": lr or f"{self.lr(run.k):g}", "steps": run.steps}
        if self._command is None:
            return ("run", *(str(values[name]) for name in ("variant", "seed", "lr", "steps")))
        return self._command.fill(values)

    def command(self, run: Run, lr: str = "") -> str:
        """Return the command of a run without secrets."""
        words = self.argv(run, "OUT" if lr else str(self.place(run) / "out"), lr)
        return masked(shlex.join(words), secrets(words))

    def key(self, run: Run) -> dict[str, str]:
        """Return the identity of a run. Secrets are left out, so that a new token repeats nothing."""
        words = self.argv(run)
        text = masked("\0".join(words), secrets(words))
        return {
            "command": hashed(text.encode()),
            "variant": self._contents[run.variant],
            "code": self.code,
        }

    def place(self, run: Run) -> Path:
        """Return the folder of a run."""
        key = self.key(run)
        name = hashed(f"{key['command']} {key['variant']}".encode())[:12]
        twin = "-twin" if run.twin else ""
        return self.folder / "runs" / f"{slug(Path(run.variant).name)}-seed{run.seed}-{name}{twin}"

    # Running.

    def take(self, run: Run) -> bool:
        """Read the record of a run; False if there is none.

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
        started, self.code = time.monotonic(), self.code or code_of(self.spec)
        # The first run is alone, so that a mistake in the command costs one run.
        size = workers.size
        for runs in [lambda: [r for r in checks if r not in self.results], self.wanted]:
            while not stop():
                self.spent = time.monotonic() - started
                waiting = [run for run in runs() if run not in workers.running]
                if [run for run in waiting if self.take(run)]:
                    continue
                if not waiting and not workers.running:
                    break
                workers.size = size if self.results else 1
                for run in waiting[: workers.free]:
                    if self.is_bounded(len(workers.running)):
                        break
                    workers.give(run, self._job(run))
                if self.left_out and not workers.running:
                    return False
                for done in workers.wait(GLANCE):
                    self._end(done.name, done.state)  # type: ignore[arg-type]
        self.spent = time.monotonic() - started
        return not stop()

    def is_bounded(self, running: int) -> bool:
        """True if a bound allows no further run."""
        took = [values["seconds"] for values in self.results.values()]
        usual = sum(took) / len(took) if took else 0.0
        if len(self.results) + running >= self.limits.max_runs:
            self.left_out = "--max-runs"
        elif self.spent + usual > self.limits.seconds:
            self.left_out = "--budget"
        return bool(self.left_out)

    def _job(self, run: Run) -> Job:
        place = self.place(run)
        order = Order(
            argv=self.argv(run, str((place / "out").resolve())),
            folder=str(place.resolve()),
            metric=self.spec.metric,
            key=self.key(run),
            timeout=self.spec.timeout,
            diverged_exit=self.spec.diverged_exit,
        )
        return job(*COMMAND, json.dumps(asdict(order)))

    def _end(self, run: Run, state: str) -> None:
        place = self.place(run)
        if state != "done" or not self.take(run):
            words = self.argv(run)
            lines = [masked(line, secrets(words)) for line in run_job.last_lines(place)]
            check = run.steps != self.spec.steps and not self.results
            hint = "; a longer --check-steps may have it" if check else ""
            raise UserError(
                f"{run.variant}, seed {run.seed}: failed twice: {run_job.failure(place)}{hint}",
                f"command: {self.command(run)}",
                f"log: {place / run_job.LOG}",
                *(f"  {line}" for line in lines),
                "Finished runs are kept; the same command continues.",
            )
        self.say(f"{len(self.results)} runs  {described(self.run_result(run))}")


def run_function(execution: Execution) -> bool:
    """Make all runs of a Python function, one after another; True if the study is complete."""
    assert execution.function
    started = time.monotonic()
    while wanted := execution.wanted():
        run = wanted[0]
        if not execution.take(run):
            if execution.is_bounded(0):
                return False
            place, begun = execution.place(run), time.monotonic()
            (place / "out").mkdir(parents=True, exist_ok=True)
            lr = None if execution.spec.lr is None else execution.lr(run.k)
            given = {"seed": run.seed, "lr": lr, "steps": run.steps, "out": place / "out"}
            found = execution.function(execution.objects[run.variant], **given)
            seconds = time.monotonic() - begun
            run_job.record(place, readings_of(found), seconds, execution.key(run))
            execution.take(run)
            execution.say(f"{len(execution.results)} runs  {described(execution.run_result(run))}")
        execution.spent = time.monotonic() - started
    return True


def _source(function: Function) -> str:
    """Return the source of a function; its name if there is none."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", repr(type(function)))


def readings_of(found: Any) -> list[Reading]:
    """Return the readings of a number, or of a curve of (step, value) or (step, tokens, value).

    Raises:
        UserError: Anything else.
    """
    try:
        if not isinstance(found, (list, tuple)):
            return [Reading(None, None, float(found))]
        rows = [(r[0], r[1] if len(r) == 3 else None, r[-1]) for r in found if len(r) in (2, 3)]
        if rows and len(rows) == len(found):
            return [Reading(int(s), t if t is None else int(t), float(v)) for s, t, v in rows]
    except (TypeError, ValueError):
        pass
    raise UserError(
        f"run: returned {found!r}; expected a number, or a list of (step, value) or (step, tokens, value)"
    )


def bounds(spec: ExternalSpec, checks: int, looks: Sequence[int]) -> tuple[int, int]:
    """Return the least and the most runs of a study in which no run fails or diverges."""
    variants, grid = len(spec.variants), spec.lr_grid_size
    shorter = [min(PAIRS, pairs) * len(spec.horizons) * variants for pairs in (looks[0], looks[-1])]
    # Each move adds a rate, or grid - 1 if it doubles the step; so does each of two halvings.
    most = grid + MOVES * (grid - 1) + 3 * SLIDES + 2 * (grid - 1)
    tuning = (variants * grid, variants * most * spec.tuning_seeds) if spec.tune_lr else (0, 0)
    compared = (variants * looks[0], variants * looks[-1])
    low, high = (checks + t + c + s for t, c, s in zip(tuning, compared, shorter, strict=True))
    return low, high


def commands(execution: Execution, checks: Sequence[Run]) -> Iterator[str]:
    """Yield the commands of a study with all its pairs; LR is the rate that tuning finds."""
    spec, first = execution.spec, next(iter(execution.spec.variants))
    yield from (execution.command(run) for run in checks)
    seeds, runs = spec.seed_numbers, spec.variants
    if spec.tune_lr:
        seed = spec.tuning_seed_numbers[0]
        for k in first_window(spec.lr_grid_size):
            yield execution.command(Run(first, seed, k, spec.steps))
        for name in [*spec.variants][1:]:
            near = (f"LR{k:+d}" for k in first_window(spec.lr_grid_size))
            yield from (execution.command(Run(name, seed, 0.0, spec.steps), lr) for lr in near)
    lr = "LR" if spec.tune_lr else ""
    yield from (execution.command(Run(n, s, 0.0, spec.steps), lr) for s in seeds for n in runs)
    for seed, share, name in product(seeds[:PAIRS], spec.horizons, runs):
        yield execution.command(Run(name, seed, 0.0, execution.steps(share)), lr)


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

        names = [str(i) for i in range(torch.cuda.device_count())]
    else:
        names = [name.strip() for name in asked.split(",") if name.strip()]
    groups = [names[i : i + per_job] for i in range(0, len(names) - per_job + 1, per_job)]
    if not groups:
        raise UserError(
            f"--gpus-per-job: found {len(names)} visible GPUs; expected {per_job} or more"
        )
    return groups
