"""Trials before the first step of a long run, kept where steps are then faster."""

import math
import time
from collections.abc import Callable

from archwright.machine.compiling import compile_parts, uncompile_parts
from archwright.machine.liger import fuse, unfuse
from archwright.spec.machine import MachineSpec
from archwright.training.session import Session

LONG = 600.0
"""Seconds of a run from which it is tried: compiling takes half a minute on a CPU, and saves a tenth or two."""

FASTER = 1.03
"""How much faster steps must be for it to be kept."""

TIMED = 1.0
"""Seconds for which steps are timed, before and after."""

ALIKE = 0.1
"""How much norms of gradients may differ for these to be the same, in narrow numbers that are rounded elsewhere."""

NOT_TRIED = f"it is tried in runs of over {LONG / 60:.0f} minutes"


def compile_if_faster(session: Session) -> tuple[str, str]:
    """Compile layers and head if steps are then faster; return what was done, and why."""
    model = session.model
    return _kept_if_faster(
        session,
        lambda: compile_parts(model, "block", whole_loss=session.run.machine.loss == "whole"),
        lambda: uncompile_parts(model),
        "compiling",
    )


def fuse_if_faster(session: Session, machine: MachineSpec) -> tuple[str, str]:
    """Let liger compute what it can if steps are then faster; return what was done, and why."""
    model = session.model
    return _kept_if_faster(session, lambda: fuse(model, machine), lambda: unfuse(model), "liger")


def _kept_if_faster(
    session: Session, change: Callable[[], tuple[str, str]], undo: Callable[[], None], name: str
) -> tuple[str, str]:
    """Time steps as they are and changed, and stay with the faster, if its gradients are the same. Leaves a session
    that has not trained as it was."""
    gradients, plain = session.gradient_norms(), session.time_step(TIMED)
    started = time.perf_counter()
    done, reason = change()
    if done == "none":
        return done, reason
    changed = float("inf")
    try:
        if wrong := _other(session.gradient_norms(), gradients):
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


def _other(found: dict[str, float], expected: dict[str, float]) -> str:
    """Return the first parameter whose gradient is another than rounding makes it; empty if there is none."""
    whole = math.hypot(*expected.values())
    for name, norm in expected.items():
        if not math.isclose(found[name], norm, rel_tol=ALIKE, abs_tol=ALIKE**2 * whole):
            return name
    return ""
