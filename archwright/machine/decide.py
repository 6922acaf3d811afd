"""Decisions about device, threads, precision and kernels, by rule and once per run, with recorded reasons."""

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from archwright.format import size
from archwright.machine import rules
from archwright.machine.float8 import check_float8
from archwright.machine.liger import check_liger
from archwright.machine.peaks import peak_of
from archwright.machine.precision import DTYPES
from archwright.machine.rules import cpu_name
from archwright.model.model import Decoder
from archwright.parts.mixers.recurrent import RecurrentMixer, use_scan
from archwright.parts.scans import SCANS
from archwright.planning.memory import WHOLE_LOGITS, logit_bytes, total_memory
from archwright.scale.layout import ONE, Layout
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.spec.run_spec import RunSpec
from archwright.spec.version import version

CUDA_LOGITS = 0.08
"""Share of a GPU's memory for float32 logits above which a loss is computed in chunks by default."""
MOST_THREADS = 4
"""Maximum number of threads per core. With many thousands, the process ends."""


@dataclass
class Decisions:
    """Machine settings of a run, the reason of each decision, and measured peaks."""

    machine: MachineSpec
    peaks: dict[str, float] = field(default_factory=dict)
    """FLOP/s of matrix products by precision, measured on a quiet machine."""
    disturbed_peak: float = math.inf
    """FLOP/s measured next to other work, used only for estimates."""
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def peak(self) -> float | None:
        """FLOP/s of matrix products in the run's precision; None if other work disturbed them."""
        return self.peaks.get(self.machine.precision)

    def least_seconds(self, flops: float) -> float:
        """Return the time of matrix products at the measured peak, disturbed or not."""
        return flops / (self.peak or self.disturbed_peak)

    def decide(self, key: str, value: Any, reason: str) -> None:
        """Set a value with its reason."""
        self.machine = self.machine.model_copy(update={key: value})
        self.reasons[key] = reason


def check_machine(machine: MachineSpec) -> None:
    """Refuse settings that this machine cannot run, before the run starts.

    Raises:
        UserError: A missing device, or far more threads than cores.
    """
    _check_device(machine.device)
    cores = os.cpu_count() or 1
    if machine.threads != "auto" and machine.threads > MOST_THREADS * cores:
        raise UserError(
            f"machine.threads: found {machine.threads}; expected at most {MOST_THREADS * cores}, "
            f"{MOST_THREADS} for each core of this machine"
        )


def check_stream(machine: MachineSpec, model: Decoder) -> None:
    """Refuse a narrow residual stream that would overflow, or that layers recompute from their results.

    Raises:
        UserError: There is no autocast to bf16, or the model is reversible.
    """
    if machine.stream == "autocast" and machine.precision not in ("bf16", "fp8"):
        raise UserError(
            f'machine.stream: found "autocast" with precision {machine.precision}; expected "float32", or '
            'machine.precision "bf16" or "fp8"'
        )
    if machine.stream == "autocast" and model.spec.is_reversible:
        raise UserError(
            'machine.stream: found "autocast"; expected "float32", as reversible layers need exact sums'
        )


def decide(machine: MachineSpec) -> Decisions:
    """Choose device, threads and precision for this machine, unless they are set.

    Raises:
        UserError: A missing device, or a precision or kernels that it cannot run.
    """
    check_machine(machine)
    decisions = Decisions(machine)
    if machine.device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        reason = "CUDA device available" if device == "cuda" else "no CUDA device available"
        decisions.decide("device", device, reason)
    check_liger(decisions.machine)
    _decide_threads(decisions)
    _decide_float32(decisions)
    _decide_precision(decisions)
    return decisions


def decided(machine: MachineSpec, environment: Mapping[str, Any]) -> Decisions:
    """Apply the recorded decisions of a run to this process, without measurements.

    Raises:
        UserError: A missing device, or kernels that it cannot run.
    """
    peaks = {name: float(peak) for name, peak in environment.get("peak_flops", {}).items()}
    decisions = Decisions(machine, peaks)
    _check_device(machine.device)
    check_liger(machine)
    torch.set_num_threads(int(machine.threads))
    torch.set_float32_matmul_precision(machine.float32_matmul_precision)
    return decisions


def decide_kernel(decisions: Decisions, model: Decoder, run: RunSpec) -> None:
    """Choose the attention kernel by `rules.KERNELS`."""
    machine = decisions.machine
    if machine.kernel == "auto" and not any(m.has_kernel for m in model.mixers()):
        decisions.decide("kernel", "sdpa", "there is no attention to compute")
    elif machine.kernel == "auto":
        at = rules.attention_of(model, run, machine.device, machine.precision)
        decisions.decide("kernel", *rules.decision(rules.KERNELS, at))
    model.use_kernel(decisions.machine.kernel)


def decide_scan(decisions: Decisions, model: Decoder) -> None:
    """Choose the kernel of recurrences.

    Raises:
        UserError: The kernel cannot run here, or no recurrence of the model has it.
    """
    machine = decisions.machine
    has_fla = any("fla" in m.scans for m in model.modules() if isinstance(m, RecurrentMixer))
    if machine.scan == "auto" and machine.device == "cuda" and has_fla:
        decisions.decide("scan", "fla", "flash-linear-attention is installed (not measured)")
    elif machine.scan == "auto":
        why = "no flash-linear-attention for this device, or for recurrences of this kind"
        decisions.decide("scan", "chunked", why)
    elif machine.scan == "fla" and "fla" in SCANS and not has_fla:
        raise UserError(
            'machine.scan: found "fla", which no recurrence of this model has; expected auto, recurrent or chunked'
        )
    use_scan(model, decisions.machine.scan)


def decide_loss(decisions: Decisions, model: Decoder, run: RunSpec, layout: Layout = ONE) -> None:
    """Choose the loss in chunks if the logits of a rank's microbatch are large."""
    if decisions.machine.loss == "auto" and not run.model.generator.is_none:
        decisions.decide("loss", "whole", "tokens are drawn from the logits of a generator")
    if decisions.machine.loss == "auto":
        logits = logit_bytes(model, layout.part_rows(run)) // layout.context
        if model.head.vocab_parallel and len(model.head.weight) % layout.tensor == 0:
            logits //= layout.tensor
        device, limit = decisions.machine.device, WHOLE_LOGITS
        if device == "cuda":
            limit = max(limit, int(CUDA_LOGITS * total_memory(device)))
        kind = "chunked" if logits > limit else "whole"
        place = "" if layout.size == 1 else " of one process"
        decisions.decide("loss", kind, f"float32 logits{place} would take {size(logits)}")


def environment(decisions: Decisions) -> dict[str, Any]:
    """Return a run's record of the machine and the software."""
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
    """Return the peak memory of this process in bytes: on the GPU, or resident."""
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


def _decide_threads(decisions: Decisions) -> None:
    if decisions.machine.threads == "auto":
        decisions.decide("threads", usable_cores(), "one for each core")
    torch.set_num_threads(int(decisions.machine.threads))


def usable_cores() -> int:
    """Return the cores that this process may use."""
    # The affinity mask may exclude cores. macOS and Windows have none.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return int(min(filter(None, (psutil.cpu_count(logical=False), allowed)), default=1))


def _decide_float32(decisions: Decisions) -> None:
    if decisions.machine.float32_matmul_precision == "auto":
        choice = rules.decision(rules.FLOAT32, rules.processor(decisions.machine.device))
        decisions.decide("float32_matmul_precision", *choice)
    torch.set_float32_matmul_precision(decisions.machine.float32_matmul_precision)


def _decide_precision(decisions: Decisions) -> None:
    device = torch.device(decisions.machine.device)
    if decisions.machine.precision == "fp16" and device.type == "cpu":
        raise UserError(
            'machine.precision: found "fp16", which needs a GPU; expected "bf16" or "fp32"'
        )
    if decisions.machine.precision == "fp8":
        check_float8(device.type)
    if decisions.machine.precision == "auto":
        choice = rules.decision(rules.PRECISIONS, rules.processor(device.type))
        decisions.decide("precision", *choice)
    name = decisions.machine.precision
    peak = peak_of(device, DTYPES[name])
    decisions.peaks, decisions.disturbed_peak = {name: peak.flops} if peak.quiet else {}, peak.flops
