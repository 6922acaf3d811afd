"""Measurements of this machine, for `archwright plan` and dry runs."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from archwright import format as fmt
from archwright import presets
from archwright.machine.decide import decide
from archwright.machine.peaks import measure_bandwidth, peak_of
from archwright.machine.precision import DTYPES
from archwright.machine.rules import cpu_name
from archwright.planning.memory import total_memory
from archwright.planning.workload import Workload
from archwright.reporting.plan_rows import Figure
from archwright.spec.hardware import Hardware
from archwright.spec.machine import MachineSpec
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.training.measured_step import MeasuredStep, measure_step


def this_machine() -> Hardware:
    """Return this machine as a device, with measured peaks but no bandwidth."""
    machine = decide(MachineSpec()).machine
    device, names = machine.device, dict.fromkeys(("fp32", machine.precision))
    peaks = {name: peak_of(torch.device(device), DTYPES[name]) for name in names}
    quiet = all(peak.quiet for peak in peaks.values())
    return Hardware(
        name=presets.THIS,
        title=torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        usual_devices=1,
        source="measured" if quiet else "measured next to other work",
        evidence="measured",
        memory_bytes=float(total_memory(device)),
        peak_flops={name: peak.flops for name, peak in peaks.items()},  # type: ignore[misc]
    )


def with_bandwidth(work: Workload) -> Workload:
    """Add the measured memory bandwidth of this machine to a workload."""
    bandwidth = measure_bandwidth(torch.device(decide(MachineSpec()).machine.device))
    hardware = work.hardware.model_copy(update={"memory_bandwidth": bandwidth})
    return replace(work, hardware=hardware)


def step_of_a_plan(run: RunSpec, work: Workload) -> MeasuredStep:
    """Measure a training step with the batch and context of a workload.

    Raises:
        UserError: as `measure_step`, or broken rules of the run.
    """
    if work.context is not None:
        run = run.override(f"model.context_length={work.context}")
    if work.batch is not None:
        rows = max(1, round(work.batch_tokens / run.model.context_length))
        run = run.override(f"batch_size={rows}")
    enforce_run(run)
    return measure_step(run, say)


def say(line: str) -> None:
    """Print a line about work in progress."""
    print(f"archwright: {line}", file=sys.stderr, flush=True)


def rows(step: MeasuredStep, tokens: float | None = None) -> Iterator[Figure]:
    """Yield a step's memory and time, and the time to train on `tokens` at its speed."""
    run = step.run
    sequences = f"{run.batch_size:,} sequences of {run.model.context_length:,} tokens"
    what = f"weights, gradients, optimizer and activations; {fmt.size(step.free)} are free"
    yield Figure("a step", sequences, run.machine.precision)
    yield Figure("memory", fmt.size(step.memory), "estimated", what)
    if step.why_not:
        yield Figure("measured", "no", step.why_not)
        return
    assert step.peak_memory is not None
    assert step.seconds is not None
    assert step.tokens_per_second is not None
    of = "of the GPU" if run.machine.device == "cuda" else "of the process"
    yield Figure("peak memory", fmt.size(step.peak_memory), "measured", of)
    yield Figure(
        "time of a step", fmt.duration(step.seconds), "measured", f"{run.machine.kernel} kernel"
    )
    yield Figure("speed", f"{fmt.count(step.tokens_per_second)} tokens/s", "measured")
    if tokens is not None:
        seconds = fmt.duration(tokens / step.tokens_per_second)
        yield Figure("the training", seconds, "estimated", f"{fmt.count(tokens)} tokens")


def record(step: MeasuredStep, tokens: float) -> dict[str, Any]:
    """Return a measured step, and the time to train on `tokens` at its speed, as plain data."""
    speed = step.tokens_per_second
    return {
        "batch_size": step.run.batch_size,
        "context": step.run.model.context_length,
        "precision": step.run.machine.precision,
        "kernel": step.run.machine.kernel,
        "memory_bytes": step.memory,
        "free_memory_bytes": step.free,
        "fits": step.fits,
        "why_not_measured": step.why_not or None,
        "peak_memory_bytes": step.peak_memory,
        "step_seconds": step.seconds,
        "tokens_per_second": speed,
        "training_seconds": tokens / speed if speed else None,
    }
