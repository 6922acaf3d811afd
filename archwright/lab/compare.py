"""Comparison of architectures: the verbs `compare` and `plan`."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from archwright.checkpoint.started import StartRecord, folders_made
from archwright.files import atomic_write, check_folders, sweep
from archwright.lab.design import plan as plans
from archwright.lab.design import plan_file
from archwright.lab.design.command_line import Command, absolute, load, study_of
from archwright.lab.design.ngrams import counted
from archwright.lab.design.plan import STUDY, Plan, slug
from archwright.lab.design.plan_file import PLAN, free_name
from archwright.lab.design.planner import Planner
from archwright.lab.design.variants import is_variant
from archwright.lab.report.page import write_page, write_tables
from archwright.lab.report.saved import save_results
from archwright.lab.report.summary import announcement, results_of
from archwright.lab.results import StudyResults
from archwright.lab.running.progress import progress
from archwright.lab.running.run_cache import POOL
from archwright.lab.running.scheduler import Execution
from archwright.lab.running.where import Where
from archwright.machine.decide import usable_cores
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.read import diff, read_study, to_toml
from archwright.spec.study_spec import Match, StudySpec
from archwright.training.interrupt import Interrupt, interruptions

STUDIES = Path("studies")
"""Default folder of studies."""

LOCKS = ("lock", "lock.json")

LARGER = ("budget", "size", "evaluation_tokens")
"""Options for a repetition of a study in a subfolder."""

FIRST = (STUDY, "log.txt", "timing", "variants", "environment.json", PLAN, "jobs")
"""Files of an unplanned study's folder, except locks and a tokenizer."""


class Interrupted(Exception):  # noqa: N818
    """Interruption of a study; its runs are saved, and the same command continues it."""

    def __init__(self, interrupt: Interrupt, results: StudyResults) -> None:
        assert interrupt.signal is not None
        self.signal, self.results = interrupt.signal, results
        super().__init__(f"stopped; what is trained is kept, go on with: {results.command}")


def compare(
    *words: str | StudySpec | Mapping[str, Any],
    out: str | Path | None = None,
    runs: str | Path = POOL,
    parts: Sequence[str | Path] = (),
    quiet: bool = False,
    budget: str | None = None,
    seeds: int | None = None,
    add_seeds: int | None = None,
    tuning_seeds: int | None = None,
    first_seed: int | None = None,
    early_stopping: bool | None = None,
    horizons: str | float | Sequence[float] | None = None,
    tune_lr: bool | None = None,
    lr_grid_size: int | None = None,
    lr_ratio: float | None = None,
    size: str | None = None,
    match: Match | None = None,
    margin: str | None = None,
    lengths: str | int | Sequence[int] | None = None,
    widths: str | int | Sequence[int] | None = None,
    evaluation_tokens: int | None = None,
    parallelism: Literal["processes", "none"] | None = None,
    on: str = "",
    workers: int = 0,
    slurm: str = "",
) -> StudyResults:
    """Train variants and return their differences from the baseline, with a verdict.

        results = archwright.compare("textbook", "modern", budget="10m", seeds=5)
        print(results.verdict)

    Args:
        words: A baseline and variants, each the name of a model with dotted keys after colons
            (`"modern:norm.kind=layer"`), and common dotted keys (`"data.text=notes.txt"`, or a dict);
            or the name or file of a study; or a StudySpec.
        out: Folder of the study. Default: studies/NAME.
        runs: Folder of single runs, shared by studies.
        parts: Files of plugins.
        quiet: Show no progress.
        budget: Wall time for all runs together ("10m"), or steps or tokens of each run ("400steps", "2Mtokens").
            Default of this and of the options up to `parallelism`: as in the study, or in StudySpec.
        seeds: Pairs of runs, each from other initial values and in another order of data.
        add_seeds: Pairs to add to an inconclusive study; each addition spends half of the remaining error.
        tuning_seeds: Seeds that tune learning rates and are not compared.
        first_seed: First compared seed.
        early_stopping: Stop variants with an early verdict after five and seven tenths of the seeds.
        horizons: Shares of the steps for shorter runs of the first pairs, such as (0.25, 0.5), or "none".
        tune_lr: Tune the learning rate of each variant.
        lr_grid_size: Learning rates in a sweep.
        lr_ratio: Ratio of neighbouring learning rates.
        size: Parameters outside of embedding and head, such as "0.2M"; "auto" or "given".
        match: Quantity made equal to the baseline's, such as "flops".
        margin: Largest difference that does not matter, such as "10%" of compute or "1% of the loss".
        lengths: Factors of the text length for further evaluations, such as (2, 4).
        widths: Widths of a study of learning rates, such as (32, 64, 128).
        evaluation_tokens: Held-out tokens per run.
        parallelism: "processes": a run per core; "none": one run at a time.
        on: "ray" or "slurm": train on other machines with the same file system.
        workers: Concurrent runs there. Default 0: all CPUs or GPUs of a Ray cluster, or 16 jobs of SLURM.
        slurm: Options of sbatch, such as "partition=gpu,time=60".

    Raises:
        UserError: Invalid variants, text, budget, folder or machines.
        Interrupted: Ctrl-C or SIGTERM; the same call continues the study.
    """
    given = {name: value for name, value in locals().items() if name != "words"}
    return run_study(*words, started=time.monotonic(), **given)


def run_study(
    *words: str | StudySpec | Mapping[str, Any],
    started: float,
    out: str | Path | None = None,
    runs: str | Path = POOL,
    parts: Sequence[str | Path] = (),
    quiet: bool = False,
    add_seeds: int | None = None,
    on: str = "",
    workers: int = 0,
    slurm: str = "",
    **options: Any,
) -> StudyResults:
    """Run a study; see `compare`.

    Args:
        started: Reading of time.monotonic() from which a budget in time counts.
        options: Fields of a StudySpec. None: as in the study.
    """
    where = Where(on, workers, slurm)
    files = [*map(absolute, parts)]
    command = _asked(words, options, files, out, parts, where, runs, add_seeds)
    study, path = command.study, command.folder
    with open_study(path, study) as folder:
        with where.start(usable_cores(), path / "log.txt", files) as pool:
            plan = plans.saved(study, folder)
            if plan is None:
                say = progress(quiet).say
                planner = Planner(study, folder, pool, command, say, started)
                plan = planner.plan()
                plans.save(plan, folder)
                StartRecord(path).finish()
            else:
                # The plan may be for other machines.
                now = pool.prepare(plan.decisions.machine) or min(plan.workers, usable_cores())
                plan = replace(plan, workers=now)
            typed = [str(file) for file in parts]
            execution = Execution(plan, path, Path(runs), counted=counted(plan), parts=typed)
            if add_seeds:
                execution = _extended(execution, add_seeds)
                plans.save(execution.plan, folder)
            execution.spent = time.monotonic() - started
            with interruptions() as interrupt, progress(quiet) as shown:
                shown.say(announcement(execution.plan))
                complete = execution.run(pool, shown, interrupt)
            if complete:
                _keep_end(execution, folder)
            if interrupt:
                shown.say("saving what is being trained")
        results = results_of(execution, command, complete)
        save_results(results, path)
        write_tables(results, path)
        write_page(results, path)
    if interrupt:
        raise Interrupted(interrupt, results)
    return results


def plan(
    *words: str | StudySpec | Mapping[str, Any],
    out: str | Path | None = None,
    runs: str | Path = POOL,
    parts: Sequence[str | Path] = (),
    add_seeds: int | None = None,
    on: str = "",
    workers: int = 0,
    slurm: str = "",
    **options: Any,
) -> Plan:
    """Return the plan of `compare`, with estimated times, without training or writing.

    Args and UserError: see `compare`. With `add_seeds`, the plan includes the new pairs.
    """
    import tempfile

    where = Where(on, workers, slurm)
    files = [*map(absolute, parts)]
    command = _asked(words, options, files, out, parts, where, runs, add_seeds)
    study, path = command.study, command.folder
    _check_place(path, study)
    if _is_planned(path):
        saved = plans.saved(study, RunFolder(path))
        assert saved
        if not add_seeds:
            return saved
        return _extended(Execution(saved, path, Path(runs), counted=counted(saved)), add_seeds).plan
    # Other machines share this folder, but not the machine's temporary folder.
    with tempfile.TemporaryDirectory(dir=Path.cwd() if on else None) as scratch:
        folder, log = RunFolder(scratch), Path(scratch) / "log.txt"
        with folder.lock(), where.start(usable_cores(), log, files) as pool:
            return Planner(study, folder, pool, command).plan()


@contextmanager
def open_study(path: Path, study: StudySpec) -> Iterator[RunFolder]:
    """Create, lock and yield the folder of a study.

    If the block fails before the study is planned, its new files are removed.

    Raises:
        UserError: The folder contains other files; they are not changed.
    """
    _check_place(path, study)
    record, folder = StartRecord(path), RunFolder(path)
    with folders_made(path):
        if not _is_planned(path):
            record.begin("compare")
            record.add(*LOCKS)
        with folder.lock():
            try:
                # Remove the files of a killed process before the first file of an unplanned study.
                if _is_planned(path):
                    record.finish()
                else:
                    record.undo(keep=LOCKS)
                    record.add(*FIRST)
                    if not (path / STUDY).exists():
                        atomic_write(path / STUDY, to_toml(study))
                sweep(path)
                sweep(path / "variants")
                yield folder
            except BaseException:
                if not (path / PLAN).exists():
                    record.undo()
                raise


def _keep_end(execution: Execution, folder: RunFolder) -> None:
    """Save the number of pairs at which a study ended, for a repeated command and for added pairs."""
    plan = execution.plan
    study, pairs = plan.study, execution.shorter_pairs
    if execution.left_out:
        study = study.model_copy(update={"ends": (len(execution.seeds),)})
    ended = replace(plan, study=study, shorter_pairs=pairs)
    if ended != plan and not study.widths:
        plans.save(ended, folder)


def _asked(
    words: Sequence[str | StudySpec | Mapping[str, Any]],
    options: Mapping[str, Any],
    files: Sequence[Path],
    out: str | Path | None,
    parts: Sequence[str | Path],
    where: Where,
    runs: str | Path,
    seeds: int | None,
) -> Command:
    """Return the command's study and folder, after checks of its options."""
    study = study_of(*words, **options, parts=load(files))
    study.check_margin()
    where.check(study)
    path = _place(Path(out) if out else STUDIES / slug(study.name), study)
    if seeds is not None and seeds < 1:
        raise UserError(f"--add-seeds: found {seeds}; expected 1 or more")
    if seeds and not _is_planned(path):
        raise UserError(
            f"--add-seeds adds to a study that has ended, and there is none in {path}: leave it out, or name "
            "the study's folder with --out"
        )
    names = [word for word in words if isinstance(word, str) and is_variant(word)]
    file = names[0] if len(names) == 1 and names[0].endswith(".toml") else ""
    return Command(study, path, out, parts, where.words(), runs, file)


def _place(path: Path, study: StudySpec) -> Path:
    """Return the folder of a study: a subfolder if it repeats another with LARGER options."""
    if not _is_planned(path):
        return path
    there = _there(path)
    changed = {
        key: getattr(study, key) for key in LARGER if getattr(study, key) != getattr(there, key)
    }
    if not changed or there.model_copy(update={**changed, "parts": study.parts}) != study:
        return path
    return path / slug("-".join(f"{key}-{value}" for key, value in changed.items()))


def _extended(execution: Execution, seeds: int) -> Execution:
    """Return a study with more pairs, or unchanged if added pairs are missing."""
    execution.take_finished()
    study, now = execution.plan.study, execution.standing()
    if study.widths:
        raise UserError(
            f"--add-seeds: found a study of widths; give it a new folder and --seeds {study.seeds + seeds}"
        )
    if now.wanted and len(study.ends) > 1:  # runs of the pairs added last
        return execution
    if now.wanted:
        raise UserError(
            f"--add-seeds: {len(now.wanted)} runs of the study are still to be made; let it end first, without "
            "--add-seeds"
        )
    closed, (baseline, *variants) = now.decisions.keys() | now.unlearnt.keys(), execution.plan.arms
    if baseline in closed or closed.issuperset(variants):
        raise UserError(
            "--add-seeds: no variant is open: each is decided, or inconclusive for a reason that more seeds do not "
            "change, which its sentence gives"
        )
    ends = study.ends or (len(execution.seeds),)
    ends = (*ends, ends[-1] + seeds)
    plan = replace(execution.plan, study=study.model_copy(update={"ends": ends}))
    return replace(execution, plan=plan, seeds=[], results={}, shorter={})


def _check_place(path: Path, study: StudySpec) -> None:
    """Refuse a folder with another study or with unknown files."""
    check_folders(path.absolute(), "variants", "timing", "tokenizer", "tokenizers", "jobs")
    if _is_planned(path):
        there = _there(path)
        if lines := diff(there.model_copy(update={"parts": study.parts}), study):
            raise UserError(
                f"{path} holds another study ({'; '.join(lines[:4])}). Give this one a folder of its own: --out "
                f"{shlex.quote(str(free_name(path)))}"
            )
        if there.parts != study.parts:
            needed = " ".join(f"--parts {part.name}" for part in there.parts) or "no --parts"
            raise UserError(
                f"{path} was made with other choices from outside: give {needed}, unchanged, or another --out"
            )
        return
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; --out must name a folder")
    others = StartRecord(path).others()
    if others:
        raise UserError(
            f"{path} is not a study and not empty: it holds {others[0]}"
            f"{f' and {len(others) - 1} more' if others[1:] else ''}. Give --out a new or empty folder"
        )


def _there(path: Path) -> StudySpec:
    """Return the study of a folder, or report its plan's version before an invalid study."""
    try:
        return read_study(path / STUDY)
    except UserError:
        plan_file.read(path)
        raise


def _is_planned(path: Path) -> bool:
    return (path / STUDY).is_file() and (path / PLAN).exists()
