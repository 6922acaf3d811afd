"""Decisions of the machine, made once, by measurement: printed, recorded, and never made again."""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from archwright.format import size
from archwright.machine.float8 import check_float8
from archwright.machine.liger import check_liger
from archwright.machine.precision import DTYPES
from archwright.machine.products import float32_choice, measure_float32
from archwright.machine.timing_cache import Measurement, measured
from archwright.model.build import build_layer
from archwright.model.language_model import LanguageModel
from archwright.parts.context import Context
from archwright.parts.mixers import Mixer
from archwright.parts.token_layout import token_layout
from archwright.planning.machine import measure_peak
from archwright.planning.memory import WHOLE_LOGITS, logit_bytes
from archwright.scale.cuts import shared_branches, take_share
from archwright.scale.layout import ONE, Layout
from archwright.scale.stretches import LastStretch
from archwright.spec.errors import UserError
from archwright.spec.run_spec import MachineSpec, RunSpec
from archwright.spec.version import version

MOST_THREADS = 4
"""Most threads for each core: many thousands end the process."""

WORTHWHILE = 1.1
"""How much faster bf16 products must be than fp32 ones to be chosen."""

RIVALS = {"cpu": ("sdpa", "blockwise"), "cuda": ("sdpa", "blockwise", "flex")}
"""Kernels that "auto" chooses from on each device; the eager one is there to be checked against."""

KERNEL_SECONDS = 0.3
"""Time for which kernels are timed, in turns; what is found decides for a week."""

COMPILED = ("flex",)
"""Kernels that a compiler makes, which may be missing or fail: "auto" then does without them."""


@dataclass
class Decisions:
    """The machine's part of a run, with the reason of each decision and the peaks it was measured at."""

    machine: MachineSpec
    peaks: dict[str, float] = field(default_factory=dict)
    """FLOP/s of matrix products by precision."""
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        """FLOP/s of matrix products in the run's precision."""
        return self.peaks[self.machine.precision]

    @property
    def num_steps(self) -> int:
        """Steps of the whole run, once they are decided."""
        assert self.machine.num_steps != "auto"
        return self.machine.num_steps

    def decide(self, key: str, value: Any, reason: str) -> None:
        """Set a value and say why."""
        self.machine = self.machine.model_copy(update={key: value})
        self.reasons[key] = reason


def check_machine(machine: MachineSpec) -> None:
    """Refuse what this machine does not have, before anything is done for a run.

    Raises:
        UserError: a device that is not here, or far more threads than cores.
    """
    _check_device(machine.device)
    cores = os.cpu_count() or 1
    if machine.threads != "auto" and machine.threads > MOST_THREADS * cores:
        raise UserError(
            f"machine.threads: found {machine.threads}; expected at most {MOST_THREADS * cores}, "
            f"{MOST_THREADS} for each core of this machine"
        )


def decide(machine: MachineSpec) -> Decisions:
    """Return device, threads and precision for this machine; given values are kept.

    Raises:
        UserError: a device that is not here, or a precision or kernels that it does not have.
    """
    check_machine(machine)
    found = Decisions(machine)
    if machine.device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        reason = "CUDA device available" if device == "cuda" else "no CUDA device available"
        found.decide("device", device, reason)
    check_liger(found.machine)
    _decide_threads(found)
    _decide_float32(found)
    _decide_precision(found)
    return found


def decided(machine: MachineSpec, environment: Mapping[str, Any]) -> Decisions:
    """Return what was decided when a run began, and make this process work so; nothing is measured.

    Raises:
        UserError: a device that is not here, or kernels that it does not have.
    """
    peaks = {name: float(peak) for name, peak in environment.get("peak_flops", {}).items()}
    found = Decisions(machine, {machine.precision: math.inf} | peaks)
    _check_device(machine.device)
    check_liger(machine)
    _use_threads(machine.threads)
    torch.set_float32_matmul_precision(machine.float32_matmul_precision)
    return found


def decide_kernel(
    decisions: Decisions, model: LanguageModel, run: RunSpec, layout: Layout = ONE
) -> None:
    """Choose the fastest attention kernel for one layer of this model on rows of this run, by what one of the processes
    that share a part of a batch computes of it."""
    attentions = [m for m in model.mixers() if m.has_kernel]
    if decisions.machine.kernel == "auto" and not attentions:
        decisions.decide("kernel", "sdpa", "there is no attention to compute")
    if decisions.machine.kernel == "auto":
        (times, age), failed = _kernel_times(attentions[0], model, run, decisions, layout)
        timings = [f"{name} {1e3 * seconds:.1f} ms" for name, seconds in times.items()]
        timings += [f"{name} left out: {why}" for name, why in failed.items()]
        best = min(times, key=lambda name: times[name])
        own = _own_tokens(model, run, layout)
        reason = f"one layer forward and backward{own}: {', '.join(timings)}{age}"
        decisions.decide("kernel", best, reason)
    model.use_kernel(decisions.machine.kernel)


def decide_loss(
    decisions: Decisions, model: LanguageModel, run: RunSpec, layout: Layout = ONE
) -> None:
    """Compute the loss in chunks where the logits that a process has of a part of a batch are many."""
    if decisions.machine.loss == "auto" and not run.model.generator.is_none:
        decisions.decide("loss", "whole", "tokens are drawn from the logits of a generator")
    if decisions.machine.loss == "auto":
        # Those of a tensor group are gathered: each of its processes has the whole vocabulary's.
        logits = logit_bytes(model, layout.part_rows(run)) // layout.context
        kind = "chunked" if logits > WHOLE_LOGITS else "whole"
        own = "" if layout.size == 1 else " of one process"
        decisions.decide("loss", kind, f"float32 logits{own} would take {size(logits)}")


def environment(decisions: Decisions) -> dict[str, Any]:
    """Return what a run records of the machine and the software."""
    cuda = decisions.machine.device == "cuda"
    return {
        "archwright": version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "memory_bytes": psutil.virtual_memory().total,
        "gpu": torch.cuda.get_device_name() if cuda else "",
        "threads": decisions.machine.threads,
        "peak_flops": decisions.peaks,
        "decisions": {
            key: {"value": getattr(decisions.machine, key), "reason": reason}
            for key, reason in decisions.reasons.items()
        },
    }


def peak_memory(device: torch.device) -> int:
    """Return the most memory this process has held, in bytes: of the GPU, or resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # not on Windows
        return int(psutil.Process().memory_info().rss)
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _check_device(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            'machine.device: found "cuda"; expected "cpu", as no CUDA device is usable here'
        )


def _decide_threads(found: Decisions) -> None:
    if found.machine.threads == "auto":
        # This process may be allowed fewer cores than there are; not every system can say.
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        cores = min(filter(None, (psutil.cpu_count(logical=False), allowed)), default=1)
        found.decide("threads", cores, "one for each core")
    _use_threads(found.machine.threads)


def _use_threads(threads: int | str) -> None:
    assert isinstance(threads, int)
    torch.set_num_threads(threads)


def _decide_float32(found: Decisions) -> None:
    if found.machine.float32_matmul_precision == "auto":
        on_gpu = found.machine.device == "cuda"
        if on_gpu:
            found.decide("float32_matmul_precision", "highest", "true float32")
        else:
            values, age = _measured(found, {}, ("error", "ratio"), measure_float32)
            best, reason = float32_choice(**values)
            found.decide("float32_matmul_precision", best, reason + age)
    torch.set_float32_matmul_precision(found.machine.float32_matmul_precision)


def _decide_precision(found: Decisions) -> None:
    device = torch.device(found.machine.device)
    if found.machine.precision == "fp16" and device.type == "cpu":
        raise UserError(
            'machine.precision: found "fp16", which needs a GPU; expected "bf16" or "fp32"'
        )
    if found.machine.precision == "fp8":
        check_float8(device.type)
    names = ("fp32", "bf16") if found.machine.precision == "auto" else (found.machine.precision,)
    values, age = _measured(
        found,
        {"float32_matmul_precision": found.machine.float32_matmul_precision},
        names,
        lambda: {name: measure_peak(device, DTYPES[name]) for name in names},
    )
    found.peaks = dict(values)
    if found.machine.precision == "auto":
        ratio = found.peaks["bf16"] / found.peaks["fp32"]
        best = "bf16" if ratio >= WORTHWHILE else "fp32"
        reason = f"bf16 matrix products run at {ratio:.2f} times the rate of fp32{age}"
        found.decide("precision", best, reason)


SETTINGS = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_")
"""How the names of variables begin by which a user makes torch's libraries faster or slower."""


def _measured(
    found: Decisions,
    question: Mapping[str, Any],
    names: tuple[str, ...],
    measure: Callable[[], Mapping[str, float]],
) -> Measurement:
    """Return what is known of this machine, with this software and these threads, or measure it."""
    return measured({**machine_facts(found.machine.device), **question}, names, measure)


def machine_facts(device: str) -> dict[str, Any]:
    """Return what measurements depend on: this machine, with this software and these threads."""
    return {
        "archwright": version(),
        "torch": torch.__version__,
        "device": device,
        "name": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "threads": torch.get_num_threads(),
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)},
    }


def _kernel_times(
    attention: Mixer, model: LanguageModel, run: RunSpec, decisions: Decisions, layout: Layout
) -> tuple[Measurement, dict[str, str]]:
    """Return the seconds of a layer's attention with each kernel, and why one has none."""
    names = RIVALS[decisions.machine.device]
    index, mixer = next(
        (index, name)
        for index, layer in enumerate(model.stack)
        for name, found in layer.mixers().items()
        if found is attention
    )
    layer = model.spec.layer(index)
    is_shared = layout.tensor > 1 and attention in shared_branches(model)
    tensor = layout.tensor if is_shared else 1
    failed: dict[str, str] = {}

    def times() -> dict[str, float]:
        calls = {}
        # Of its own: where several processes train, the model is on the meta device.
        own = build_layer(model.spec, index, device=decisions.machine.device).mixers()[mixer]
        if is_shared:
            take_share(own, tensor)
        for name in names:
            call = _kernel_call(name, own, model, run, decisions, layout)
            try:
                call()  # to warm up, and to compile
                calls[name] = call
            except Exception as error:  # the compiler's, which has many
                if name not in COMPILED:
                    raise
                failed[name] = next(iter(str(error).splitlines()), "it fails")
        return median_times(calls, KERNEL_SECONDS)

    question: dict[str, Any] = {
        "attention": layer.attention.model_dump(mode="json"),
        "position": layer.position.model_dump(mode="json"),
        "parts": [part.sha256 for part in run.parts],
        "precision": decisions.machine.precision,
        "float32_matmul_precision": decisions.machine.float32_matmul_precision,
        "shape": [*_kernel_shape(model, run, layout)],
        "packing": run.data.packing,
    }
    # What one process measured before there were several is still its answer.
    shared = {"context": layout.context, "tensor": tensor}
    question |= {name: number for name, number in shared.items() if number > 1}
    return _measured(decisions, question, names, times), failed


def _kernel_shape(model: LanguageModel, run: RunSpec, layout: Layout) -> tuple[int, int, int]:
    """Return rows, length and width of what a process has of a part of a batch. Those of a tensor group share it
    between branches alone: attention reads all of their tokens."""
    return layout.part_rows(run), model.spec.context_length // layout.context, model.spec.dim


def _own_tokens(model: LanguageModel, run: RunSpec, layout: Layout) -> str:
    """Say what of a part of a batch is timed, where that is not all of it."""
    if layout.size == 1:
        return ""
    rows, length, _ = _kernel_shape(model, run, layout)
    return f" on one process's {rows:,} row{'s' * (rows != 1)} of {length:,} tokens"


def _kernel_call(
    name: str,
    attention: Mixer,
    model: LanguageModel,
    run: RunSpec,
    decisions: Decisions,
    layout: Layout,
) -> Callable[[], None]:
    """Return what computes one layer's attention, forward and backward, on what a process has of a part of a batch."""
    device, dtype = torch.device(decisions.machine.device), DTYPES[decisions.machine.precision]
    shape = rows, own, _ = _kernel_shape(model, run, layout)
    length = own * layout.context
    documents = None
    if (
        run.data.packing == "document_mask"
    ):  # where the borders are matters little: let there be two
        documents = (torch.arange(length, device=device) >= length // 2).long().expand(rows, -1)
    tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
    whole = token_layout(tokens, None, documents)
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(shape, generator=generator, device=device, requires_grad=True)

    def once() -> None:
        attention.use_kernel(name)
        context = (
            Context(whole, rows, tokens=tokens)
            if layout.context == 1
            else LastStretch(whole, tokens[:, -own:])
        )
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            out = attention(x, context)
        torch.autograd.grad(out.float().sum(), x)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return once


def median_times(calls: Mapping[str, Callable[[], None]], at_most: float) -> dict[str, float]:
    """Return the median seconds of each call. They take turns for about `at_most` seconds, so that what else
    the machine does falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    started, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - started < at_most:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: statistics.median(took) for name, took in times.items()}


def cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()
