"""Peak memory and time of a few real training steps on random tokens."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch

from archwright.data.inputs import Batch, Inputs
from archwright.data.objectives import Examples, Vocabulary
from archwright.format import duration, size
from archwright.machine.compiling import compile_parts
from archwright.machine.decide import decide, decide_kernel, decide_loss, peak_memory
from archwright.machine.liger import fuse
from archwright.machine.out_of_memory import explain_out_of_memory
from archwright.model.build import build
from archwright.planning.cost import run_flops_per_token
from archwright.planning.memory import free_memory
from archwright.spec.run_spec import RunSpec
from archwright.training.resolve import resolved, step_memory
from archwright.training.session import Session

USABLE = 0.8
"""Share of the free memory that the estimate may fill for steps to be run."""
TIMED_STEPS = 3
"""Timed steps, after a warm-up step."""
MFU = 0.4
"""Assumed model FLOPs utilisation of a step that has not run yet."""
MOST_SECONDS = 60.0
"""Longest expected step that is run, and time after which no further step starts."""
WORTH_A_LINE = 5.0
"""Expected seconds of measuring from which it is announced."""


@dataclass(frozen=True)
class MeasuredStep:
    """Memory and time of a training step on this machine."""

    run: RunSpec
    """The run, with the machine's decisions."""
    memory: float
    """Estimated bytes of weights, gradients, optimizer and activations."""
    free: int
    """Free bytes before the model was built."""
    why_not: str = ""
    """Reason why nothing was measured, or empty."""
    peak_memory: int | None = None
    """Peak bytes of the process, or of the GPU."""
    seconds: float | None = None
    """Median seconds of a step."""

    @property
    def fits(self) -> bool:
        """True if the estimate fits in the usable share of the free memory."""
        return self.memory <= USABLE * self.free

    @property
    def tokens_per_second(self) -> float | None:
        """Measured training speed."""
        return self.run.tokens_per_step / self.seconds if self.seconds else None


def measure_step(run: RunSpec, say: Callable[[str], None] = lambda line: None) -> MeasuredStep:
    """Run a few training steps if they fit into memory and are short enough.

    Args:
        say: receives one line before measuring that takes a while.

    Raises:
        UserError: a device or precision that this machine lacks; an objective without its special
            tokens; memory that ran out nevertheless.
    """
    decisions = decide(run.machine)
    model = build(run.model.resolved(), device="meta")
    decide_loss(decisions, model, run)
    run = resolved(run.model_copy(update={"machine": decisions.machine}), model)
    memory = step_memory(run, model, run.machine)
    step = MeasuredStep(run, memory, free_memory(run.machine.device))
    if not step.fits:
        why_not = (
            f"does not fit: expected at most {size(USABLE * step.free)}, 80 % of the free memory"
        )
        return replace(step, why_not=why_not)
    flops = run_flops_per_token(run, model) * run.tokens_per_step
    expected = decisions.least_seconds(flops) / MFU
    if expected > MOST_SECONDS:
        return replace(step, why_not=f"not measured: a step would take about {duration(expected)}")
    if (1 + TIMED_STEPS) * expected > WORTH_A_LINE:
        say(f"measuring {1 + TIMED_STEPS} training steps, about {duration(expected)} each")
    with explain_out_of_memory(), _limited(step.free, run.machine.device):
        model = build(run.model, seed=run.seed, device=run.machine.device)
        model.checkpoint_activations(run.machine.activation_checkpointing)
        decide_kernel(decisions, model, run)
        if run.machine.compile == "block":
            compile_parts(model, "block", whole_loss=run.machine.loss == "whole")
        if run.machine.fused == "liger":
            fuse(model, decisions.machine)
        machine = decisions.machine.model_copy(update={"num_steps": 1 + TIMED_STEPS})
        run = run.model_copy(update={"machine": machine})
        session = Session(run, model, _Same(random_batch(run)))
        if run.machine.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = _median_seconds(session)
    return replace(step, run=run, peak_memory=peak_memory(session.device), seconds=seconds)


@contextmanager
def _limited(free: int, device: str) -> Iterator[None]:
    """Make allocations beyond the free memory fail, before Linux kills a process.

    The estimate can be half the real peak: it ignores the kernel's buffers and the allocator's losses.
    """
    if sys.platform != "linux" or device != "cpu":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    held = psutil.Process().memory_info().data
    given = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([held + free, *given]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _median_seconds(session: Session) -> float:
    """Return the median seconds of the steps after the first, if there was time for more than one."""
    times: list[float] = []
    while len(times) <= TIMED_STEPS and sum(times) < MOST_SECONDS:
        start = time.perf_counter()
        session.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


class _Same:
    """The same batch for each step."""

    lengths = None

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def at(self, step: int, **_: Any) -> Batch:
        return self._batch


def random_batch(run: RunSpec) -> Batch:
    """Return a batch of the run's objective, made of random tokens.

    Raises:
        UserError: special tokens of the objective that the run's tokenizer lacks.
    """
    vocab_size, special_tokens = run.model.resolved().vocab_size, run.tokenizer.special_tokens
    assert vocab_size != "auto"
    shape = (run.batch_size, run.objective.window_length(run.model.context_length))
    dice = np.random.default_rng(0)
    text = Inputs(dice.integers(vocab_size - len(special_tokens), size=shape))
    if run.objective.has_pairs:
        # The last token ends each text.
        text = Inputs(text.tokens[:, 1:], decoder_tokens=text.tokens[:, 1:])
    special_ids = {name: vocab_size - i for i, name in enumerate(special_tokens, start=1)}
    return Examples(run.objective, Vocabulary(vocab_size, special_ids=special_ids)).batch(text, 0)
