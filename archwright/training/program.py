"""The program of a resolved run, which every rank executes: restore, train, finish."""

import contextlib
import shlex
import time
from collections.abc import Callable
from functools import partial
from signal import Signals

from archwright import checkpoint
from archwright.reporting.loggers import loggers
from archwright.runs import RunFolder
from archwright.runs.ending import early_end, early_end_text
from archwright.training.budget import LEAST_READ, READING, TRAINING, Clock, recorded_progress
from archwright.training.callbacks import CallbackError, Callbacks
from archwright.training.data import Material
from archwright.training.finalize import report, time_end
from archwright.training.interrupt import Interrupt, interruptions
from archwright.training.loop import DivergedError, Loop
from archwright.training.progress import progress, speaker
from archwright.training.resolve import EVALUATIONS, WARM_SECONDS, with_steps
from archwright.training.session import Session

Finalizer = Callable[[Loop, RunFolder, Material], None]


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


class Program:
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
