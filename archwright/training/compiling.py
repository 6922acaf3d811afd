"""torch.compile for each layer, where it can work and where it pays."""

import os
import shutil
import time

from archwright.model.decoder import Decoder
from archwright.training.session import Session

LONG = 600.0
"""Seconds of a run from which compiling is tried: it takes half a minute on a CPU, and saves a tenth or two."""

FASTER = 1.03
"""How much faster compiled steps must be to be kept."""

NOT_TRIED = (
    f"compiling takes about half a minute, which pays in runs of over {LONG / 60:.0f} minutes"
)

TIMED = 1.0
"""Seconds for which steps are timed, before and after."""


def compile_layers(model: Decoder, wanted: str) -> tuple[str, str]:
    """Compile each layer if wanted and possible; return what was done, and why.

    On a CPU compiling needs a C++ compiler; without one the run goes on uncompiled.
    """
    if wanted == "none":
        return "none", "not asked for"
    on_cpu = next(model.parameters()).device.type == "cpu"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if on_cpu and not compiler:
        return "none", "no C++ compiler is here, which compiling for a CPU needs"
    # A fault in some versions' fused reductions gives wrong gradients (pytorch issue 193061).
    os.environ.setdefault("TORCHINDUCTOR_MIX_ORDER_REDUCTION", "0")
    for layer in model.layers:
        layer.compile()
    return wanted, "asked for"


def compile_if_faster(session: Session) -> tuple[str, str]:
    """Time steps as they are and compiled, and stay with the faster; return what was done, and why.

    Leaves a session that has not trained as it was.
    """
    plain = session.time_step(TIMED)
    begun = time.perf_counter()
    done, reason = compile_layers(session.model, "block")
    if done == "none":
        return done, reason
    try:
        session.time_step(0.0)
        compiled = session.time_step(TIMED)
    except Exception as error:  # the compiler's, which has many
        compiled, reason = float("inf"), f"compiling failed: {str(error).splitlines()[0]}"
    else:
        seconds = time.perf_counter() - begun
        reason = f"a step takes {1e3 * compiled:.0f} ms instead of {1e3 * plain:.0f}, after {seconds:.0f} s"
    if plain / compiled >= FASTER:
        return "block", reason
    for layer in session.model.layers:
        layer._compiled_call_impl = None
    return "none", reason
