"""Studies over the runs of another trainer: a command, a Python function, or a table of losses."""

import math
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from archwright.files import atomic_write
from archwright.lab.compare import STUDIES, Interrupted
from archwright.lab.design.plan import STUDY, slug
from archwright.lab.external import execution as ex
from archwright.lab.external.command import masked, secrets
from archwright.lab.external.report import results_of, write
from archwright.lab.external.spec import FREE, ExternalSpec, Limits, read
from archwright.lab.external.table import compare_table
from archwright.lab.procedure.looks import Looks
from archwright.lab.results import StudyResults
from archwright.lab.running.progress import progress
from archwright.lab.running.where import Where
from archwright.lab.running.workers import Workers
from archwright.runs import RunFolder
from archwright.spec.budget import Budget
from archwright.spec.errors import UserError
from archwright.spec.run_spec import MachineSpec
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
        options: Fields of a study, such as `seeds`, `maximize`, `unit`, `cost_per_step`.

    Raises:
        UserError: One line for each mistake.
    """
    objects = variants if isinstance(variants, Mapping) else {str(v): v for v in variants}
    given = {"variants": [*objects], "steps": steps, "lr": lr, **options}
    spec, budget = read("", given)
    if len(objects) != len(variants):
        raise UserError("variants: found one twice; expected each once")
    folder = Path(out) if out else STUDIES / slug(spec.name)
    limits = Limits(max_runs=max_runs, seconds=_seconds(budget))
    with _opened(folder, spec), progress(quiet) as shown:
        execution = ex.Execution(
            spec, folder, limits, function=run, objects=objects, mix_code=mix_code, say=shown.say
        )
        complete = ex.run_function(execution)
        return _written(execution, "", complete)


def compare_command(
    file: str = "",
    *,
    out: str | Path | None = None,
    limits: Limits | None = None,
    where: Where | None = None,
    twin: bool = False,
    mix_code: bool = False,
    quiet: bool = False,
    again: Sequence[str] = (),
    **options: Any,
) -> StudyResults:
    """Compare variants of a trainer that is a command.

    Args:
        file: TOML file of a study; `options` replace its values.
        again: Words of the command line that continues the study.
        options: Fields of an `ExternalSpec`.

    Raises:
        UserError: A mistake, or a run that failed twice.
        Interrupted: Ctrl-C or SIGTERM; finished runs are kept.
    """
    spec, execution, checks = _planned(file, options, out, limits or Limits(), twin, mix_code)
    folder = execution.folder
    command = masked(shlex.join(again), secrets(spec.template.words))
    with _opened(folder, spec), progress(quiet) as shown, interruptions() as interrupt:
        execution.say = shown.say
        shown.say(_bounds_words(spec, len(checks)))
        with _workers(execution, where or Where()) as workers:
            complete = execution.run(workers, checks, lambda: interrupt)
        results = _written(execution, command, complete)
    if interrupt:
        raise Interrupted(interrupt, results)
    return results


def dry_run(file: str = "", **options: Any) -> Iterator[str]:
    """Yield the commands of a study, then the least and the most runs. Nothing is run."""
    spec, execution, checks = _planned(file, options, None, Limits(), options.pop("twin", False))
    yield from ex.commands(execution, checks)
    yield _bounds_words(spec, len(checks))
    if spec.tune_lr:
        yield "LR is the learning rate that tuning finds, LR-1 and LR+1 its neighbours."
    yield "Nothing was run."


def compare_losses(path: str, out: str | Path | None = None, **options: Any) -> StudyResults:
    """Compare the losses of a CSV file with the columns variant, seed and loss."""
    spec, _ = read("", options)
    folder = Path(out) if out else STUDIES / slug(Path(path).stem)
    folder.mkdir(parents=True, exist_ok=True)
    return compare_table(Path(path), spec, folder)


def _planned(
    file: str,
    options: Mapping[str, Any],
    out: str | Path | None,
    limits: Limits,
    twin: bool,
    mix_code: bool = False,
) -> tuple[ExternalSpec, ex.Execution, list[ex.Run]]:
    spec, budget = read(file, options)
    folder = Path(out) if out else STUDIES / slug(spec.name)
    limits = Limits(limits.jobs, limits.gpus_per_job, limits.max_runs, _seconds(budget))
    execution = ex.Execution(spec, folder, limits, mix_code=mix_code)
    return spec, execution, execution.check_runs(twin)


def _workers(execution: ex.Execution, where: Where) -> Workers:
    """Return the workers of a study; for the holder of its lock."""
    per_job = execution.limits.gpus_per_job
    if where.on:
        workers = where.start(1, execution.folder / "log.txt", ())
        machine = MachineSpec(threads=1, device="cuda" if per_job else "cpu")
        workers.size = workers.executor.places(machine, max(1, per_job)) or 1
        return workers
    groups = ex.gpu_groups(per_job)
    jobs = execution.limits.jobs or max(1, len(groups))
    if groups and jobs > len(groups):
        raise UserError(
            f"--jobs: found {jobs}; expected {len(groups)} at most, as there are GPUs for no more"
        )
    return Workers(ex.LocalExecutor(groups), jobs)


def _seconds(budget: str) -> float:
    try:
        seconds = Budget(budget).seconds if budget else math.inf
    except ValueError:
        seconds = None
    if seconds is None:
        raise UserError(
            f'--budget: found "{budget}"; expected a time such as 10h, with --steps for a run'
        )
    return seconds


def _bounds_words(spec: ExternalSpec, checks: int) -> str:
    looks = Looks(spec.seeds, spec.seeds, spec.early_stopping).numbers
    least, most = ex.bounds(spec, checks, looks)
    count = f"{least} runs" if least == most else f"{least} to {most} runs"
    return f"{spec.name}: {count}, {len(spec.variants)} variants, {spec.seeds} pairs at most"


@contextmanager
def _opened(folder: Path, spec: ExternalSpec) -> Iterator[None]:
    """Hold the folder of a study during the block.

    Raises:
        UserError: The folder contains another study, or anything else.
    """
    file = folder / STUDY
    if file.exists():
        there, here = tomllib.loads(file.read_text("utf-8")), tomllib.loads(spec.toml())
        keys = dict.fromkeys(k for k in (*there, *here) if k not in FREE)
        if other := [k for k in keys if there.get(k) != here.get(k)]:
            key = other[0]
            raise UserError(
                f"{folder} contains another study ({key}: {there.get(key)} -> {here.get(key)}); give another --out"
            )
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not a study and not empty; give --out a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    with RunFolder(folder).lock():
        atomic_write(file, spec.toml())
        yield


def _written(execution: ex.Execution, command: str, complete: bool) -> StudyResults:
    results, told = results_of(execution, command, complete)
    write(results, told)
    return results
