"""Trials of compiled layers and fused kernels before a long run."""

import math
import time
from collections.abc import Callable

from archwright.machine.compiling import compile_parts, uncompile_parts
from archwright.machine.liger import fuse, unfuse
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


def fuse_if_faster(session: Session, machine: MachineSpec) -> tuple[str, str]:
    """Use liger's kernels if steps get faster; return the choice and its reason."""
    model = session.model
    return _kept_if_faster(session, lambda: fuse(model, machine), lambda: unfuse(model), "liger")


def _kept_if_faster(
    session: Session, change: Callable[[], tuple[str, str]], undo: Callable[[], None], name: str
) -> tuple[str, str]:
    """Keep a change of an untrained session if steps are faster and gradients the same."""
    gradients, plain = session.gradient_norms(), session.time_step(TIMED)
    started = time.perf_counter()
    done, reason = change()
    if done == "none":
        return done, reason
    changed = float("inf")
    try:
        if wrong := _different(session.gradient_norms(), gradients):
            reason = f"{name} gives other gradients, first of {wrong}"
        else:
            changed = session.time_step(TIMED)
            seconds = time.perf_counter() - started
            reason = f"a step takes {1e3 * changed:.0f} ms instead of {1e3 * plain:.0f}, after {seconds:.0f} s"
    except Exception as error:  # the compiler's, which has many
        reason = f"{name} failed: {next(iter(str(error).splitlines()), 'it fails')}"
    if plain / changed >= FASTER:
        return done, reason
    undo()
    return "none", reason


def _different(norms: dict[str, float], expected: dict[str, float]) -> str:
    """Return the first parameter with a different gradient norm, or an empty string."""
    total = math.hypot(*expected.values())
    for name, norm in expected.items():
        if not math.isclose(norms[name], norm, rel_tol=ALIKE, abs_tol=ALIKE**2 * total):
            return name
    return ""
