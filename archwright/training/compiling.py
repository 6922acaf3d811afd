"""torch.compile for each layer, where it can work."""

import os
import shutil

from archwright.model.decoder import Decoder


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


def uncompile_layers(model: Decoder) -> None:
    """Take back what `compile_layers` did."""
    for layer in model.layers:
        layer._compiled_call_impl = None
