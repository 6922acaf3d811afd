"""torch.compile for each layer and the head, where it can work."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from archwright.cpu import transposed
from archwright.model.model import Decoder
from archwright.parts.linear import Linear

TRANSPOSED = "-fno-ipa-cp"
"""Keeps GCC 12 from a fault of its optimizer: of two bfloat16 matrices that one kernel transposes, with AVX-512,
neither is right."""


def compile_parts(
    model: Decoder, wanted: str, *, whole_loss: bool, device: str = ""
) -> tuple[str, str]:
    """Compile each layer, and the head where it gives all logits at once, if wanted and possible; return what was
    done, and why.

    On a CPU compiling needs a C++ compiler; without one the run goes on uncompiled.

    Args:
        device: where the model will compute; by default, where its parameters are.
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
    for part in (*model.all_layers, *([model.head] if whole_loss else [])):
        part.compile()
    return wanted, "asked for"


def has_compiler() -> bool:
    """Tell whether a C++ compiler is here, which compiling for a CPU needs."""
    return bool(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++"))


def uncompile_parts(model: Decoder) -> None:
    """Take back what `compile_parts` did."""
    for part in (*model.all_layers, model.head):
        part._compiled_call_impl = None
    for module in model.modules():
        vars(module).pop("product", None)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Inside, a model runs as if nothing of it were compiled: texts of other lengths are not worth compiling for."""
    if all(module._compiled_call_impl is None for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def work_around_compiler_bugs() -> bool:
    """Switch off what is known to compute wrong numbers; return whether transposed matrices are then right."""
    from torch._inductor import config, cpp_builder

    # A fault in some versions' fused reductions gives wrong gradients (pytorch issue 193061).
    if hasattr(config.triton, "mix_order_reduction"):
        config.triton.mix_order_reduction = False
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not (on_x86 and cpp_builder.is_gcc()):
        return True
    if not hasattr(config.cpp, "march"):
        return False
    march = config.cpp.march or "native"  # which takes further options with it
    config.cpp.march = march if TRANSPOSED in march else f"{march} {TRANSPOSED}"
    return True
