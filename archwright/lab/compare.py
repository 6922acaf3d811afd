"""The verb of the lab: from the names of architectures to a verdict on which is better."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from archwright.spec.study_spec import StudySpec
from archwright.training.interrupt import Interrupt, interruptions

STUDIES = Path("studies")
"""Where studies are kept when the user names no folder."""

LOCKS = ("lock", "lock.json")

LARGER = ("budget", "size", "evaluation_tokens")
"""Options with which a study goes on in its own folder."""

FIRST = (STUDY, "log.txt", "timing", "variants", "environment.json", PLAN, "jobs")
"""Files of a study's folder until it is planned, beside locks and a tokenizer."""


class Interrupted(Exception):  # noqa: N818
    """A study was interrupted; what it has trained is kept, and the same command goes on."""

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
    add_seeds: int | None = None,
    waited: float = 0.0,
    on: str = "",
    workers: int = 0,
    slurm: str = "",
    **options: Any,
) -> StudyResults:
    """Train variants as often as their difference needs to be known, and return what follows.

        results = archwright.compare("textbook", "modern", budget="10m", seeds=5)
        print(results.verdict)

    Args:
        words: a baseline and variants, each the name of a model with dotted keys after colons
            (`"modern:norm.kind=layer"`), and dotted keys that all share (`"data.text=notes.txt"`, or a dict);
            or the name or file of a study; or a StudySpec.
        out: the study's folder; by default studies/NAME.
        runs: where single runs are kept; studies share them.
        parts: files of choices from outside the package.
        quiet: show no progress.
        add_seeds: pairs to add to an inconclusive study; each time, they spend half of the error that is left.
        waited: seconds since the user asked, which a budget in time counts.
        on: "ray" or "slurm": train the runs on other machines, which share the file system.
        workers: runs under way at once on them; 0: as many as a Ray cluster has CPUs or GPUs for, or 16 jobs of SLURM.
        slurm: what sbatch is asked for, such as "partition=gpu,time=60".
        options: any field of a StudySpec, such as `budget`, `seeds`, `tune_lr`, `size`, `match`.

    Raises:
        UserError: what is wrong with variants, text, budget, folder or machines, one line each.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on.
    """
    started, where = time.monotonic() - waited, Where(on, workers, slurm)
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
                # It may have been made for other machines.
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
    """Return what `compare` would run, and how long that would take, without training.

    Args: as of `compare`. With `add_seeds`, the plan is that of the study with its new pairs; nothing is written.

    Raises:
        UserError: as `compare` does.
    """
    import tempfile

    where = Where(on, workers, slurm)
    files = [*map(absolute, parts)]
    command = _asked(words, options, files, out, parts, where, runs, add_seeds)
    study, path = command.study, command.folder
    _check_place(path, study)
    if _is_planned(path):
        found = plans.saved(study, RunFolder(path))
        assert found
        if not add_seeds:
            return found
        return _extended(Execution(found, path, Path(runs), counted=counted(found)), add_seeds).plan
    # Other machines see what is here, and no machine's own place for what is temporary.
    with tempfile.TemporaryDirectory(dir=Path.cwd() if on else None) as scratch:
        folder, log = RunFolder(scratch), Path(scratch) / "log.txt"
        with folder.lock(), where.start(usable_cores(), log, files) as pool:
            return Planner(study, folder, pool, command).plan()


@contextmanager
def open_study(path: Path, study: StudySpec) -> Iterator[RunFolder]:
    """Yield the folder of a study, made if it is not there, and keep other processes off it.

    If the block fails before the study is planned, all that was made goes again, so that a mistake leaves nothing
    behind.

    Raises:
        UserError: it holds another study, or anything else; it is then left as it was.
    """
    _check_place(path, study)
    record, folder = StartRecord(path), RunFolder(path)
    with folders_made(path):
        if not _is_planned(path):
            record.begin("compare")
            record.add(*LOCKS)
        with folder.lock():
            try:
                # First the file of a study that is not planned yet; what a killed process left is cleared away.
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
    """Return the study that is asked for, with its folder."""
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
    """Return the folder of a study, inside that of the same study with another budget if there is one."""
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
    """Return a study with more pairs; a study that still lacks added pairs stays as it is."""
    execution.take_finished()
    study, now = execution.plan.study, execution.standing()
    if study.widths:
        raise UserError(
            f"--add-seeds: found a study of widths; give it a new folder and --seeds {study.seeds + seeds}"
        )
    if now.wanted and len(study.ends) > 1:  # of the pairs that were added last
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
    """Refuse a folder of another study, or of anything but what a start of ours wrote down or would write."""
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
    """Return the study of a folder; a plan of another version is reported before its study."""
    try:
        return read_study(path / STUDY)
    except UserError:
        plan_file.read(path)
        raise


def _is_planned(path: Path) -> bool:
    return (path / STUDY).is_file() and (path / PLAN).exists()
