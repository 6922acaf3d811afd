"""torch.compile of each layer and the head."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from archwright.cpu import transposed
from archwright.model.model import Decoder
from archwright.parts.kernels.flex import allow_recompiles
from archwright.parts.linear import Linear

TRANSPOSED = "-fno-ipa-cp"
"""Compiler flag against a bug of GCC 12: with AVX-512, a kernel that transposes two bfloat16 matrices is wrong."""


def compile_parts(
    model: Decoder, wanted: str, *, whole_loss: bool, device: str = ""
) -> tuple[str, str]:
    """Compile each layer and, if it returns all logits at once, the head; return the used setting and the reason.

    Args:
        device: Device of the training; default: that of the parameters.
    """
    if wanted == "none":
        return "none", "not asked for"
    if model.spec.is_reversible:
        return (
            "none",
            "reversible layers are computed again in the backward pass, uncompiled as in the forward one",
        )
    on_cpu = (device or next(model.parameters()).device.type) == "cpu"
    if on_cpu and not has_compiler():
        return "none", "no C++ compiler found, which compiling for a CPU needs"
    if work_around_compiler_bugs() and on_cpu:
        for module in model.modules():
            if isinstance(module, Linear):
                module.product = transposed.linear
    allow_recompiles()
    for part in (*model.all_layers, *([model.head] if whole_loss else [])):
        part.compile()
    return wanted, "asked for"


def has_compiler() -> bool:
    """True if a C++ compiler is installed."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def uncompile_parts(model: Decoder) -> None:
    """Undo `compile_parts`."""
    for part in (*model.all_layers, model.head):
        part._compiled_call_impl = None
    for module in model.modules():
        vars(module).pop("product", None)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run a model without compilation, such as for other sequence lengths, which would be compiled again."""
    # Not by a stance of the compiler: FlexAttention stays compiled, as it would store all scores.
    compiled = {m: m._compiled_call_impl for m in model.modules() if m._compiled_call_impl}
    try:
        for module in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def work_around_compiler_bugs() -> bool:
    """Disable optimizations with known bugs; return True if transposed matrices are then correct."""
    from torch._inductor import config, cpp_builder

    # Fused reductions of some versions compute wrong gradients (pytorch issue 193061).
    if hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not (on_x86 and cpp_builder.is_gcc()):
        return True
    if not hasattr(config.cpp, "march"):
        return False
    march = config.cpp.march or "native"  # torch appends it to -march=, so more flags may follow
    config.cpp.march = march if TRANSPOSED in march else f"{march} {TRANSPOSED}"
    return True
