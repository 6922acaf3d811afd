"""Count the graphs of compiled layers, and print them as JSON: NAME... [--evaluation].

`backend="eager"` traces as for a GPU, and generates no code. A process of its own runs this, because shape checks
would stand between the compiler and the model.
"""

import json
import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from archwright.machine.compiling import allow_recompiles, uncompiled
from archwright.model import build
from archwright.model.model import Decoder
from archwright.spec.read import load

TINY = (
    "dim=16",
    "num_layers=6",
    "vocab_size=64",
    "context_length=32",
    "attention.num_heads=2",
    "attention.num_kv_heads=1",
)
LAYERS: dict[str, tuple[str, ...]] = {
    "causal": (),
    "window": ("attention.mask.kind=window", "attention.mask.size=8"),
    "chunked": ("attention.mask.kind=chunked", "attention.mask.size=8"),
    "segment_memory": ("attention.mask.kind=segment_memory", "attention.mask.size=8"),
    "strided": ("attention.mask.kind=strided", "attention.mask.stride=4"),
    "fixed": ("attention.mask.kind=fixed", "attention.mask.stride=16"),
    "window_global": ("attention.mask.kind=window_global", "attention.mask.size=8"),
    "dilated_window": ("attention.mask.kind=dilated_window", "attention.mask.size=8"),
    "block_sparse": ("attention.mask.kind=block_sparse", "attention.mask.block_size=4"),
    "block_local": ("attention.mask.kind=block_local", "attention.mask.block_size=8"),
    "softcap": ("attention.softcap=5.0",),
    "sinks": ("attention.sinks=true",),
    "alibi": ("position.kind=alibi",),
    "two_kinds": (
        "layer_kinds.local.attention.mask.kind=window",
        "layer_kinds.local.attention.mask.size=8",
        'layers.cycle=["local","default"]',
    ),
}


def model_of(name: str, kernel: str) -> Decoder:
    """Return a model with compiled layers."""
    torch._dynamo.reset()
    counters.clear()
    model = build(load("modern").override(*TINY, *LAYERS[name]), seed=0).use_kernel(kernel)
    for layer in model.all_layers:
        layer.compile(backend="eager")
    return model


def run(model: Decoder, *, documents: bool = False, grad: bool = False, passes: int = 2) -> None:
    """Run passes over different texts of one length."""
    for number in range(passes):
        dice = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, 64, (2, 32), generator=dice)
        ids = torch.randint(0, 2, (2, 32), generator=dice).cumsum(-1)
        given: dict[str, Tensor] = {"segment_ids": ids} if documents else {}
        with torch.set_grad_enabled(grad):
            total = model(tokens, **given).logits.sum()
        if grad:
            total.backward()


def graphs(name: str) -> dict[str, Any]:
    """Return the number of graphs and the reasons of breaks, by kernel and batch.

    FlexAttention has no gradients on a CPU.
    """
    found = {}
    for kernel in ("sdpa", "flex"):
        for documents in (False, True):
            run(model_of(name, kernel), documents=documents, grad=kernel == "sdpa")
            batch = "documents" if documents else "texts"
            found[f"{kernel}, {batch}"] = [
                counters["stats"]["unique_graphs"],
                *counters["graph_break"],
            ]
    return found


def evaluation() -> dict[str, int]:
    """Return the frames that are compiled in training, and then in a pass of `uncompiled` with compiled flex."""
    model = model_of("window", "flex")
    run(model)
    before = counters["frames"]["ok"]
    flex_module: Any = import_module("archwright.parts.kernels.flex")
    compiled = torch.compile(flex_module.flex_attention, backend="eager")
    flex_module._flex = lambda device: compiled
    with uncompiled(model):
        run(model, passes=1)
    during = counters["frames"]["ok"]
    run(model, passes=1)
    return {
        "training": before,
        "evaluation": during - before,
        "after": counters["frames"]["ok"] - during,
    }


def main() -> None:
    allow_recompiles()
    *names, last = sys.argv[1:]
    result: dict[str, Any] = {name: graphs(name) for name in names}
    result |= {"evaluation": evaluation()} if last == "--evaluation" else {last: graphs(last)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
