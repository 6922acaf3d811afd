"""Trials of compiled layers and fused kernels before a long run."""

import math
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from archwright.machine.compiling import compile_parts, uncompile_parts
from archwright.machine.liger import fuse, unfuse
from archwright.machine.rules import can_compile_for_cuda
from archwright.spec.machine import MachineSpec
from archwright.training.session import Session

LONG = 600.0
"""Seconds of a run that is long enough: compiling takes half a minute on a CPU, and saves 10 to 20 %."""

FASTER = 1.03
"""Least speedup of a step."""

TIMED = 1.0
"""Seconds of timed steps, before and after."""

ALIKE = 0.1
"""Relative tolerance of gradient norms, for different rounding in narrow dtypes."""

BRIEF = 60.0
"""Seconds of a time budget below which compiling on a GPU would take most of it."""

NOT_TRIED = f"it is tried in runs of over {LONG / 60:.0f} minutes"


def compile_if_faster(session: Session) -> tuple[str, str]:
    """Compile layers and head if steps get faster; return the choice and its reason."""
    model = session.model
    return _kept_if_faster(
        session,
        lambda: compile_parts(model, "block", whole_loss=session.run.machine.loss == "whole"),
        lambda: uncompile_parts(model),
        "compiling",
    )


def compile_for_cuda(session: Session) -> tuple[str, str]:
    """Compile layers and head if gradients stay the same; return the choice and its reason.

    With several ranks, this process has no gradients to compare: rank 0 only decides for all.
    """
    model, seconds = session.model, session.run.budget.seconds
    if not can_compile_for_cuda():
        return "none", "Triton, which compiles for a GPU, is missing or does not support it"
    if seconds and seconds < BRIEF:
        return "none", f"compiling would take most of {seconds:.0f} s"
    if session.processes.layout.size == 1:
        whole_loss = session.run.machine.loss == "whole"
        return _kept_if_faster(
            session,
            lambda: compile_parts(model, "block", whole_loss=whole_loss),
            lambda: uncompile_parts(model),
            "compiling",
            timed=False,
        )
    if model.spec.is_reversible:
        return "none", "reversible layers are not compiled"
    return "block", "layers on a GPU; gradients were not compared"


def fuse_if_faster(session: Session, machine: MachineSpec) -> tuple[str, str]:
    """Use liger's kernels if steps get faster; return the choice and its reason."""
    model = session.model
    return _kept_if_faster(session, lambda: fuse(model, machine), lambda: unfuse(model), "liger")


def _kept_if_faster(
    session: Session,
    change: Callable[[], tuple[str, str]],
    undo: Callable[[], None],
    name: str,
    *,
    timed: bool = True,
) -> tuple[str, str]:
    """Keep a change of an untrained session if gradients are the same and steps, if timed, are faster."""
    gradients, plain = dict[str, float](), float("inf")
    with suppress(torch.OutOfMemoryError):  # a step without the change may need more memory
        gradients = session.gradient_norms()
        plain = session.time_step(TIMED) if timed else 1.0
    started = time.perf_counter()
    done, reason = change()
    if done == "none":
        return done, reason
    changed = float("inf")
    try:
        if wrong := _different(session.gradient_norms(), gradients):
            reason = f"{name} gives other gradients, first of {wrong}"
        elif not timed:
            alike = "with the gradients of" if gradients else "too little memory for"
            return done, f"layers on a GPU, {alike} uncompiled ones (speed not measured)"
        else:
            changed = session.time_step(TIMED)
            seconds = time.perf_counter() - started
            reason = f"a step takes {1e3 * changed:.0f} ms instead of {1e3 * plain:.0f}, after {seconds:.0f} s"
    except Exception as error:  # the compiler's, which has many
        reason = f"{name} failed: {next(iter(str(error).splitlines()), 'it fails')}"
    if plain / changed >= FASTER:
        return done, reason
    undo()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what did not fit may fit without the change
    return "none", reason


def _different(norms: dict[str, float], expected: dict[str, float]) -> str:
    """Return the first parameter with a different gradient norm, or an empty string."""
    total = math.hypot(*expected.values())
    for name, norm in expected.items():
        if not math.isclose(norms[name], norm, rel_tol=ALIKE, abs_tol=ALIKE**2 * total):
            return name
    return ""
