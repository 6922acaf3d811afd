"""The training loop, which is the same on every rank: train, record, evaluate, save."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from signal import SIGTERM
from typing import Any

from archwright import checkpoint
from archwright.format import duration
from archwright.inspection.probes import Probes
from archwright.machine.decide import peak_memory
from archwright.runs import RunFolder
from archwright.runs.ending import EARLY_STOP
from archwright.runs.records import Record
from archwright.spec.errors import UserError
from archwright.training.budget import Clock
from archwright.training.callbacks import (
    CallbackError,
    CallbackName,
    Callbacks,
    StopTraining,
)
from archwright.training.data import Material
from archwright.training.early_stop import EarlyStop
from archwright.training.evaluation import Evaluation, reading_of
from archwright.training.interrupt import Interrupt
from archwright.training.progress import Progress
from archwright.training.session import Session, is_spike
from archwright.training.step import StepResult

CHECKPOINT_SECONDS = 60.0
"""Shortest time between checkpoints if no number of steps is set."""
CHECKPOINT_SHARE = 0.02
"""Largest share of the time for which checkpoints stop training, if no number of steps is set."""


class DivergedError(RuntimeError):
    """The loss or its gradient is not finite; the last good checkpoint remains."""


class Loop:
    """Trains a session to its end, and records it in a run folder."""

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
        self.session, self.folder, self.material = session, folder, material
        self.processes, stopping = session.processes, session.run.early_stop
        records = self.processes.first(lambda: _evaluations(folder)) if stopping.patience else []
        self.early_stop = EarlyStop(stopping, records)
        self.callbacks = callbacks or Callbacks()
        self.progress, self.log, self.clock = progress, log, clock
        flops = folder.environment().get("flops_per_token") if peak else None
        self.share_of_peak = flops / peak if flops and peak else None  # of a token in a second
        self._failure: CallbackError | None = None
        self._saved_at = time.monotonic()
        self._saving_seconds = 0.0
        """Time for which the last checkpoint stopped training."""
        self._is_saving = False

    def run(self, interrupt: Interrupt) -> bool:
        """Train until the last step; return False if interrupted before.

        Raises:
            DivergedError: the loss is not finite.
            CallbackError: a callback failed; the step is saved.
        """
        with self._settled():
            while not self.done and not interrupt:
                self._advance(interrupt)
        return self.done

    @property
    def done(self) -> bool:
        """True after the last step."""
        return self.session.standing.step >= self.session.num_steps

    def _advance(self, interrupt: Interrupt) -> None:
        """Train, evaluate and save, if due, for one step."""
        records: dict[CallbackName, Record] = {"on_step": self._step()}
        if not self.done and self.session.standing.step % self.session.run.evaluate.every == 0:
            records["on_evaluation"] = self._evaluate()
            self._stop_early(records["on_evaluation"])
        after = self.processes.first(lambda: self._after_step(records, interrupt))
        if after["end"] is not None:
            self.end(after["end"])
        if after["signal"]:
            interrupt.ask(after["signal"])
        if after["failed"]:
            self.save()
            raise self._failure or CallbackError(after["failed"])
        if after["is_saved"]:
            self._settle()
            interval, every = self._checkpoint_interval, self.session.run.checkpoint.every
            if interval > CHECKPOINT_SECONDS and not every:
                stall = duration(self._saving_seconds)
                text = f"every {duration(interval)}, as each stops training for {stall}"
                self.record("event", name="checkpoints", text=text)
        if self.done or interrupt or after["saves"]:
            self.start_saving()

    def _after_step(
        self, records: Mapping[CallbackName, Record], interrupt: Interrupt
    ) -> dict[str, Any]:
        """Return rank 0's decisions after a step: callbacks are last, when the step is complete."""
        decisions = self._called(records)
        number = SIGTERM if self.processes.stop_asked else interrupt.signal
        is_saved = self._is_saving and not self.session.is_saving
        saves = self.wants_checkpoint(is_saving=self._is_saving and not is_saved)
        return decisions | {"signal": number, "is_saved": is_saved, "saves": saves}

    def _called(self, records: Mapping[CallbackName, Record]) -> dict[str, Any]:
        """Call callbacks; return the reason to end the run, and the name of a callback that failed."""
        end, failed = None, None
        try:
            for name, record in records.items():
                try:
                    self.callbacks.call(name, record)
                except StopTraining as stop:
                    end = end or f"{name} asked for it{stop.reason and f': {stop.reason}'}"
        except CallbackError as error:
            self._failure, failed = error, error.name
        return {"end": end, "failed": failed}

    def call(self, name: CallbackName, record: Record) -> None:
        """Pass a record to a callback, which may end the run.

        Raises:
            CallbackError: it failed.
        """
        called = self.processes.first(lambda: self._called({name: record}))
        if called["end"] is not None:
            self.end(called["end"])
        if called["failed"]:
            raise self._failure or CallbackError(name)

    def end(self, reason: str) -> None:
        """Make the current step the last, and record the reason."""
        if self.done:
            return
        num_steps = round(self.session.num_steps)
        self.record("event", name=EARLY_STOP, text=reason, num_steps=num_steps)
        self.session.standing.progress = 1.0
        self.progress.expect(self.session.num_steps)

    def record(self, kind: str, **values: Any) -> Record:
        """Return a record of the current step; rank 0 writes it."""
        standing = self.session.standing
        record = {
            "kind": kind,
            "step": standing.step,
            "tokens": self.session.tokens,
            "seconds": round(standing.seconds, 4),
            "cpu_seconds": round(standing.cpu_seconds, 4),
            **values,
        }
        if self.processes.is_first:
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
        self._check_kept()
        self._saved_at = start = time.monotonic()
        with self.progress.doing("saving"):
            self.session.start_saving(self.folder.checkpoints_folder)
        self._saving_seconds = time.monotonic() - start
        self._is_saving = True

    def _check_kept(self) -> None:
        if self.processes.is_first:
            self.folder.check_kept()

    def _settle(self) -> None:
        """Wait until the checkpoint is written."""
        if not self._is_saving:
            return
        self._is_saving, start = False, time.monotonic()
        with self.progress.doing("saving"):
            try:
                self.session.settle()
            except UserError:
                self._check_kept()  # nothing can be written into a run that was removed
                raise
        self._saving_seconds += time.monotonic() - start

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Finish writing a checkpoint after the block; an error of the block takes precedence."""
        try:
            yield
        except BaseException:
            self.session.settle_after_error()
            raise
        self._settle()

    def restore_best(self) -> None:
        """Restore the weights of the lowest held-out loss after an early stop.

        If their file is damaged or of another step, warn and keep the last weights.
        """
        if not self.early_stop.restores:
            return
        file, step = self.folder.best_file, self.early_stop.lowest_step

        def problem() -> str:
            try:
                if checkpoint.read_metadata(file).get("step") != str(step):
                    return f"{file} is not of step {step:,}."
                checkpoint.weights.check_model(file, self.session.whole)
            except UserError as error:
                return str(error)
            return ""

        if error := self.processes.first(problem):
            warnings.warn(f"{error} The weights of the last step are kept.", stacklevel=2)
        else:
            self.session.load_model(file)

    def wants_checkpoint(self, *, is_saving: bool) -> bool:
        """True if a checkpoint is due."""
        every = self.session.run.checkpoint.every
        if every:
            return self.session.standing.step % every == 0
        late = time.monotonic() - self._saved_at >= self._checkpoint_interval
        return late and not is_saving

    @property
    def _checkpoint_interval(self) -> float:
        return max(CHECKPOINT_SECONDS, self._saving_seconds / CHECKPOINT_SHARE)

    def _stop_early(self, evaluation: Record) -> None:
        """End the run if its held-out loss stopped falling; until then, keep the best weights."""
        stop = self.early_stop
        if stop.add(evaluation) and stop.spec.patience and stop.spec.restore_best:
            with self.progress.doing("saving"):
                self._check_kept()
                metadata = {"archwright": "model", "step": str(evaluation["step"])}
                self.session.write_model(self.folder.best_file, metadata)
        if stop.is_due:
            self.end(stop.reason)

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
            standing.progress = self.processes.first(partial(self.clock.progress, standing.step))
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
        """Write the measurements of probes, also of a failed step, to explain the failure."""
        if not self.processes.is_first:
            return
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
        """Count spikes of the loss; spikes do not join the recent losses."""
        standing = self.session.standing
        if is_spike(loss, standing.recent):
            standing.spikes += 1
            self.record("event", name="loss_spike", text=f"loss {loss:.3f} stands out")
        else:
            standing.recent = [*standing.recent, loss][-100:]

    def evaluate(self) -> Evaluation:
        """Evaluate on the curve's sample of the held-out text."""
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
        self.session.settle_after_error()
        self.processes.first(lambda: self._raise_diverged(result))

    def _raise_diverged(self, result: StepResult) -> None:
        saved = self.folder.checkpoints()
        where = (
            f"the checkpoint of step {max(saved)} is kept"
            if saved
            else "no checkpoint was made yet"
        )
        finite_loss = math.isfinite(result.loss)
        what, value = ("gradient", result.grad_norm) if finite_loss else ("loss", result.loss)
        text = (
            f"the {what} became {value} at step {self.session.standing.step + 1}; {where}. "
            "Lower optimizer.lr, lengthen schedule.warmup, or lower max_grad_norm"
        )
        self.record("event", name="stopped", text=text)
        raise DivergedError(text)


def _evaluations(folder: RunFolder) -> list[Record]:
    return [record for record in folder.metrics() if record["kind"] == "eval"]
