"""The loop: train, measure, evaluate, save, until the run is done or someone asks to stop."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGTERM
from typing import Any, Literal

from archwright import checkpoint
from archwright.inspection.probes import Probes
from archwright.machine.decide import peak_memory
from archwright.runs import RunFolder
from archwright.runs.ending import EARLY_STOP
from archwright.runs.records import Record
from archwright.spec.errors import UserError
from archwright.training.budget import Clock
from archwright.training.callbacks import CallbackError, Callbacks, StopTraining
from archwright.training.data import Material
from archwright.training.early_stop import EarlyStop
from archwright.training.evaluation import Evaluation, reading_of
from archwright.training.interrupt import Interrupt
from archwright.training.progress import Progress
from archwright.training.session import Session, is_spike
from archwright.training.step import StepResult

CHECKPOINT_SECONDS = 60.0
"""Time between checkpoints if no number of steps is set."""


class DivergedError(RuntimeError):
    """The loss or its gradient is not finite; the last good checkpoint remains."""


class Loop:
    """Trains a session to its end and keeps the record in a run folder."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        material: Material,
        *,
        peak: float | None,
        progress: Progress,
        log: Callable[[Record], None],
        clock: Clock | None,
        callbacks: Callbacks | None,
    ) -> None:
        run = session.run
        self.session, self.folder, self.material = session, folder, material
        records = folder.metrics() if run.early_stop.patience else []
        self.early_stop = EarlyStop(run.early_stop, records)
        self.callbacks = callbacks or Callbacks()
        self.progress, self.log, self.clock = progress, log, clock
        flops = folder.environment().get("flops_per_token")
        self.share_of_peak = flops / peak if flops and peak else None  # of a token in a second
        self._saved_at = time.monotonic()
        self._is_saving = False

    def run(self, interrupt: Interrupt) -> bool:
        """Train until the last step; return False if interrupted before.

        Raises:
            DivergedError: the loss is not finite.
            CallbackError: a callback failed; the step is saved.
        """
        session = self.session
        with self._settled():
            while not self.done and not interrupt:
                try:
                    self._advance()
                except CallbackError:
                    self.save()
                    raise
                if session.stop_asked:
                    interrupt.ask(SIGTERM)
                if self._is_saving and not self.session.is_saving:
                    self._settle()
                if self.done or interrupt or self.wants_checkpoint():
                    self.start_saving()
        return self.done

    @property
    def done(self) -> bool:
        """Whether the last step was made."""
        return self.session.standing.step >= self.session.num_steps

    def _advance(self) -> None:
        """Make a step, record it, and evaluate if an evaluation is due."""
        trained, evaluation = self._step(), None
        if not self.done and self.session.standing.step % self.session.run.evaluate.every == 0:
            evaluation = self._evaluate()
            self._stop_early(evaluation)
        # Last: what they raise must find a step of which nothing is left to do.
        self.call("on_step", trained)
        if evaluation:
            self.call("on_evaluation", evaluation)

    def call(self, name: Literal["on_step", "on_evaluation"], record: Record) -> None:
        """Give a record to a callback, which may end the run.

        Raises:
            CallbackError: it failed.
        """
        try:
            self.callbacks.call(name, record)
        except StopTraining as stop:
            self.end(f"{name} asked for it{stop.reason and f': {stop.reason}'}")

    def end(self, reason: str) -> None:
        """Make the current step the last, and record the reason."""
        if self.done:
            return
        num_steps = round(self.session.num_steps)
        self.record("event", name=EARLY_STOP, text=reason, num_steps=num_steps)
        self.session.standing.progress = 1.0
        self.progress.expect(self.session.num_steps)

    def record(self, kind: str, **values: Any) -> Record:
        """Write a record at the present step, and return it."""
        standing = self.session.standing
        record = {
            "kind": kind,
            "step": standing.step,
            "tokens": self.session.tokens,
            "seconds": round(standing.seconds, 4),
            "cpu_seconds": round(standing.cpu_seconds, 4),
            **values,
        }
        self.folder.check_kept()
        self.folder.append(record)
        self.log(record)
        return record

    def save(self) -> None:
        """Write a checkpoint, and wait for it."""
        self.start_saving()
        self._settle()

    def start_saving(self) -> None:
        """Write a checkpoint from a copy during training, after waiting for the previous one."""
        self._settle()
        self.folder.check_kept()
        self._saved_at = time.monotonic()
        with self.progress.doing("saving"):
            self.session.start_saving(self.folder.checkpoints_folder)
        self._is_saving = True

    def _settle(self) -> None:
        """Wait for a checkpoint that is being written."""
        if not self._is_saving:
            return
        self._is_saving = False
        with self.progress.doing("saving"):
            try:
                self.session.settle()
            except UserError:
                self.folder.check_kept()  # nothing can be written into a run that was removed
                raise

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Finish writing a checkpoint after the block; an error of the block takes precedence."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(UserError):
                self._settle()
            raise
        self._settle()

    def restore_best(self) -> None:
        """Restore the weights of the lowest held-out loss after an early stop.

        If their file is damaged or of another step, warn and keep the last weights.
        """
        if not self.early_stop.restores:
            return
        file, step = self.folder.best_file, self.early_stop.lowest_step
        try:
            if checkpoint.read_metadata(file).get("step") != str(step):
                raise checkpoint.DamagedError(f"{file} is not of step {step:,}.")
            self.session.load_model(file)
        except UserError as error:
            warnings.warn(f"{error} The weights of the last step are kept.", stacklevel=2)

    def wants_checkpoint(self) -> bool:
        """True if a checkpoint is due."""
        every = self.session.run.checkpoint.every
        if every:
            return self.session.standing.step % every == 0
        late = time.monotonic() - self._saved_at >= CHECKPOINT_SECONDS
        return late and not self._is_saving

    def _stop_early(self, evaluation: Record) -> None:
        """End the run if its held-out loss stopped falling; until then, keep the best weights."""
        stop = self.early_stop
        if stop.add(evaluation) and stop.spec.patience and stop.spec.restore_best:
            with self.progress.doing("saving"):
                self.folder.check_kept()
                metadata = {"archwright": "model", "step": str(evaluation["step"])}
                self.session.write_model(self.folder.best_file, metadata)
        if stop.is_due:
            self.end(self.early_stop.reason)

    def _step(self) -> Record:
        started, standing = time.perf_counter(), self.session.standing
        number, lr_scale = standing.step + 1, self.session.lr_scale
        with self._probed(number) as probes:
            start, cpu = time.perf_counter(), time.process_time()
            result = self.session.step()
            seconds = time.perf_counter() - start
            standing.cpu_seconds += time.process_time() - cpu
        standing.seconds += time.perf_counter() - started
        if probes:
            self._record_probes(number, probes)
        if not result.finite:
            self._diverged(result)
        if self.clock:  # before the evaluation, as the one after the last step is another
            standing.progress = self.clock.progress(standing.step)
            self.progress.expect(self.session.num_steps)
        speed, of_peak = self.session.run.tokens_per_step / seconds, self.share_of_peak
        record = self.record(
            "train",
            loss=result.loss,
            z_loss=result.z_loss,
            **result.auxiliary,
            **({} if result.second_loss is None else {"second_loss": result.second_loss}),
            grad_norm=result.grad_norm,
            lr=self.session.learning_rate(lr_scale),
            tokens_per_second=round(speed, 1),
            **({"utilisation": round(speed * of_peak, 4)} if of_peak else {}),
            memory_bytes=peak_memory(self.session.device),
            **({"progress": standing.progress} if self.clock else {}),
        )
        self._watch(result.loss)
        self.progress.update(standing.step, result.loss, speed)
        return record

    @contextmanager
    def _probed(self, number: int) -> Iterator[Probes | None]:
        """Measure probes in the first step and in every `probes.every`-th step."""
        every = self.session.run.probes.every
        if not every or (number > 1 and number % every):
            yield None
            return
        with self.session.probing() as probes:
            yield probes

    def _record_probes(self, number: int, probes: Probes) -> None:
        """Write the values of probes in a step, also in a failed one, to explain the failure."""
        record = {
            "kind": "probes",
            "step": number,
            "tokens": number * self.session.run.tokens_per_step,
            "seconds": round(self.session.standing.seconds, 4),
            "values": {
                # Six significant digits, as a record has hundreds of numbers.
                name: {row: float(f"{value:.6g}") for row, value in rows.items()}
                for name, rows in probes.values.items()
            },
        }
        self.folder.check_kept()
        self.folder.append_probes(record)

    def _watch(self, loss: float) -> None:
        """Count spikes, against losses that were none."""
        standing = self.session.standing
        if is_spike(loss, standing.recent):
            standing.spikes += 1
            self.record("event", name="loss_spike", text=f"loss {loss:.3f} stands out")
        else:
            standing.recent = [*standing.recent, loss][-100:]

    def evaluate(self) -> Evaluation:
        """Evaluate the model on the sample of held-out text for the curve."""
        run = self.session.run
        max_bytes = None if run.evaluate.max_bytes == "none" else run.evaluate.max_bytes
        reading = reading_of(run, run.evaluate.max_tokens, max_bytes)
        return self.session.evaluate(self.material, reading)

    def _evaluate(self) -> Record:
        start = time.perf_counter()
        with self.progress.doing("evaluating"):
            evaluation = self.evaluate()
        self.session.standing.seconds += time.perf_counter() - start
        return self.record("eval", **evaluation.record())

    def _diverged(self, result: StepResult) -> None:
        with contextlib.suppress(UserError):
            self._settle()
        kept = self.folder.checkpoints()
        where = (
            f"the checkpoint of step {max(kept)} is kept" if kept else "no checkpoint was made yet"
        )
        finite_loss = math.isfinite(result.loss)
        what, value = ("gradient", result.grad_norm) if finite_loss else ("loss", result.loss)
        text = (
            f"the {what} became {value} at step {self.session.standing.step + 1}; {where}. "
            "Lower optimizer.lr, lengthen schedule.warmup, or lower max_grad_norm"
        )
        self.record("event", name="stopped", text=text)
        raise DivergedError(text)
