"""Bytes that two processes gather, keep and exchange in a step of a model of eight layers.

As a module that torchrun starts: `python -m tests.scale.counted OUT`, in which the first process writes its counts.
"""

import gc
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archwright.data.inputs import Batch, Inputs
from archwright.losses import cross_entropy
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.optim import build_optimizers
from archwright.scale.group import Group
from archwright.scale.layout import Layout
from archwright.spec.machine import ActivationCheckpointing
from archwright.spec.model_spec import ModelSpec
from archwright.spec.optimizers import AdamW
from archwright.training.step import train_step
from tests.scale.gradients import answer_and_end, joined

MODEL = ModelSpec(dim=64, num_layers=8, vocab_size=96, context_length=32).override(
    "head.tied=false", "attention.num_heads=4"
)
ROWS = 8
KINDS = {"allgather": "gather", "reduce_scatter": "scatter", "allreduce": "reduce", "send": "send"}


class Exchanged(TorchDispatchMode):
    """Counts collectives by kind, and the bytes of their results by kind and dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind = next((kind for name, kind in KINDS.items() if name in func.name()), None)
            if kind:
                self.number[kind] += 1
                for x in tree_leaves(args[0]):
                    if isinstance(x, Tensor):
                        self.bytes[f"{kind} {str(x.dtype).removeprefix('torch.')}"] += x.nbytes
        return func(*args, **(kwargs or {}))


def held() -> int:
    """Return the bytes of all tensors in memory."""
    gc.collect()
    found = [x for x in gc.get_objects() if issubclass(type(x), Tensor) and not x.is_meta]
    tensors = [*found, *(x.grad for x in found if x.is_leaf and x.grad is not None)]
    storages = {s.data_ptr(): s.nbytes() for s in map(storage, tensors) if s.nbytes()}
    return sum(storages.values())


def storage(x: Tensor) -> torch.UntypedStorage:
    return (x.to_local() if hasattr(x, "to_local") else x).untyped_storage()


@contextmanager
def saved() -> Iterator[list[Tensor]]:
    """Yield the tensors that autograd saves inside the block."""
    found: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        found.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield found


def texts(parts: int) -> Batch:
    dice = torch.Generator().manual_seed(1)
    shape = (ROWS * parts, MODEL.context_length)
    tokens, targets = (torch.randint(96, shape, generator=dice) for _ in range(2))
    return Batch(Inputs(tokens), targets)


def counts(
    group: Group, layout: Layout, precision: str, again: ActivationCheckpointing, parts: int
) -> dict[str, Any]:
    """Return what a step sends, and what a pass keeps."""
    group.layout = layout
    model = build(MODEL, seed=3).checkpoint_activations(again)
    layers = sum(p.numel() for layer in model.layers for p in layer.parameters())
    shapes = {p.shape for layer in model.layers for p in layer.parameters() if p.ndim == 2}
    shapes |= {torch.Size(reversed(shape)) for shape in shapes}
    group.cut(model)
    machine = Precision(precision, torch.device("cpu"))
    optimizers = group.take(build_optimizers(model, AdamW()))
    settings: dict[str, Any] = {"lr_scale": 1.0, "precision": machine, "processes": group}
    # The first step allocates the moments.
    train_step(model, texts(parts), optimizers, grad_accum_steps=parts, **settings)
    with Exchanged() as seen:
        train_step(model, texts(parts), optimizers, grad_accum_steps=parts, **settings)
    found: dict[str, Any] = {"number": seen.number, "bytes": seen.bytes, "layers": layers}
    if layout.pipeline > 1:
        return found
    before, part = held(), group.rows(texts(1))
    group.before_part(model, is_last=False)
    with saved() as kept, machine.autocast():
        logits = model(part.inputs.tokens).logits
    whole = [s for x in kept if x.shape in shapes and (s := storage(x)).nbytes()]
    found["weights kept"] = sum({s.data_ptr(): s.nbytes() for s in whole}.values()) / layers
    cross_entropy(logits.float(), part.targets).total.backward()
    del kept, logits
    found["gradients kept"] = (held() - before) / sum(p.numel() for p in model.parameters())
    return found


CASES: dict[str, tuple[Layout, str, ActivationCheckpointing, int]] = {
    "float32": (Layout(1, 2, 2), "fp32", "none", 2),
    "cast": (Layout(1, 2, 2), "bf16", "none", 2),
    "bfloat16": (Layout(1, 2, 2, param_dtype="bfloat16"), "bf16", "none", 2),
    "bfloat16, full": (Layout(1, 2, 2, param_dtype="bfloat16"), "bf16", "full", 2),
    "not freed": (Layout(1, 2, 2, param_dtype="bfloat16", reshard=False), "bf16", "none", 2),
    "replicas": (Layout(2, 1, 2), "fp32", "none", 2),
    "tensor": (Layout(1, 1, 2, 2), "bf16", "none", 1),
    "tensor, float32": (Layout(1, 1, 2, 2), "fp32", "none", 1),
    "pipeline": (Layout(1, 1, 2, pipeline=2, param_dtype="bfloat16"), "bf16", "none", 2),
}


def main(out: str) -> None:
    group = joined()
    found = {name: counts(group, *case) for name, case in CASES.items()}
    if group.launch.rank == 0:
        Path(out).write_text(json.dumps(found), "utf-8")
    group.leave()


if __name__ == "__main__":
    answer_and_end(main)
