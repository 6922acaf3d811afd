"""Training: from a spec to a finished run folder."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import Signals
from typing import Any

from archwright import checkpoint
from archwright.machine.decide import Decisions, check_machine, environment
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.planning.cost import run_flops_per_token
from archwright.reporting.loggers import check_installed, loggers
from archwright.runs import RUNS, RunFolder
from archwright.runs.ending import early_end, early_end_text
from archwright.runs.load import OpenRun, open_run
from archwright.scale.checks import check_layout
from archwright.scale.launch import EndedError, LostError, end_with_torchrun, is_first, launched
from archwright.scale.layout import ONE, Layout, kept_layout, layout_of
from archwright.scale.processes import ALONE, OneOf
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load_run
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.training.budget import LEAST_READ, READING, TRAINING, Clock, recorded_progress
from archwright.training.callbacks import Callback, CallbackError, Callbacks
from archwright.training.data import Material, prepare_data, reload_data
from archwright.training.finalize import finish, report, time_end
from archwright.training.interrupt import interruptions
from archwright.training.loop import DivergedError, Loop
from archwright.training.progress import Progress, progress, speaker
from archwright.training.ranks import dismiss, distributed, follow, is_stuck, leading
from archwright.training.resolve import (
    EVALUATIONS,
    WARM_SECONDS,
    first_weights,
    resolve,
    resolved_session,
    weights_file,
    with_steps,
)
from archwright.training.session import Session


class Stopped(Exception):  # noqa: N818
    """A run was interrupted and saved; its folder can be taken up again."""

    def __init__(self, text: str, signal: Signals) -> None:
        super().__init__(text)
        self.signal = signal


def resume_command(folder: RunFolder) -> str:
    """Return the command that goes on with a run."""
    words = ["archwright", "train", "--resume", str(folder.path)]
    for name in folder.parts:
        words += ["--parts", name]
    return shlex.join(words)


Finalizer = Callable[[Loop, RunFolder, Material], None]


def train(
    run: RunSpec | ModelSpec | str | Path,
    *assignments: str | Mapping[str, Any],
    out: str | Path | None = None,
    quiet: bool = False,
    verbose: bool = False,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    **values: Any,
) -> OpenRun:
    """Train a run (or the default run of a model, or a recipe by name) and return it finished.

    A run folder that holds the same run is taken up where it stopped; a finished one is returned.

        run = archwright.train("modern", "data.text=notes.txt", "budget=60s")

    Args:
        assignments: dotted overrides: texts, or dicts such as `{"model.dim": 64}`.
        out: the run folder; by default runs/NAME.
        quiet: show no progress.
        verbose: say why the machine decided as it did, as the page does.
        on_step: a function that is given the record of each step, once it is written: a dict with the keys of
            metrics.jsonl. It changes no number of the run. One that raises StopTraining ends the run there, finished;
            any other exception ends it, saved to go on from, and is raised again.
        on_evaluation: the same for each evaluation on held-out text.
        values: overrides of keys without dots: `dim=64`.

    Raises:
        UserError: what is wrong with the run, its text, or its folder, one line each.
        DivergedError: the loss is not finite any more.
        Stopped: Ctrl-C or SIGTERM; the run is saved.
    """
    since, callbacks = time.perf_counter(), Callbacks(on_step, on_evaluation)
    if not is_first():
        return _followed()
    with _for_scripts(), leading():
        run = load_run(run).override(*assignments, **values)
        enforce_run(run)
        check_layout(run, layout := layout_of(run.scale, launched()))
        path = Path(out) if out else RUNS / (run.name or "run")
        folder = RunFolder.create(path, run)
        complete(folder, callbacks, quiet=quiet, verbose=verbose, since=since, layout=layout)
    return open_run(folder.path)


def resume(
    folder: RunFolder | str | Path,
    *,
    quiet: bool = False,
    verbose: bool = False,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
) -> OpenRun:
    """Train what is left of the run in a folder, and return it finished.

    Args:
        quiet: as of `train`.
        verbose: as of `train`.
        on_step: as of `train`.
        on_evaluation: as of `train`.

    Raises:
        UserError: no run is there, another process trains there, or its text has changed.
        DivergedError: the loss is not finite any more.
        Stopped: Ctrl-C or SIGTERM; the run is saved.
    """
    callbacks = Callbacks(on_step, on_evaluation)
    if not is_first():
        return _followed()
    with _for_scripts(), leading():
        if not isinstance(folder, RunFolder):
            folder = RunFolder.open(folder)
        complete(folder, callbacks, quiet=quiet, verbose=verbose)
    return open_run(folder.path)


def _followed() -> OpenRun:
    """Do what the first process says, and return the finished run."""
    with _for_scripts():
        folder = follow()
    return open_run(folder.path)


@contextmanager
def _for_scripts() -> Iterator[None]:
    """Let what ends a run in one of several processes be raised in each so that the same `except` of a script catches
    it, and all go on to their next run; where they cannot, end."""
    try:
        yield
    except Exception as error:
        if is_stuck():
            raise SystemExit(_last_words(error)) from error
        if isinstance(error, EndedError):
            raise _as_raised_first(error) from None
        raise


def _last_words(error: Exception) -> str | int:
    """Return what a process says at its end; of several that end for the same reason, one says it."""
    if isinstance(error, (EndedError, LostError)) and not error.is_first:
        return 1
    what = error.lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return f"archwright: {what}; after that these processes cannot train another run, so all end"


def _as_raised_first(end: EndedError) -> BaseException:
    """Return an exception of the same class as that of the process that has met it; one of a class that is not known
    here, such as a callback's own, is a RuntimeError."""
    text = str(end)
    if "Exception" not in end.kinds:  # it ends, which no script is to catch
        return SystemExit(1)
    if end.signal is not None:
        return Stopped(text, Signals(end.signal))
    if UserError.__name__ in end.kinds:
        return UserError(text)
    return DivergedError(text) if DivergedError.__name__ in end.kinds else RuntimeError(text)


def complete(
    folder: RunFolder,
    callbacks: Callbacks | None = None,
    *,
    quiet: bool = False,
    verbose: bool = False,
    since: float | None = None,
    layout: Layout | None = None,
) -> None:
    """Train what is left of the run in a folder, as `resume` does, without opening it then; for the first process.

    Args:
        since: the reading of time.perf_counter from which a budget in time counts, if the run is new; by default, now.
        layout: how the processes that torchrun started share the run; by default, as they were to when it began, or
            where they are not as many now, sharded over all.

    Raises:
        UserError, DivergedError, Stopped: as `resume` does.
    """
    since = time.perf_counter() if since is None else since
    if layout is None:
        check_layout(folder.spec, layout := kept_layout(folder.spec.scale, launched()))
    end_with_torchrun()
    if not folder.finished:
        train_in(
            folder, finish, callbacks, quiet=quiet, verbose=verbose, since=since, layout=layout
        )
    else:
        dismiss(folder)
        if folder.holder_file.exists():  # its process was killed when all was done
            with contextlib.suppress(UserError), folder.lock():
                folder.sweep()
        folder.sweep(folder.report_file)
        if not folder.report_file.exists():
            report(folder)


def train_in(
    folder: RunFolder,
    ending: Finalizer,
    callbacks: Callbacks | None = None,
    *,
    quiet: bool = False,
    verbose: bool = False,
    since: float | None = None,
    layout: Layout = ONE,
) -> None:
    """Train what is left of the run in a folder up to its `ending`, which leaves what is wanted of it.

    Raises:
        UserError, DivergedError, Stopped: as `resume` does; and whatever a callback raises.
    """
    since = time.perf_counter() if since is None else since
    say = speaker(quiet)
    with ExitStack() as stack:
        stack.enter_context(folder.lock())
        stack.enter_context(explain_out_of_memory())
        material, settled, decisions = _begin(folder, say, layout)
        session = stack.enter_context(distributed(settled, folder, material, layout))
        if session.run.machine.num_steps == "auto":
            _settle_time(folder, session, material, since)
        _announce(folder, session, material, say, layout, verbose=verbose)
        recorded = _recorded_progress(folder)  # before later steps are cut off
        sent = folder.metrics() if session.run.loggers else []  # before then, too
        started = _restore(folder, session)
        if step := session.standing.step:
            say.say(f"resuming at step {step:,}")
        budget, standing = folder.environment().get("time_budget"), session.standing
        clock = Clock(budget["training"], standing.progress, recorded) if budget else None
        if clock is None and standing.progress < 1:  # environment.json was damaged
            standing.progress = 0.0
        shown = progress(round(session.num_steps), standing.step, quiet, estimated=bool(clock))
        with loggers(folder, sent) as log:
            number = layout.size if session.device.type == "cuda" else layout.num_machines
            loop = Loop(
                session,
                folder,
                material,
                peak=decisions.peak and number * decisions.peak,
                progress=shown,
                log=log,
                clock=clock,
                callbacks=callbacks,
            )
            on = f" on {layout}" if layout.size > 1 else ""
            loop.record("event", name=started, text=f"at step {session.standing.step}{on}")
            with _saved_if_callbacks_fail(loop):
                _run(loop, folder, say)
                if clock:
                    _settle_steps(folder, session)
                tokens = min(len(material.held_out), session.run.evaluate.final_max_tokens)
                whole = tokens == len(material.held_out)
                say.say(
                    f"evaluating on {'the whole' if whole else f'{tokens:,} tokens of the'} held-out text"
                )
                ending(loop, folder, material)


@contextmanager
def _saved_if_callbacks_fail(loop: Loop) -> Iterator[None]:
    """Let what a callback raises reach the user as it was raised, from a run that can be taken up again."""
    try:
        yield
    except CallbackError as error:
        cause, folder = error.__cause__, loop.folder
        assert cause is not None
        loop.record("event", name="stopped", text=f"by {type(cause).__name__} in {error.name}")
        report(folder)
        step = loop.session.standing.step
        cause.add_note(
            f"{error.name} raised this at step {step:,}, which is saved; go on with: {resume_command(folder)}"
        )
        raise cause from cause.__cause__


def _begin(folder: RunFolder, say: Progress, layout: Layout) -> tuple[Material, Session, Decisions]:
    """Return what a run is trained with; if that is not settled yet, settle and record it."""
    if folder.resolved:
        check_installed(folder.spec.loggers)
        material = reload_data(folder.spec, folder)
        processes = ALONE if layout.size == 1 else OneOf(layout)
        return material, *resolved_session(folder, material, processes)
    with folder.removed_unless_started():
        run = folder.spec
        check_installed(run.loggers)
        check_machine(run.machine)
        if run.init.from_:
            weights_file(Path(run.init.from_))
        material = prepare_data(run, folder)
        session, decisions = resolve(run, material, say, layout)
        _record(folder, session, decisions, material)
    return material, session, decisions


def _settle_time(folder: RunFolder, session: Session, material: Material, since: float) -> None:
    """Reserve time for the end of a run with a budget in time, and estimate its number of steps.

    A long held-out text is read in part; warm-up and evaluations follow from the estimate.
    """
    run, seconds = session.run, session.run.budget.amount
    step = session.time_step(min(WARM_SECONDS, seconds / 20))
    per_token, others = time_end(session, folder, material)
    evaluation, readable = run.evaluate, max(LEAST_READ, int(READING * seconds / per_token))
    tokens = min(len(material.held_out), evaluation.final_max_tokens, readable)
    if tokens == readable:
        update = {"evaluate": evaluation.model_copy(update={"final_max_tokens": tokens})}
        run = run.model_copy(update=update)
    ending = tokens * per_token + others
    spent = time.perf_counter() - since
    training = max(TRAINING * seconds, seconds - spent - ending)
    curve = EVALUATIONS * min(len(material.held_out), evaluation.max_tokens) * per_token
    num_steps = max(1, round(max(training / 2, training - curve) / step))
    session.run = with_steps(run, num_steps)
    environment = folder.environment()
    reason = (
        f"budget of {run.budget} at {1e3 * step:.1f} ms a step, with {ending:.1f} s for the end"
    )
    decisions = {"num_steps": {"value": num_steps, "reason": reason}}
    environment["decisions"] = environment.get("decisions", {}) | decisions
    environment["time_budget"] = {"spent": spent, "ending": ending, "training": training}
    folder.write_environment(environment)
    folder.write_spec(session.run)  # last: until then it is settled again


def _settle_steps(folder: RunFolder, session: Session) -> None:
    """Record the number of steps of a trained run, so that a repetition makes as many."""
    ended = early_end(folder.metrics())
    num_steps = (ended or {}).get("num_steps", session.standing.step)
    machine = session.run.machine.model_copy(update={"num_steps": num_steps})
    folder.write_spec(session.run.model_copy(update={"machine": machine}))


def _run(loop: Loop, folder: RunFolder, say: Progress) -> None:
    """Train to the last step; a run that stops before has a page, too."""
    try:
        with interruptions() as interrupt, loop.progress:
            done = loop.run(interrupt)
    except DivergedError:
        report(folder)
        raise
    if ended := early_end(folder.metrics()):
        say.say(f"ended early, at {early_end_text(ended)}")
    if not done:
        loop.record("event", name="stopped", text=f"by {interrupt.name}")
        report(folder)
        step = loop.session.standing.step
        text = f"stopped at step {step} and saved; go on with: {resume_command(folder)}"
        assert interrupt.signal is not None
        raise Stopped(text, interrupt.signal)


def _recorded_progress(folder: RunFolder) -> dict[int, float]:
    """Return the recorded progress by step, also of steps whose records were cut off."""
    kept = folder.environment().get("progress", {})
    return recorded_progress(folder.metrics()) | {int(step): kept[step] for step in kept}


def _cut(folder: RunFolder, step: int) -> None:
    """Cut off records of later steps, but keep their progress: the run may be killed before it has caught up."""
    later = {n: value for n, value in sorted(_recorded_progress(folder).items()) if n > step}
    if later:
        folder.write_environment(folder.environment() | {"progress": later})
    folder.truncate_to(step)


def _restore(folder: RunFolder, session: Session) -> str:
    """Go back to the newest checkpoint, if there is one; return how the run begins."""
    checkpoint.remove_stale(folder.checkpoints_folder)
    if checkpoint.use_latest(folder.checkpoints_folder, session.restore) is None:
        session.initialise()
        _cut(folder, -1)
        return "started"
    step = session.standing.step
    _cut(folder, step)
    checkpoint.steps.drop_old(folder.checkpoints_folder, step, folder.spec.checkpoint.keep)
    return "resumed" if session.standing.step else "started"


def _record(folder: RunFolder, session: Session, decisions: Decisions, material: Material) -> None:
    """Write what was settled; the environment last, as it makes the rest binding."""
    model = session.model
    folder.write_spec(session.run)
    if session.run.init.from_:  # where the weights came from may change
        several = session.processes.layout.size > 1
        values = first_weights(session.run, model) if several else None
        session.save(folder.checkpoints_folder, values)
    folder.write_environment(
        environment(decisions)
        | {
            "num_parameters": model.num_parameters(),
            "flops_per_token": run_flops_per_token(session.run, model, session.batches.lengths),
            "data": material.record(),
        }
    )


def _announce(
    folder: RunFolder,
    session: Session,
    material: Material,
    say: Progress,
    layout: Layout,
    *,
    verbose: bool,
) -> None:
    """Print what is about to be trained, in three lines; where wanted, also why the machine decided as it did."""
    run, num_steps = session.run, round(session.num_steps)
    about = "about " if "time_budget" in folder.environment() else ""
    say.say(repr(session.model))
    say.say(f"data: {material}")
    say.say(
        f"{about}{num_steps:,} step{'s' * (num_steps != 1)} of {run.tokens_per_step:,} tokens, "
        f"on {run.machine.device} in {run.machine.precision}"
        f"{'' if verbose else '; the page says why, and so does --verbose'}"
    )
    if layout.size > 1:
        say.say(f"trained by {layout}")
    if layout.tensor > 1:
        from archwright.scale.tensor import computed_alike

        if alike := computed_alike(session.model, layout.tensor):
            say.say(f"computed in full by each process of a tensor group: {', '.join(alike)}")
    for key, made in folder.environment().get("decisions", {}).items() if verbose else ():
        say.say(f"{key} = {made['value']}: {made['reason']}")
