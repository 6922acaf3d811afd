"""Training: from a spec to a finished run folder."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

from archwright import checkpoint
from archwright.machine.decide import Decisions, check_machine, decided, environment
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.planning.cost import run_flops_per_token
from archwright.reporting.loggers import check_installed, loggers
from archwright.runs import RUNS, RunFolder
from archwright.runs.ending import early_end, early_end_text
from archwright.runs.load import OpenRun, open_run
from archwright.scale.launch import EndedError, LostError, end_with_torchrun, is_first, launched
from archwright.scale.layout import ONE, Layout, check_layout, kept_layout, layout_of
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load_run
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.training import ranks
from archwright.training.budget import LEAST_READ, READING, TRAINING, Clock, recorded_progress
from archwright.training.callbacks import Callback, CallbackError, Callbacks
from archwright.training.data import Material, prepare_data, reload_data
from archwright.training.finalize import finish, report, time_end
from archwright.training.interrupt import Interrupt, interruptions
from archwright.training.loop import DivergedError, Loop
from archwright.training.progress import Progress, progress, speaker
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
    """A run was interrupted and saved, and can be resumed."""

    def __init__(self, text: str, signal: Signals) -> None:
        super().__init__(text)
        self.signal = signal


def resume_command(folder: RunFolder) -> str:
    """Return the command that resumes a run."""
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
    """Train a run, a recipe or the default run of a model, and return it finished.

    A stopped run is resumed if its folder holds the same run. A finished run is returned.

        run = archwright.train("modern", "data.text=notes.txt", "budget=60s")

    Args:
        assignments: dotted overrides, as text or as dicts such as `{"model.dim": 64}`.
        out: run folder; default: runs/NAME.
        quiet: show no progress.
        verbose: print the reasons for the machine's settings, as on the page.
        on_step: function called with the record of each step, a dict with the keys of metrics.jsonl. It changes no
            number of the run. If it raises StopTraining, the run ends and is finished. After any other exception,
            the run is saved, can be resumed, and the exception is raised again.
        on_evaluation: the same for each evaluation on held-out text.
        values: overrides of keys without dots: `dim=64`.

    Raises:
        UserError: mistakes in the run, its text, or its folder, one line each.
        DivergedError: the loss is not finite.
        Stopped: Ctrl-C or SIGTERM; the run is saved.
    """
    since, callbacks = time.perf_counter(), Callbacks(on_step, on_evaluation)
    with _for_scripts():
        if not is_first():
            return open_run(follow(callbacks).path)
        with ranks.leading():
            run = load_run(run).override(*assignments, **values)
            enforce_run(run)
            check_layout(run, layout := layout_of(run.scale, launched()))
            folder = RunFolder.create(Path(out) if out else RUNS / (run.name or "run"), run)
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
    """Resume the run in a folder, and return it finished.

    Args:
        quiet: as in `train`.
        verbose: as in `train`.
        on_step: as in `train`.
        on_evaluation: as in `train`.

    Raises:
        UserError: the folder has no run, another process trains it, or its text has changed.
        DivergedError: the loss is not finite.
        Stopped: Ctrl-C or SIGTERM; the run is saved.
    """
    callbacks = Callbacks(on_step, on_evaluation)
    with _for_scripts():
        if not is_first():
            return open_run(follow(callbacks).path)
        with ranks.leading():
            if not isinstance(folder, RunFolder):
                folder = RunFolder.open(folder)
            complete(folder, callbacks, quiet=quiet, verbose=verbose)
    return open_run(folder.path)


def follow(callbacks: Callbacks | None = None) -> RunFolder:
    """Train the run that rank 0 begins, and return its folder; for all other ranks.

    Raises:
        UserError, LostError, EndedError: as `ranks.follow`.
    """

    def program(session: Session, folder: RunFolder, material: Material) -> None:
        _Training(folder, material, session, callbacks, quiet=True).run(finish)

    return ranks.follow(program)


@contextmanager
def _for_scripts() -> Iterator[None]:
    """Raise the exception that ends a run on every rank, so that a script may catch it and train the next run.

    If the processes cannot train another run, exit.
    """
    try:
        yield
    except Exception as error:
        if ranks.is_stuck():
            raise SystemExit(_last_words(error)) from error
        if isinstance(error, EndedError):
            raise _as_raised_first(error) from None
        raise


def _last_words(error: Exception) -> str | int:
    """Return the exit message; only one rank reports a shared reason."""
    if isinstance(error, (EndedError, LostError)) and not error.is_first:
        return 1
    what = error.lines[0] if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return f"archwright: {what}; after that these processes cannot train another run, so all end"


def _as_raised_first(end: EndedError) -> BaseException:
    """Return an exception of the class that another rank raised; RuntimeError for unknown classes."""
    text = str(end)
    if "Exception" not in end.kinds:  # such as KeyboardInterrupt, which scripts do not catch
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
    """Train the rest of the run in a folder, like `resume`; for a single process or rank 0.

    Args:
        since: start of a new run's time budget, by time.perf_counter; default: now.
        layout: layout of the ranks; default: that of the run's start, or if the number of ranks differs, sharded
            over all.

    Raises:
        UserError, DivergedError, Stopped: as `resume`.
    """
    since = time.perf_counter() if since is None else since
    if layout is None:
        check_layout(folder.spec, layout := kept_layout(folder.spec.scale, launched()))
    end_with_torchrun()
    if not folder.finished:
        train_in(
            folder, finish, callbacks, quiet=quiet, verbose=verbose, since=since, layout=layout
        )
        return
    ranks.dismiss(folder)
    if folder.holder_file.exists():  # the process was killed after the last record
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
    """Train the rest of the run in a folder, and call `ending`.

    Raises:
        UserError, DivergedError, Stopped: as `resume`; and exceptions of callbacks.
    """
    since = time.perf_counter() if since is None else since
    with ExitStack() as stack:
        stack.enter_context(folder.lock())
        stack.enter_context(explain_out_of_memory())
        material, session, decisions = _begin(folder, speaker(quiet), layout)
        if layout.size > 1:
            device = folder.spec.machine.device
            session = stack.enter_context(ranks.sharded(folder, material, layout, device))
        assert session is not None
        number = layout.size if session.device.type == "cuda" else layout.num_machines
        training = _Training(folder, material, session, callbacks, quiet=quiet, verbose=verbose)
        training.run(ending, since, decisions.peak and number * decisions.peak)


def _begin(
    folder: RunFolder, say: Progress, layout: Layout
) -> tuple[Material, Session | None, Decisions]:
    """Return material, session and decisions of a run; resolve and record a new one.

    The session is None if several ranks resume a run.
    """
    if folder.resolved:
        check_installed(folder.spec.loggers)
        material = reload_data(folder.spec, folder)
        if layout.size > 1:
            return material, None, decided(folder.spec.machine, folder.environment())
        return material, *resolved_session(folder, material)
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


def _record(folder: RunFolder, session: Session, decisions: Decisions, material: Material) -> None:
    """Write the resolved run; the environment is last, because it marks the run as resolved."""
    model = session.model
    folder.write_spec(session.run)
    if session.run.init.from_:  # the source of the weights may change
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


class _Training:
    """A resolved run in training: the same program on every rank."""

    def __init__(
        self,
        folder: RunFolder,
        material: Material,
        session: Session,
        callbacks: Callbacks | None,
        *,
        quiet: bool,
        verbose: bool = False,
    ) -> None:
        self.folder, self.material, self.session = folder, material, session
        self.callbacks, self.quiet, self.verbose = callbacks, quiet, verbose
        self.say, self.first = speaker(quiet), session.processes.first

    def run(self, ending: Finalizer, since: float = 0.0, peak: float | None = None) -> None:
        """Train to the last step, and call `ending`.

        Args:
            since: start of a new run's time budget, by time.perf_counter.
            peak: FLOP/s of matrix products of all devices; None if unknown.
        """
        session, folder, is_first = self.session, self.folder, self.session.processes.is_first
        if session.run.machine.num_steps == "auto":
            self._settle_time(since)
        if is_first:
            self._announce()
        recorded = _recorded_progress(folder) if is_first else {}  # before records are cut
        sent = folder.metrics() if is_first and session.run.loggers else []
        started = self._restore()
        standing = session.standing
        if standing.step:
            self.say.say(f"resuming at step {standing.step:,}")
        budget = self.first(lambda: folder.environment().get("time_budget"))
        clock = Clock(budget["training"], standing.progress, recorded) if budget else None
        if clock is None and standing.progress < 1:  # environment.json was damaged
            standing.progress = 0.0
        shown = progress(round(session.num_steps), standing.step, self.quiet, estimated=bool(clock))
        with loggers(folder, sent) if is_first else contextlib.nullcontext(lambda _: None) as log:
            loop = Loop(
                session,
                folder,
                self.material,
                peak=peak,
                progress=shown,
                log=log,
                clock=clock,
                callbacks=self.callbacks,
            )
            layout = session.processes.layout
            on = f" on {layout}" if layout.size > 1 else ""
            loop.record("event", name=started, text=f"at step {standing.step}{on}")
            try:
                self._train(loop)
                if clock:
                    self.first(lambda: _settle_steps(folder, session))
                self._say_evaluation()
                ending(loop, folder, self.material)
            except CallbackError as error:
                self.first(partial(self._raise_cause, loop, error))

    def _train(self, loop: Loop) -> None:
        """Train to the last step; write the page of a run that stops earlier."""
        # Other ranks have handlers of their own.
        caught = interruptions() if loop.processes.is_first else contextlib.nullcontext(Interrupt())
        try:
            with caught as interrupt, loop.progress:
                done = loop.run(interrupt)
        except DivergedError:
            report(self.folder)
            raise
        if loop.processes.is_first and (ended := early_end(self.folder.metrics())):
            self.say.say(f"ended early, at {early_end_text(ended)}")
        if not done:
            self.first(lambda: self._raise_stopped(loop, interrupt))

    def _raise_stopped(self, loop: Loop, interrupt: Interrupt) -> None:
        loop.record("event", name="stopped", text=f"by {interrupt.name}")
        report(self.folder)
        step, command = loop.session.standing.step, resume_command(self.folder)
        assert interrupt.signal is not None
        raise Stopped(f"stopped at step {step} and saved; go on with: {command}", interrupt.signal)

    def _raise_cause(self, loop: Loop, error: CallbackError) -> None:
        """Raise the exception of a callback, with a note how to resume the run."""
        cause = error.__cause__
        assert cause is not None
        loop.record("event", name="stopped", text=f"by {type(cause).__name__} in {error.name}")
        report(self.folder)
        step, command = loop.session.standing.step, resume_command(self.folder)
        cause.add_note(
            f"{error.name} raised this at step {step:,}, which is saved; go on with: {command}"
        )
        raise cause from cause.__cause__

    def _settle_time(self, since: float) -> None:
        """Reserve time for the end of a run with a time budget, and estimate its number of steps.

        A long held-out text is evaluated in part. Warm-up and evaluations follow from the estimate.
        """
        session, folder = self.session, self.folder
        run, seconds = session.run, session.run.budget.amount
        step = session.time_step(min(WARM_SECONDS, seconds / 20))
        per_token, others = time_end(session, folder, self.material)
        held_out, readable = len(self.material.held_out), int(READING * seconds / per_token)
        readable = max(LEAST_READ, readable)
        tokens = min(held_out, run.evaluate.final_max_tokens, readable)
        ending = tokens * per_token + others
        spent = time.perf_counter() - since
        training = max(TRAINING * seconds, seconds - spent - ending)
        curve = EVALUATIONS * min(held_out, run.evaluate.max_tokens) * per_token
        steps = max(1, round(max(training / 2, training - curve) / step))
        steps, tokens, readable = self.first(lambda: (steps, tokens, readable))
        if tokens == readable:
            update = {"evaluate": run.evaluate.model_copy(update={"final_max_tokens": tokens})}
            run = run.model_copy(update=update)
        session.run = with_steps(run, steps)

        def record() -> None:
            reason = f"budget of {run.budget} at {1e3 * step:.1f} ms a step, with {ending:.1f} s for the end"
            environment = folder.environment()
            decisions = {"num_steps": {"value": steps, "reason": reason}}
            environment["decisions"] = environment.get("decisions", {}) | decisions
            environment["time_budget"] = {"spent": spent, "ending": ending, "training": training}
            folder.write_environment(environment)
            folder.write_spec(session.run)  # last: until then, resuming estimates again

        self.first(record)

    def _restore(self) -> str:
        """Restore the newest checkpoint, if any; return the name of the event."""
        session, folder = self.session, self.folder
        self.first(lambda: checkpoint.remove_stale(folder.checkpoints_folder))
        has_checkpoint = session.restore_latest(folder.checkpoints_folder)
        if not has_checkpoint:
            session.initialise()

        def cut() -> None:
            step = session.standing.step
            _cut(folder, step if has_checkpoint else -1)
            if has_checkpoint:
                keep = folder.spec.checkpoint.keep
                checkpoint.steps.drop_old(folder.checkpoints_folder, step, keep)

        self.first(cut)
        return "resumed" if session.standing.step else "started"

    def _announce(self) -> None:
        """Print the model, the data and the steps; if verbose, the reasons for the machine's settings."""
        session, say, layout = self.session, self.say.say, self.session.processes.layout
        run, num_steps, environment = (
            session.run,
            round(session.num_steps),
            self.folder.environment(),
        )
        about = "about " if "time_budget" in environment else ""
        say(repr(session.whole))
        say(f"data: {self.material}")
        say(
            f"{about}{num_steps:,} step{'s' * (num_steps != 1)} of {run.tokens_per_step:,} tokens, "
            f"on {run.machine.device} in {run.machine.precision}"
            f"{'' if self.verbose else '; the page says why, and so does --verbose'}"
        )
        if layout.size > 1:
            say(f"trained by {layout}")
        if layout.tensor > 1:
            from archwright.scale.tensor import computed_alike

            if alike := computed_alike(session.whole, layout.tensor):
                say(f"computed in full by each process of a tensor group: {', '.join(alike)}")
        for key, made in environment.get("decisions", {}).items() if self.verbose else ():
            say(f"{key} = {made['value']}: {made['reason']}")

    def _say_evaluation(self) -> None:
        held_out, most = len(self.material.held_out), self.session.run.evaluate.final_max_tokens
        amount = "the whole" if held_out <= most else f"{most:,} tokens of the"
        self.say.say(f"evaluating on {amount} held-out text")


def _settle_steps(folder: RunFolder, session: Session) -> None:
    """Record the number of trained steps, so that a repetition makes as many."""
    ended = early_end(folder.metrics())
    num_steps = (ended or {}).get("num_steps", session.standing.step)
    machine = session.run.machine.model_copy(update={"num_steps": num_steps})
    folder.write_spec(session.run.model_copy(update={"machine": machine}))


def _recorded_progress(folder: RunFolder) -> dict[int, float]:
    """Return the recorded progress by step, including steps whose records were cut."""
    cut = folder.environment().get("progress", {})
    return recorded_progress(folder.metrics()) | {int(step): cut[step] for step in cut}


def _cut(folder: RunFolder, step: int) -> None:
    """Cut the records after a step, but keep their progress: the run may be killed before it has caught up."""
    later = {n: value for n, value in sorted(_recorded_progress(folder).items()) if n > step}
    if later:
        folder.write_environment(folder.environment() | {"progress": later})
    folder.truncate_to(step)
