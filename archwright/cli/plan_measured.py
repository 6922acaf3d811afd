"""What `archwright plan` says of this machine: estimates from measured rates, beside what a run took."""

from collections.abc import Iterator

import torch

from archwright import format as fmt
from archwright import presets
from archwright.machine.allocator import tune_allocator
from archwright.machine.decide import cpu_name, decide
from archwright.machine.rates import Rates, measure_rates
from archwright.planning.memory import total_memory
from archwright.reporting.estimates import Estimate, Here, Machines
from archwright.reporting.history import read_history
from archwright.reporting.result import result_of
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.hardware import Hardware
from archwright.spec.run_spec import MachineSpec, RunSpec
from archwright.training.step_memory import step_memory
from archwright.training.step_time import decode_time, prefill_time, step_time

LARGE = 2**22
"""Elements of an operation whose speed is that of the memory."""


def this_machine() -> Hardware:
    """Return this machine as a device: its memory, and the speeds that were measured on it, now or within a week."""
    tune_allocator()
    precision = _decided(MachineSpec(device="cpu")).precision
    found = {name: measure_rates(name) for name in dict.fromkeys(("fp32", precision))}
    return Hardware(
        name=presets.THIS,
        title=cpu_name(),
        usual_devices=1,
        source=_when(found["fp32"].age),
        evidence="measured",
        memory_bytes=float(total_memory("cpu")),
        memory_bandwidth=found["fp32"].moving("pointwise", LARGE),
        peak_flops={name: _peak(rates) for name, rates in found.items()},  # type: ignore[misc]
    )


def _when(age: str) -> str:
    """Return when something was measured: an age is what a reason ends with."""
    return age.removeprefix(", ").removeprefix("as ") or "measured now"


def _peak(rates: Rates) -> float:
    return max(value for name, value in rates.values.items() if name.startswith("map "))


def _decided(machine: MachineSpec) -> MachineSpec:
    found = decide(machine).machine
    torch.set_num_threads(int(found.threads))
    return found


def on_this_machine(run: RunSpec, context: int | None) -> Iterator[Here]:
    """Yield what a run's steps take on this machine, by its batch size: memory and time; and how fast it reads and
    writes.

    Raises:
        UserError: a run whose steps depend on values, or more than this machine holds.
    """
    machine = _decided(run.machine.model_copy(update={"device": "cpu"}))
    run = run.model_copy(update={"machine": machine})
    if context is not None:
        run = run.override(f"model.context_length={context}")
    needed = step_memory(run)
    share = fmt.percent(needed.process / total_memory("cpu"))
    yield Here(
        "step_memory",
        "step, memory",
        needed.process,
        "bytes",
        f"{share} of this machine's",
        kind="memory",
    )
    more = "with evaluations on held-out text between steps"
    yield Here(
        "memory_with_evaluation",
        "  and evaluation",
        needed.with_evaluation,
        "bytes",
        more,
        kind="memory",
    )
    moment = "at the moment when there are most"
    yield Here("step_tensors", "  tensors", needed.tensors, "bytes", moment, "counted")
    step = step_time(run)
    how = f"estimated from rates {_when(step.age)}"
    tokens = f"{run.tokens_per_step:,} tokens"
    yield Here("step_time", "step, time", step.seconds, "seconds", tokens, how, "step")
    yield Here("training", "training", step.tokens_per_second, "tokens/s", "", how, "step")
    try:
        length = run.model.context_length
        prefill, decode = prefill_time(run, length), decode_time(run, max(1, length - 1))
    except UserError:
        return
    one = f"one sequence of {length:,}"
    yield Here("prefill", "prefill", prefill.tokens_per_second, "tokens/s", one, how, "prefill")
    yield Here(
        "decode", "decode", decode.tokens_per_second, "tokens/s", "one sequence", how, "decode"
    )


def notes_of_this_machine() -> list[str]:
    """Return what else is to be known of figures of this machine: they are of its CPU alone."""
    if not torch.cuda.is_available():
        return []
    gpu = torch.cuda.get_device_name()
    return [f"These are of the CPU, {cpu_name()}; the GPU of this machine, {gpu}, is not measured."]


def machines_of(folder: RunFolder) -> Machines:
    """Return the machine that trained a run, and this one."""
    known = folder.environment()
    return Machines(str(known.get("gpu") or known.get("cpu") or ""), cpu_name())


def beside_a_run(folder: RunFolder) -> dict[str, Estimate]:
    """Return what was estimated for a run's steps beside what they took, by key.

    Raises:
        UserError: a run whose steps depend on values, or one that has not trained.
    """
    result, spec = result_of(read_history(folder)), folder.spec
    if result.tokens_per_second is None:
        raise UserError(f"{folder.path}: no step was timed yet; expected a run that has trained")
    machine = spec.machine
    if machine.threads != "auto":
        torch.set_num_threads(machine.threads)
    tune_allocator()
    took = spec.tokens_per_step / result.tokens_per_second
    time = step_time(spec).seconds
    found = {"step": Estimate("a step", "seconds", time, took)}
    if result.memory_bytes is not None:
        memory = step_memory(spec).with_evaluation + IDLE
        found["memory"] = Estimate("memory", "bytes", memory, result.memory_bytes)
    found["run"] = Estimate("the run", "seconds", result.steps * time, result.seconds)
    return found


IDLE = 260e6
"""Bytes that a process holds which has loaded what a training needs."""
