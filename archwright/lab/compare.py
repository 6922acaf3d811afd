"""The verb of the lab: from the names of architectures to a verdict on which is better."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from archwright.checkpoint import atomic_write
from archwright.checkpoint.disk import clear_errors
from archwright.lab import plan as plans
from archwright.lab.asked import command_of, load, study_of
from archwright.lab.execution import Execution
from archwright.lab.findings import announcement, results_of
from archwright.lab.page import write_page, write_tables
from archwright.lab.plan import Plan, slug
from archwright.lab.plan_file import PLAN
from archwright.lab.planner import Planner, usable_cores
from archwright.lab.pool import POOL
from archwright.lab.progress import progress
from archwright.lab.results import StudyResults
from archwright.lab.workers import Workers
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.read import diff, read_study, to_toml
from archwright.spec.study_spec import StudySpec
from archwright.training.interrupt import Interrupt, interruptions

STUDIES = Path("studies")
"""Where studies are kept when the user names no folder."""


class Interrupted(Exception):  # noqa: N818
    """A study was interrupted; what it has trained is kept, and the same command goes on."""

    def __init__(self, interrupt: Interrupt, results: StudyResults) -> None:
        assert interrupt.signal is not None
        self.signal, self.results = interrupt.signal, results
        super().__init__(f"stopped; what is trained is kept, go on with: {results.command}")


def compare(
    *words: str | StudySpec,
    out: str | Path | None = None,
    runs: str | Path = POOL,
    parts: Sequence[str | Path] = (),
    quiet: bool = False,
    **options: Any,
) -> StudyResults:
    """Train variants as often as their difference needs to be known, and return what follows.

        results = archwright.compare("textbook", "modern", budget="10m", seeds=5)
        print(results.verdict)

    Args:
        words: a baseline and variants, each the name of a model with dotted keys after colons
            (`"modern:norm.kind=layer"`), and dotted keys that all share (`"data.text=notes.txt"`);
            or the name or file of a study; or a StudySpec.
        out: the study's folder; by default studies/<name>.
        runs: where single runs are kept; studies share them.
        parts: files of choices from outside the package.
        quiet: show no progress.
        options: any field of a StudySpec, such as `budget`, `seeds`, `rates`, `size`, `match`.

    Raises:
        UserError: what is wrong with variants, text, budget or folder, one line each.
        Interrupted: Ctrl-C or SIGTERM; the same call goes on.
    """
    files = [Path(file).resolve() for file in parts]
    study = study_of(*words, **options, parts=load(files))
    path = Path(out) if out else STUDIES / slug(study.name)
    command = command_of(study, path, out, parts)
    with planned_or_gone(path), (folder := open_study(path, study)).lock():
        with Workers(usable_cores(), path / "log.txt", files) as crew:
            plan = plans.saved(study, folder)
            if plan is None:
                plan = Planner(study, folder, crew, progress(quiet).say).plan()
                plans.save(plan, folder)
            execution = Execution(plan, path, Path(runs))
            with interruptions() as interrupt, progress(quiet) as shown:
                shown.say(announcement(plan))
                complete = execution.run(crew, shown, interrupt)
            if interrupt:
                shown.say("saving what is being trained")
        results = results_of(execution, command, complete)
        write_tables(results, path)
        write_page(results, path)
    if interrupt:
        raise Interrupted(interrupt, results)
    return results


def plan(
    *words: str | StudySpec,
    out: str | Path | None = None,
    parts: Sequence[str | Path] = (),
    **options: Any,
) -> Plan:
    """Return what `compare` would run, and how long that would take, without training.

    Raises:
        UserError: as `compare` does.
    """
    import tempfile

    files = [Path(file).resolve() for file in parts]
    study = study_of(*words, **options, parts=load(files))
    path = Path(out) if out else STUDIES / slug(study.name)
    known = path / PLAN
    if known.is_file():
        folder = open_study(path, study)
        found = plans.saved(study, folder)
        assert found
        return found
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.txt"
        with Workers(usable_cores(), log, files) as crew:
            return Planner(study, RunFolder(scratch), crew).plan()


def open_study(path: Path, study: StudySpec) -> RunFolder:
    """Return the folder of a study, made if it is not there.

    Raises:
        UserError: it holds another study, or anything else.
    """
    file = path / plans.STUDY
    if file.is_file() and (path / PLAN).exists():
        _check_same(path, read_study(file), study)
    elif path.exists() and not file.is_file() and any(path.iterdir()):
        raise UserError(f"{path} is not a study and not empty. Give --out a new or empty folder")
    else:
        with clear_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        atomic_write(file, to_toml(study))
    return RunFolder(path)


def _check_same(path: Path, there: StudySpec, asked: StudySpec) -> None:
    """Refuse another study than the one in a folder, and one whose files of choices are not those."""
    if lines := diff(there.model_copy(update={"parts": asked.parts}), asked):
        raise UserError(
            f"{path} holds another study ({'; '.join(lines[:4])}). Give this one a folder of its own: --out DIR"
        )
    if there.parts != asked.parts:
        needed = " ".join(f"--parts {part.name}" for part in there.parts) or "no --parts"
        raise UserError(
            f"{path} was made with other choices from outside: give {needed}, unchanged, or another --out"
        )


@contextmanager
def planned_or_gone(path: Path) -> Iterator[None]:
    """Remove a study's folder if the block fails before the study is planned, so that a mistake leaves nothing
    behind."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        if made and not (path / PLAN).exists():
            shutil.rmtree(path, ignore_errors=True)
            for folder in made[1:]:
                with suppress(OSError):
                    folder.rmdir()
        raise
