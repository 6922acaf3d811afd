"""Run training steps on an imagined GPU, and print the lines that make the host wait for it, as JSON by case.

torch's Python backend gives a device "gpu" without memory, and its fake tensors compute shapes only. A process of its
own runs this, because a process has one such backend.
"""

import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import archwright.losses as losses
import archwright.training.step as room
from archwright.data.inputs import Batch, Inputs
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.spec.optimizers import AdamW, Muon
from archwright.spec.read import load

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal"}
"""Operations that need values of their input on the host."""
TINY = (
    "dim=32",
    "num_layers=2",
    "vocab_size=96",
    "context_length=32",
    "attention.num_heads=2",
    "attention.num_kv_heads=1",
)
CASES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "plain": ((), {}),
    "chunked": ((), {"chunked": True, "z_loss": 1e-4, "grad_accum_steps": 2}),
    "documents": (("attention.mask.kind=window", "attention.mask.size=8"), {}),
    "muon": ((), {}),
    "experts": (("feedforward.kind=experts", "feedforward.selection_bias=true"), {}),
}


class Watch(TorchDispatchMode):
    """Collect the lines of the package that wait for the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        tensors = [x for x in args if isinstance(x, Tensor)]
        on_gpu = [x.device.type == "gpu" for x in tensors]
        copies = (name == "copy_" and len({*on_gpu}) == 2) or (
            name == "_to_copy"
            and (kwargs.get("device") or tensors[0].device).type != tensors[0].device.type
        )
        blocks = copies and not (
            kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,))
        )
        indexed = name in ("index", "index_put_") and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        if blocks or ((name in WAITS or indexed) and any(on_gpu)):
            self.lines.append(_line())
        if name == "_fused_adamw_" and self.lines[-1:] != ["update"]:
            self.lines.append("update")
        if name == "_local_scalar_dense":
            return 1.0 if tensors[0].is_floating_point() else 1
        if name == "_grouped_mm":  # torch computes its shapes for bfloat16 only
            a, b, ends = tensors[0], tensors[1], kwargs.get("offs", args[2] if args[2:] else None)
            return a.new_empty(*([] if b.ndim == 3 else [len(ends)]), a.shape[0], b.shape[-1])
        return func(*args, **kwargs)


def _line() -> str:
    """Return the innermost line of the package on the stack."""
    frames = [
        f
        for f in traceback.extract_stack()
        if "/archwright/" in f.filename or f.name.startswith("planted_")
    ]
    return f"{frames[-1].name}: {frames[-1].line}" if frames else "torch"


def waits(case: str) -> list[str]:
    """Return the lines of a second step that wait; the first one creates states."""
    changes, settings = CASES[case]
    model = build(load("modern").override(*TINY, *changes), seed=0).use_kernel("sdpa").train()
    tokens = torch.zeros(4, 33, dtype=torch.long)
    inputs = Inputs(tokens[:, :-1])
    if case == "documents":
        inputs = Inputs(tokens[:, :-1], tokens[:, :-1], tokens[:, :-1])
    batch = Batch(inputs, tokens[:, 1:])
    with FakeTensorMode(allow_non_fake_inputs=True):
        _move(model)
        optimizers = build_optimizers(model, Muon() if case == "muon" else AdamW())
        if case != "muon":  # torch allows fused kernels on devices by name
            optimizers["adamw"].defaults["fused"] = True
            for group in optimizers["adamw"].param_groups:
                group["fused"] = True
        precision = Precision("fp32", torch.device("gpu"))  # autocast has no such device
        for watch in (Watch(), Watch()):
            with watch:
                room.train_step(
                    model, batch, optimizers, lr_scale=1.0, precision=precision, **settings
                )
    return watch.lines


def _move(model: nn.Module) -> None:
    """Move a model to the imagined GPU."""
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                like = torch.empty(p.shape, dtype=p.dtype, device="gpu")
                module._parameters[name] = nn.Parameter(like, p.requires_grad)
        for name, b in module._buffers.items():
            if b is not None:
                module._buffers[name] = torch.empty(b.shape, dtype=b.dtype, device="gpu")


def grouped(case: str) -> list[bool]:
    """Return if attention gets fewer key heads than query heads, and a mask, in each call of a step."""
    calls: list[bool] = []

    def watched(query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        calls.append(query.shape[1] != key.shape[1] and kwargs["attn_mask"] is not None)
        return SDPA(query, key, *args, **kwargs)

    F.scaled_dot_product_attention = watched
    waits(case)
    F.scaled_dot_product_attention = SDPA
    return calls


def planted_divisor(number: int, device: torch.device) -> Tensor:
    """Copy a number to the device, and wait for it."""
    return torch.full((), number).to(device)


def planted_norm(*args: Any) -> Tensor:
    """Read the norm."""
    norm = CLIP(*args)
    norm.item()
    return norm


def planted_mask(*args: Any) -> Tensor:
    """Select by a mask, for which the host needs the number of values."""
    norm = CLIP(*args)
    with suppress(DynamicOutputShapeException):
        norm[None].masked_select(norm[None] > 0)
    return norm


SDPA = F.scaled_dot_product_attention
CLIP: Callable[..., Tensor] = room.clip_gradients
PLANTS: dict[str, tuple[Any, str, Callable[..., Tensor]]] = {
    "divisor": (losses, "_divisor", planted_divisor),
    "norm": (room, "clip_gradients", planted_norm),
    "mask": (room, "clip_gradients", planted_mask),
}


def main() -> None:
    _setup_privateuseone_for_python_backend("gpu")
    torch.gpu.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore[attr-defined]
    room.valid_targets = lambda batch: batch.targets.numel()  # type: ignore[assignment]  # reads a CPU's tensor
    result = {case: waits(case) for case in CASES}
    for what, (place, name, planted) in PLANTS.items():
        before = getattr(place, name)
        setattr(place, name, planted)
        result[f"planted {what}"] = waits("plain")
        setattr(place, name, before)
    print(json.dumps(result | {"grouped and masked": grouped("documents")}))


if __name__ == "__main__":
    main()
