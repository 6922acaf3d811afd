"""A training session: model, optimizers, batches, and step."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
from archwright.inspection.probes import PASSES, STEPS, Probes
from archwright.machine.compiling import uncompiled
from archwright.machine.precision import Precision
from archwright.model.model import Decoder
from archwright.optim import Optimizers, build_optimizers, learning_rate
from archwright.runs.records import Count, Seconds, Share
from archwright.scale.processes import ALONE, Processes
from archwright.spec.run_spec import RunSpec
from archwright.training.data import Material
from archwright.training.evaluation import Evaluation, Reading, evaluate
from archwright.training.step import StepResult, to_device, train_step

PROBED_TOKENS = 4096
"""Tokens of the pass that probes look at."""


@dataclass(config=ConfigDict(strict=True, extra="forbid"))
class TrainerState:
    """Where a training stands; with the weights and the optimizers' state, all that a resume needs."""

    step: Count = 0
    seconds: Seconds = 0.0
    cpu_seconds: Seconds = 0.0
    """Processor time of steps, all threads added up, also one that writes a checkpoint meanwhile; it does not grow when
    others use the machine."""
    spikes: Count = 0
    recent: list[float] = field(default_factory=list)
    """The last losses, by which a spike is known."""
    progress: Share = 0.0
    """Trained share of a run whose budget is in time, and 1 once a run has ended early; 0 if steps alone count."""


class Session:
    """A model in training. `step()` trains on the next batch."""

    def __init__(
        self, run: RunSpec, model: Decoder, batches: BatchSource, processes: Processes = ALONE
    ) -> None:
        self.run, self.model, self.batches, self.processes = run, model, batches, processes
        self.device = torch.device(run.machine.device)
        self.standing = TrainerState()
        self._windows: dict[Reading, Windows] = {}
        self._saving: Future[object] | None = None
        self.begin()

    def begin(self) -> None:
        """Start the optimizers, the loss scale and the random numbers of dropout again."""
        self.precision = Precision(self.run.machine.precision, self.device, self.model.head.d_out)
        self.optimizers: Optimizers = self.processes.take(
            build_optimizers(self.model, self.run.optimizer, precision=self.precision.dtype)
        )
        torch.manual_seed(self.run.seed)

    @property
    def num_steps(self) -> float:
        """Steps of the whole run; an estimate from the progress so far if the budget is in time."""
        steps, standing = self.run.machine.num_steps, self.standing
        assert steps != "auto"
        return standing.step / standing.progress if standing.progress else steps

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.standing.step * self.run.tokens_per_step

    @property
    def lr_scale(self) -> float:
        """The coming step's share of the peak learning rate."""
        return learning_rate(self.run.schedule, self.standing.step, self.num_steps)

    def learning_rate(self, share: float) -> float:
        """Return the largest learning rate among the optimizers' groups at a share of the peaks."""
        groups = [g for optimizer in self.optimizers.values() for g in optimizer.param_groups]
        return share * max(float(group["initial_lr"]) for group in groups)

    @property
    def stop_asked(self) -> bool:
        """Whether another process that trains with this one was asked to stop."""
        return False

    def step(self) -> StepResult:
        """Train on the batch of this step."""
        result = self.make_step(self.standing.step, self.lr_scale)
        if result.finite:
            self.standing.step += 1
        return result

    def windows(self, material: Material, reading: Reading) -> Windows:
        """Return windows of held-out text, which are kept, as a run is evaluated many times."""
        if reading not in self._windows:
            self._windows[reading] = reading.windows(self.run, material)
        return self._windows[reading]

    def evaluate(self, material: Material, reading: Reading) -> Evaluation:
        """Return what the model reaches on held-out text."""
        windows = self.windows(material, reading)
        return evaluate(self.model, windows, self.precision, self.processes)

    def initialise(self) -> None:
        """Give the model its initial values where it has none, as one that is cut up over processes."""

    def write_model(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the weights to a file, as `checkpoint.write_model` does."""
        checkpoint.write_model(path, self.model, metadata)

    def load_model(self, path: Path) -> None:
        """Train on with the weights of a file that `write_model` wrote.

        Raises:
            UserError, DamagedError: as `checkpoint.load_model` does.
        """
        checkpoint.load_model(path, self.model)

    @contextmanager
    def whole_model(self, path: Path) -> Iterator[Decoder]:
        """Yield the model, to compute with it in this process alone; where others hold parts of it, with the weights of
        a file that `write_model` wrote."""
        yield self.model

    @contextmanager
    def probing(self) -> Iterator[Probes]:
        """Yield probes that have seen a pass over the first rows of the coming batch, and see the step in the block."""
        probes = self.probe(self.standing.step)
        with probes.watching(STEPS):
            yield probes

    def probe(self, step: int) -> Probes:
        """Return probes that have seen a pass over the first rows of the batch of a step.

        It is a pass of its own, uncompiled and without dropout, which leaves those of the training,
        and all random numbers, as they are without probes.
        """
        scaler = self.precision.scaler
        scale = float(scaler.get_scale()) if scaler else 1.0
        probes = Probes(
            self.model, self.optimizers.values(), loss_scale=scale, parameters=self.processes.held()
        )
        rows = max(1, PROBED_TOKENS // self.run.model.context_length)
        batch = to_device(self.batches.at(step), self.device)
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
        """Return the median seconds of a step, and leave a session that has not trained as it was.

        Takes about `seconds`, and two steps at least. The first two do not count, where there are more.
        """
        times: list[float] = []
        with self._state_restored():
            while len(times) < 2 or sum(times) < seconds:
                start = time.perf_counter()
                self.make_step(len(times), 1e-3)
                times.append(time.perf_counter() - start)
        return statistics.median(times[min(2, len(times) - 1) :])

    def gradient_norms(self) -> dict[str, float]:
        """Return the norm of each parameter's gradient in the first step, before clipping, and leave a session that
        has not trained as it was."""
        found: dict[str, float] = {}
        parameters = dict(self.model.named_parameters())

        def look(name: str, parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            found[name] = parameter.grad.float().norm().item()

        hooks = [
            p.register_post_accumulate_grad_hook(partial(look, name))
            for name, p in parameters.items()
            if p.requires_grad
        ]
        try:
            with self._state_restored():
                self.make_step(0, 1e-3)
        finally:
            for hook in hooks:
                hook.remove()
        return found

    @contextmanager
    def _state_restored(self) -> Iterator[None]:
        """Leave a session that has not trained as it was."""
        assert self.standing.step == 0
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        try:
            yield
        finally:
            self.model.load_state_dict(weights)
            self.begin()

    def save(self, folder: Path, values: checkpoint.weights.Values | None = None) -> None:
        """Write a checkpoint of this step; of a model on the meta device, with the values that are given."""
        snapshot = self._taken(copies=False)._replace(values=values)
        checkpoint.steps.write(folder, snapshot, self.run.checkpoint.keep)

    def start_saving(self, folder: Path) -> None:
        """Write a checkpoint of this step while training goes on, from a copy that is taken now.

        Raises:
            UserError: the one before, which is waited for, could not be written.
        """
        self.settle()
        self._saving = in_thread(self._writer(folder))

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is being written; where that has ended, `settle` does not wait."""
        return self._saving is not None and not self._saving.done()

    def settle(self) -> None:
        """Wait until a checkpoint that is being written is on the disk.

        Raises:
            UserError: it could not be written; those before are untouched.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _writer(self, folder: Path) -> Callable[[], object]:
        """Take a copy of what is to be saved, and return what writes it."""
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
        """Return what a checkpoint says of a training beside weights, optimizers and generators."""
        return dict(vars(self.standing)) | {"precision": self.precision.state()}

    def _load(self, path: Path) -> dict[str, Any]:
        """Set weights, optimizers and generators as a checkpoint has them, and return the state it was given."""
        return checkpoint.load(path, model=self.model, optimizers=self.optimizers)

    def restore(self, path: Path) -> None:
        """Go back to a checkpoint.

        Raises:
            DamagedError: it is not whole, or none of a session; the session is then to be restored from another.
        """
        state = self._load(path)
        try:
            self.precision.restore(state.pop("precision"))
            standing = TrainerState(**state)
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
        """Train on the batch of a step, at a share of the peak learning rates; `step` does so in turn."""
        max_grad_norm = self.run.max_grad_norm
        if not self.model.training:  # an evaluation came before; this walks through all modules
            self.model.train()
        return train_step(
            self.model,
            self.batches.at(step).map(torch.from_numpy),
            self.optimizers,
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


def in_thread(work: Callable[[], object]) -> Future[object]:
    """Do a piece of work beside what goes on; the result says when it is done, and raises what it raised."""
    executor = ThreadPoolExecutor(1, "checkpoint")
    result = executor.submit(work)
    executor.shutdown(wait=False)
    return result


def is_spike(loss: float, recent: list[float]) -> bool:
    """Tell whether a loss stands out: over five standard deviations above the mean of the last 100.

    The deviation counts as at least 2 % of the mean, so that a flat curve has no spikes.
    """
    if len(recent) < 100:
        return False
    mean = statistics.fmean(recent)
    if loss <= 1.1 * mean:  # which the deviation, slow to compute, cannot make a spike of
        return False
    deviation = max(statistics.pstdev(recent, mean), 0.02 * mean)
    return loss > mean + 5 * deviation
