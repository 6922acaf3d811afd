"""Profile of a training step: time, FLOPs and bytes by part."""

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from archwright.inspection.step_meter import PARTS, PHASES, StepMeter, Times, metered
from archwright.losses import cross_entropy
from archwright.machine.decide import Decisions, decide, decide_kernel
from archwright.machine.precision import Precision
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.optim import build_optimizers, clip_gradients, set_learning_rates
from archwright.planning.counter import Counter
from archwright.spec.machine import MachineSpec
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.training.measured_step import random_batch
from archwright.training.resolve import check_memory
from archwright.training.step import to_device

FEWEST = 3
"""Least number of measured steps, after a warm-up step."""
RATE = 1e-3
"""Share of the peak learning rate in measured updates."""


@dataclass(frozen=True)
class PartProfile:
    """Seconds, FLOPs and bytes of a part of a training step."""

    name: str
    forward: float
    """Seconds of the forward pass."""
    backward: float
    update: float
    products: float
    """FLOPs of matrix products; attention counts visible keys only."""
    arithmetic: float
    """FLOPs of everything else."""
    num_bytes: float
    """Bytes that operations read and write."""

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.forward + self.backward + self.update

    @property
    def flops(self) -> float:
        """FLOPs in all."""
        return self.products + self.arithmetic


@dataclass(frozen=True)
class Profile:
    """Parts of a training step, and the measured model and machine."""

    parts: tuple[PartProfile, ...]
    step: float
    """Median seconds of a step without measurement of parts."""
    num_steps: int
    """Number of measured steps."""
    batch_size: int
    length: int
    num_parameters: int
    machine: MachineSpec
    peak: float | None
    """FLOP/s of matrix products on this machine in this precision; None if other work disturbed them."""

    @property
    def total(self) -> PartProfile:
        """The sum of all parts."""
        names = [name for name in PartProfile.__dataclass_fields__ if name != "name"]
        sums = {name: sum(getattr(part, name) for part in self.parts) for name in names}
        return PartProfile("whole step", **sums)

    def record(self) -> dict[str, Any]:
        """Return all values, ready for JSON."""
        values = {k: v for k, v in vars(self).items() if k not in ("parts", "machine")}
        machine = self.machine.model_dump(include={"device", "precision", "kernel", "threads"})
        return {"parts": [asdict(part) for part in self.parts], **values, **machine}


def profile(
    run: RunSpec | ModelSpec | str | Path,
    *,
    batch_size: int = 4,
    length: int | None = None,
    machine: MachineSpec | None = None,
    seconds: float = 10.0,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Profile:
    """Profile a training step of a model on random tokens.

    Args:
        run: a run (its model, objective, optimizer and special tokens count), or a model with a causal objective.
        length: tokens per sequence; default: the model's context length.
        machine: device, precision, kernel and threads; "auto" is decided as for a run.
        seconds: duration of the measurement, at least three steps.
        on_progress: called with the completed share.

    Raises:
        UserError: the model breaks a rule or does not fit into memory.
    """
    run = load_run(run)
    if length is not None:
        run = run.override(f"model.context_length={length}")
    spec = run.model.resolved()
    assert spec.vocab_size != "auto"
    run = run.model_copy(update={"model": spec, "batch_size": batch_size})
    decisions = decide(machine or MachineSpec())
    check_memory(run, spec.vocab_size, decisions.machine)
    model = build(spec, device=decisions.machine.device)
    decide_kernel(decisions, model, run)
    steps = _Steps(model, run, decisions)
    costs = steps.counted()
    whole, times = steps.measured(seconds, on_progress)
    return Profile(
        parts=tuple(_part(name, times, costs) for name in PARTS),
        step=whole,
        num_steps=len(times),
        batch_size=batch_size,
        length=spec.context_length,
        num_parameters=model.num_parameters(),
        machine=decisions.machine,
        peak=decisions.peak,
    )


class _Steps:
    """Training steps of a model on one batch, measured by part."""

    def __init__(self, model: Decoder, run: RunSpec, decisions: Decisions) -> None:
        device = torch.device(decisions.machine.device)
        self.model, self.meter = model, StepMeter(device)
        self.precision = Precision(decisions.machine.precision, device, model.head.d_out)
        self.optimizers = build_optimizers(model, run.optimizer, precision=self.precision.dtype)
        set_learning_rates(self.optimizers, RATE)
        self.batch = to_device(random_batch(run), device)

    def counted(self) -> Counter:
        """Return the FLOPs and bytes of a step."""
        counter = Counter(self.meter, self.model.parameters())
        with metered(self.model, self.meter):
            self.step(counter)
        return counter

    def measured(
        self, seconds: float, on_progress: Callable[[float], None]
    ) -> tuple[float, list[Times]]:
        """Return the median seconds of plain steps, and the times of metered steps, in turn."""
        plain: list[float] = []
        times: list[Times] = []
        started = time.perf_counter()
        while len(times) <= FEWEST or time.perf_counter() - started < seconds:
            plain.append(self._timed())
            with metered(self.model, self.meter):
                self.step()
                times.append(self.meter.times())
            passed = (time.perf_counter() - started) / max(seconds, 1e-9)
            on_progress(min(1.0, passed, len(times) / (FEWEST + 1)))
        return statistics.median(plain[1:]), times[1:]

    def step(self, counter: Counter | None = None, *, by_part: bool = True) -> None:
        """Train on the batch."""
        meter = self.meter
        meter.begin()
        with nullcontext() if counter is None else counter.counting(fakes=False):
            with self.precision.autocast():
                out = self.model(**self.batch.inputs.given())
            with meter.region("loss"):
                loss = cross_entropy(out.logits, self.batch.targets).total
        if by_part:
            meter.follow_backward(loss)
        meter.begin_phase("backward")
        with nullcontext() if counter is None else counter.counting(fakes=False):
            loss.backward()
            meter.begin_phase("update")
            with meter.region("optimizer"):
                clip_gradients(self.model.parameters(), 1.0)
                for optimizer in self.optimizers.values():
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

    def _timed(self) -> float:
        """Return the seconds of a plain step."""
        start = time.perf_counter()
        self.step(by_part=False)
        if self.meter.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


def _part(name: str, times: list[Times], counter: Counter) -> PartProfile:
    """Return a part with its median times."""
    times_by_phase = {p: statistics.median(t.get((name, p), 0.0) for t in times) for p in PHASES}
    return PartProfile(
        name,
        **times_by_phase,
        products=counter.flops_of(name, "product", "leaf"),
        arithmetic=counter.flops_of(name, "arithmetic"),
        num_bytes=sum(n for key, n in counter.num_bytes.items() if key.part == name),
    )
