"""Studies of another trainer: a command, a Python function, or a table of losses."""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from archwright.files import atomic_write
from archwright.lab.compare import STUDIES, Interrupted
from archwright.lab.design.plan import STUDY, slug
from archwright.lab.external import execution as ex
from archwright.lab.external.command import masked
from archwright.lab.external.report import write
from archwright.lab.external.spec import FREE, ExternalSpec, read
from archwright.lab.external.table import given
from archwright.lab.results import StudyResults
from archwright.lab.running.progress import progress
from archwright.lab.running.where import Where
from archwright.lab.running.workers import Workers
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.training.interrupt import interruptions


def compare_runs(
    run: Callable[..., Any],
    variants: Sequence[Any] | Mapping[str, Any],
    *,
    steps: int | None = None,
    lr: float | None = None,
    out: str | Path | None = None,
    max_runs: float = math.inf,
    mix_code: bool = False,
    quiet: bool = False,
    **options: Any,
) -> StudyResults:
    """Compare variants of a trainer that is a Python function.

        def run(variant, *, seed, lr, steps, out):
            return train(variant, seed, lr, steps)  # the loss, or a list of (step, loss)

        results = archwright.compare_runs(run, ["relu", "gelu"], steps=2000, lr=1e-3)

    Args:
        run: Trainer; returns a loss, or a curve of (step, loss) or (step, tokens, loss). A loss that is not finite
            means divergence. An exception ends the study; finished runs are kept.
        variants: Values, or names and values; the first is the baseline.
        steps: Steps of a run. None: no shorter horizons.
        lr: Learning rate at which tuning starts. None: `run` is called with lr=None.
        out: Folder of the study; default studies/NAME.
        max_runs: Most runs of the study.
        mix_code: Count runs that were made with other code of `run`.
        quiet: Show no progress.
        options: Fields of a study, such as `seeds`, `maximize`, `unit`, `cost_per_step`, `budget` (a time).

    Raises:
        UserError: One line for each mistake.
    """
    objects = variants if isinstance(variants, Mapping) else {str(v): v for v in variants}
    names = [*map(str, variants)]
    spec, seconds = read(
        "", {"variants": names, "steps": steps, "lr": lr, "check_steps": 0, **options}
    )
    execution = ex.Execution(spec, _folder(out, spec), max_runs, seconds, run, objects, mix_code)
    with _opened(execution), progress(quiet) as shown:
        execution.say = shown.say
        with Workers(ex.FunctionExecutor(execution), 1) as workers:
            complete = execution.run(workers, (), lambda: False)
        return write(execution, "", complete)


def compare_command(
    file: str = "",
    *,
    out: str | Path | None = None,
    jobs: int = 0,
    gpus_per_job: int = 0,
    max_runs: float = math.inf,
    where: Where | None = None,
    twin: bool = False,
    mix_code: bool = False,
    quiet: bool = False,
    again: str = "",
    **options: Any,
) -> StudyResults:
    """Compare variants of a trainer that is a command.

    Args:
        file: TOML file of a study; `options` replace its values.
        jobs: Concurrent runs; 0: one, or one for each group of GPUs.
        again: Command that continues the study.
        options: Fields of an `ExternalSpec`.

    Raises:
        UserError: A mistake, or a run that failed twice.
        Interrupted: Ctrl-C or SIGTERM; finished runs are kept.
    """
    spec, seconds = read(file, options)
    execution = ex.Execution(spec, _folder(out, spec), max_runs, seconds, mix_code=mix_code)
    checks, again = execution.checks(twin), masked(again, spec.template.words)
    with _opened(execution), progress(quiet) as shown, interruptions() as interrupt:
        execution.say = shown.say
        shown.say(_bounds_words(spec, checks))
        with _workers(execution.folder, jobs, gpus_per_job, where or Where()) as workers:
            complete = execution.run(workers, checks, lambda: interrupt)
        results = write(execution, again, complete)
    if interrupt:
        raise Interrupted(interrupt, results)
    return results


def dry_run(
    file: str = "", *, out: str | Path | None = None, twin: bool = False, **options: Any
) -> Iterator[str]:
    """Yield the commands of a study, then the least and the most runs. Nothing is run."""
    spec, _ = read(file, options)
    execution = ex.Execution(spec, _folder(out, spec))
    checks = execution.checks(twin)
    yield from ex.commands(execution, checks)
    if spec.tune_lr:
        yield "LR is the learning rate that tuning finds, LR-1 and LR+1 its neighbours."
    yield f"{_bounds_words(spec, checks)}. Nothing was run."


def compare_losses(path: str, out: str | Path | None = None, **options: Any) -> StudyResults:
    """Compare the losses of a CSV file with the columns variant, seed and loss."""
    spec, _ = read("", options)
    execution = given(Path(path), spec, Path(out) if out else STUDIES / slug(Path(path).stem))
    with _opened(execution):
        return write(execution, "", True)


def _folder(out: str | Path | None, spec: ExternalSpec) -> Path:
    return Path(out) if out else STUDIES / slug(spec.name)


def _workers(folder: Path, jobs: int, per_job: int, where: Where) -> Workers:
    """Return the workers of a study; for the holder of its lock."""
    if where.on:
        workers = where.start(1, folder / "log.txt", ())
        machine = MachineSpec(threads=1, device="cuda" if per_job else "cpu")
        workers.size = workers.executor.places(machine, max(1, per_job)) or 1
        return workers
    groups = ex.gpu_groups(per_job)
    if groups and jobs > len(groups):
        raise UserError(
            f"--jobs: found {jobs}; expected {len(groups)} at most, by the visible GPUs"
        )
    return Workers(ex.LocalExecutor(groups), jobs or max(1, len(groups)))


def _bounds_words(spec: ExternalSpec, checks: Sequence[ex.Run]) -> str:
    least, most = ex.bounds(spec, len(checks))
    return f"{spec.name}: {least} to {most} runs, {len(spec.variants)} variants, {spec.seeds} pairs"


@contextmanager
def _opened(execution: ex.Execution) -> Iterator[None]:
    """Hold the folder of a study during the block.

    Raises:
        UserError: The folder contains another study, or anything else.
    """
    folder, text = execution.folder, execution.spec.toml()
    file = folder / STUDY
    if file.exists():
        there, here = (tomllib.loads(t) for t in (file.read_text("utf-8"), text))
        for key in {*there, *here}.difference(FREE):
            if there.get(key) != here.get(key):
                raise UserError(
                    f"{folder} contains another study ({key}: {there.get(key)} -> {here.get(key)}); give another --out"
                )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not a study and not empty; give --out a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder).lock():
        atomic_write(file, text)
        yield
