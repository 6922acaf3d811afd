"""A training session: model, optimizers, batches, and step."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from archwright import checkpoint
from archwright.data.batches import BatchSource
from archwright.data.eval_windows import Windows
from archwright.data.inputs import Batch
from archwright.inspection.probes import PASSES, STEPS, Probes, WholeParameters
from archwright.machine.compiling import uncompiled
from archwright.machine.precision import Precision
from archwright.model.model import Decoder
from archwright.optim import Optimizers, build_optimizers, learning_rate
from archwright.runs.records import Count, Seconds, Share
from archwright.scale.processes import ALONE, Processes
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material
from archwright.training.evaluation import Evaluation, Reading, evaluate
from archwright.training.prefetch import Prefetch
from archwright.training.step import StepResult, local_parts, to_device, train_step

PROBED_TOKENS = 4096
"""Tokens of the forward pass for probes."""


@dataclass(config=ConfigDict(strict=True, extra="forbid"))
class TrainerState:
    """Progress of a run. Resuming needs it, the weights, and the optimizers' state."""

    step: Count = 0
    seconds: Seconds = 0.0
    cpu_seconds: Seconds = 0.0
    """CPU seconds of all threads during steps, independent of other processes on the machine."""
    spikes: Count = 0
    recent: list[float] = field(default_factory=list)
    """Last losses, for detecting spikes."""
    progress: Share = 0.0
    """Trained share of a time budget; 1 after an early end; 0 if only steps count."""


class Session:
    """A model in training, its optimizers and its batches. `step` trains on the next batch."""

    def __init__(
        self, run: RunSpec, model: Decoder, batches: BatchSource, processes: Processes = ALONE
    ) -> None:
        self.run, self.model, self.batches, self.processes = run, model, batches, processes
        self.device = torch.device(run.machine.device)
        self.standing = TrainerState()
        self._read_ahead = Prefetch(self._read) if self.device.type == "cuda" else self._read
        self._windows: dict[Reading, Windows] = {}
        self._saving: Future[object] | None = None
        self.begin()

    def begin(self) -> None:
        """Create new optimizers and a new loss scale, and seed dropout."""
        self.precision = Precision(self.run.machine.precision, self.device, self.model.head.d_out)
        self.optimizers: Optimizers = self.processes.take(
            build_optimizers(self.model, self.run.optimizer, precision=self.precision.dtype)
        )
        torch.manual_seed(self.run.seed)

    @property
    def num_steps(self) -> float:
        """Steps of the run; for a time budget, an estimate from the progress."""
        steps, standing = self.run.machine.num_steps, self.standing
        assert steps != "auto"
        return standing.step / standing.progress if standing.progress else steps

    @property
    def tokens(self) -> int:
        """Number of trained tokens."""
        return self.standing.step * self.run.tokens_per_step

    @property
    def lr_scale(self) -> float:
        """Share of the peak learning rate in the next step."""
        return learning_rate(self.run.schedule, self.standing.step, self.num_steps)

    def learning_rate(self, share: float) -> float:
        """Return the largest learning rate of all parameter groups, at a share of the peaks."""
        groups = [g for optimizer in self.optimizers.values() for g in optimizer.param_groups]
        return share * max(float(group["initial_lr"]) for group in groups)

    @property
    def whole(self) -> Decoder:
        """The unsharded model; on the meta device if it is sharded."""
        return self.model

    def step(self) -> StepResult:
        """Train on the batch of the next step."""
        result = self.make_step(self.standing.step, self.lr_scale)
        if result.finite:
            self.standing.step += 1
        return result

    def windows(self, material: Material, reading: Reading) -> Windows:
        """Return cached windows of the held-out text."""
        if reading not in self._windows:
            self._windows[reading] = reading.windows(self.run, material)
        return self._windows[reading]

    def evaluate(self, material: Material, reading: Reading) -> Evaluation:
        """Evaluate the model on held-out text."""
        windows = self.windows(material, reading)
        return evaluate(self.model, windows, self.precision, self.processes)

    def initialise(self) -> None:
        """Draw the initial weights of a sharded model; others have them already."""

    def write_model(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the weights to a file, like `checkpoint.write_model`."""
        checkpoint.write_model(path, self.model, metadata)

    def load_model(self, path: Path) -> None:
        """Load the weights of a file from `write_model`, after `checkpoint.weights.check_model`."""
        checkpoint.load_model(path, self.model)

    @contextmanager
    def whole_model(self, path: Path) -> Iterator[Decoder]:
        """Yield a model for one rank: this one, or if it is sharded, one with the weights in `path`."""
        yield self.model

    @contextmanager
    def probing(self) -> Iterator[Probes]:
        """Yield probes that have measured a forward pass, and measure the step inside the block."""
        probes = self.probe(self.standing.step)
        with probes.watching(STEPS):
            yield probes

    def probe(self, step: int) -> Probes:
        """Return probes that have measured a forward pass over the first sequences of a step's batch.

        The pass is uncompiled and without dropout. It changes no random numbers, so training is unaffected.
        """
        scaler = self.precision.scaler
        scale = float(scaler.get_scale()) if scaler else 1.0
        probes = Probes(
            self.model, self.optimizers.values(), loss_scale=scale, parameters=self.processes.held()
        )
        rows = max(1, PROBED_TOKENS // self.run.model.context_length)
        batch = to_device(self._read_ahead(step)[0], self.device)
        first = batch.split(-(-self.run.batch_size // rows))[0]
        self.model.eval()
        with (
            torch.no_grad(),
            uncompiled(self.model),
            self.precision.autocast(),
            probes.watching(PASSES),
        ):
            self.model(**first.inputs.given())
        return probes

    def time_step(self, seconds: float) -> float:
        """Return the median seconds of a step, and restore the untrained session.

        Takes about `seconds`, and at least two steps. The first two are ignored if there are more.
        """
        times: list[float] = []
        with self._state_restored():
            while len(times) < 2 or sum(times) < seconds:
                start = time.perf_counter()
                self.make_step(len(times), 1e-3)
                elapsed = partial(float, time.perf_counter() - start)
                times.append(self.processes.first(elapsed))  # so all ranks make as many steps
        return statistics.median(times[min(2, len(times) - 1) :])

    def gradient_norms(self) -> dict[str, float]:
        """Return each parameter's gradient norm before clipping, and restore the untrained session."""
        norms: dict[str, float] = {}

        def look(name: str, gradient: torch.Tensor) -> None:
            norms[name] = gradient.float().norm().item()

        remove_hooks = WholeParameters(self.model).watch_gradients(look)
        try:
            with self._state_restored():
                self.make_step(0, 1e-3)
        finally:
            remove_hooks()
        return norms

    @contextmanager
    def _state_restored(self) -> Iterator[None]:
        """Restore the untrained session after the block."""
        assert self.standing.step == 0
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        try:
            yield
        finally:
            self.model.load_state_dict(weights)
            self.model.zero_grad(set_to_none=True)  # of a step that failed
            self.begin()

    def save(self, folder: Path, values: checkpoint.weights.Values | None = None) -> None:
        """Write a checkpoint; `values` are the weights of a model on the meta device."""
        snapshot = self._taken(copies=False)._replace(values=values)
        checkpoint.steps.write(folder, snapshot, self.run.checkpoint.keep)

    def start_saving(self, folder: Path) -> None:
        """Copy the state, and write a checkpoint in another thread.

        Raises:
            UserError: the previous checkpoint could not be written.
        """
        self.settle()
        self._saving = in_thread(self._writer(folder))

    @property
    def is_saving(self) -> bool:
        """True while a checkpoint is being written."""
        return self._saving is not None and not self._saving.done()

    def settle(self) -> None:
        """Wait until the checkpoint is written.

        Raises:
            UserError: it could not be written; earlier checkpoints are unchanged.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def settle_after_error(self) -> None:
        """Wait until nothing is written anymore; errors are ignored."""
        with suppress(UserError):
            self.settle()

    def _writer(self, folder: Path) -> Callable[[], object]:
        """Copy the state, and return a function that writes it as a checkpoint."""
        keep, snapshot = self.run.checkpoint.keep, self._taken(copies=True)
        checkpoint.steps.begin(folder, snapshot.step, keep)
        return partial(checkpoint.steps.write_begun, folder, snapshot, keep)

    def _taken(self, *, copies: bool) -> checkpoint.steps.Snapshot:
        return checkpoint.steps.take(
            self.standing.step,
            model=self.model,
            optimizers=self.optimizers,
            state=self._state(),
            copies=copies,
        )

    def _state(self) -> dict[str, Any]:
        """Return the state of a checkpoint, without weights, optimizers and generators."""
        return dict(vars(self.standing)) | {"precision": self.precision.state()}

    def restore(self, path: Path) -> None:
        """Restore a checkpoint.

        Raises:
            DamagedError: the checkpoint is damaged, and so is the session: restore another one.
        """
        state = checkpoint.load(path, model=self.model, optimizers=self.optimizers)
        self._set_state(path, state)

    def restore_latest(self, folder: Path) -> bool:
        """Restore the newest intact checkpoint; False if there is none.

        Raises:
            DamagedError: all checkpoints are damaged.
        """
        return checkpoint.use_latest(folder, self.restore) is not None

    def _set_state(self, path: Path, state: Mapping[str, Any]) -> None:
        try:
            values = dict(state)
            self.precision.restore(values.pop("precision"))
            standing = TrainerState(**values)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise checkpoint.DamagedError(
                f"{path} is damaged: it is none of a training."
            ) from error
        before, self.standing = self.standing, standing
        if standing.step > self.num_steps:
            num_steps, self.standing = self.num_steps, before
            raise checkpoint.DamagedError(
                f"{path} is damaged: it is of step {standing.step} of {num_steps:.0f}."
            )

    def make_step(self, step: int, lr_scale: float) -> StepResult:
        """Train on the batch of a given step, at a share of the peak learning rates."""
        max_grad_norm = self.run.max_grad_norm
        if not self.model.training:  # after an evaluation; `train` visits all modules
            self.model.train()
        batch, parts = self._read_ahead(step)
        return train_step(
            self.model,
            batch,
            self.optimizers,
            parts=parts,
            lr_scale=lr_scale,
            precision=self.precision,
            max_grad_norm=None if max_grad_norm == "none" else max_grad_norm,
            z_loss=self.run.z_loss,
            label_smoothing=self.run.label_smoothing,
            chunked=self.run.machine.loss == "chunked",
            grad_accum_steps=self.run.grad_accum_steps,
            second_weight=self.run.objective.second_weight,
            processes=self.processes,
        )

    def _read(self, step: int) -> tuple[Batch, list[Batch]]:
        """Return the batch of a step, and the microbatches of this rank, which a GPU copies without waiting."""
        batch = self.batches.at(step).map(torch.from_numpy)
        parts = local_parts(batch, self.run.grad_accum_steps, self.processes)
        if self.device.type == "cuda":
            parts = [part.map(torch.Tensor.pin_memory) for part in parts]
        return batch, parts


def in_thread(work: Callable[[], object]) -> Future[object]:
    """Call a function in a new thread, and return its future."""
    executor = ThreadPoolExecutor(1, "checkpoint")
    result = executor.submit(work)
    executor.shutdown(wait=False)
    return result


def is_spike(loss: float, recent: list[float]) -> bool:
    """True if a loss exceeds the mean of the last 100 by over five standard deviations.

    The deviation is at least 2 % of the mean, so that a flat curve has no spikes.
    """
    if len(recent) < 100:
        return False
    mean = statistics.fmean(recent)
    if loss <= 1.1 * mean:  # no spike with any deviation, which is slow to compute
        return False
    deviation = max(statistics.pstdev(recent, mean), 0.02 * mean)
    return loss > mean + 5 * deviation
