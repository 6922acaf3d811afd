"""Layers with attention in blocks are compiled whole, once for all batches, and have the same gradients."""

import os
import subprocess
import sys

import pytest

COMPILED = """
import sys
import torch
import torch.nn.functional as F
from archwright.model import build
from archwright.spec.read import load

LENGTH = 150

def gradients(model, seed, packed):
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(0, 64, (2, LENGTH + 1), generator=generator)
    ends = torch.rand(2, LENGTH, generator=generator) < 0.03
    ids = ends.cumsum(-1) if packed else None
    logits = model(row[:, :-1], segment_ids=ids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), row[:, 1:].flatten())
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

packed, *changes = sys.argv[1:]
torch.set_num_threads(1)
small = ("dim=32", "num_layers=2", "vocab_size=64", "attention.num_heads=4")
model = build(load("modern").override(*small, *changes), seed=0).use_kernel("blockwise")
batches = [(model, seed, packed == "packed") for seed in range(3)]
expected = [gradients(*batch) for batch in batches]
for layer in model.layers:
    layer.compile(backend="aot_eager", fullgraph=True)
for batch, theirs in zip(batches, expected, strict=True):
    for a, b in zip(gradients(*batch), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
assert graphs == 1, f"{graphs} graphs for layers and batches that differ in their contents alone"
"""
GRAPHS = """
import sys
import torch
from archwright.model import build
from archwright.spec.read import load

CASES = {
    "causal": (),
    "window": ("attention.mask.kind=window", "attention.mask.size=40"),
    "documents": (),
    "prefix": ("attention.mask.kind=prefix", "attention.mask.size=8"),
    "padding": (),
    "bias": ("position.kind=alibi",),
    "heads": ("attention.mask.kind=block_sparse", "attention.mask.block_size=4"),
    "first": ("attention.mask.kind=big_bird", "attention.mask.block_size=4", "attention.mask.random=first"),
}

def given(name, seed, length=150):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(2, length, generator=generator)
    if name in ("documents", "window"):
        return {"segment_ids": (drawn < 0.03).cumsum(-1)}
    if name == "padding":
        return {"padding_mask": torch.arange(length) >= (20 * drawn[:, :1]).long()}
    return {"prefix_lengths": (20 * drawn[:, 0]).long()} if name == "prefix" else {}

kernel, mode = sys.argv[1:]
if kernel == "blockwise":
    del CASES["first"]  # a bias by autograd, which is no part of a graph
torch.set_num_threads(1)
stats, wrong = torch._dynamo.utils.counters, []
for name, changes in CASES.items():
    small = ("dim=32", "num_layers=3", "vocab_size=64", "attention.num_heads=4")
    model = build(load("modern").override(*small, *changes), seed=0).use_kernel(kernel)
    tokens = torch.zeros(2, 150, dtype=torch.long)
    with torch.set_grad_enabled(mode == "training"):
        expected = [model(tokens, **given(name, seed)).logits for seed in range(2)]
        torch._dynamo.reset()
        stats.clear()
        for layer in model.layers:
            layer.compile(backend="eager")
        for seed, theirs in enumerate(expected):
            torch.testing.assert_close(model(tokens, **given(name, seed)).logits, theirs)
    graphs, breaks = stats["stats"]["unique_graphs"], sum(stats["graph_break"].values())
    if (graphs, breaks) != (1, 0):
        wrong.append(f"{name}: {graphs} graphs, {breaks} breaks {list(stats['graph_break'])[:1]}")
assert not wrong, wrong
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "mode"),
    [("eager", "training"), ("sdpa", "training"), ("blockwise", "training"), ("flex", "inference")],
)
def test_layers_are_one_graph_with_every_mask(kernel: str, mode: str) -> None:
    """For all layers and batches, as masks are prepared before each layer."""
    done = subprocess.run(
        [sys.executable, "-c", GRAPHS, kernel, mode],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


CASES = [
    ("plain", "attention.softcap=5"),
    ("packed", "attention.sinks=true", "attention.num_kv_heads=2"),
    ("packed", "position.kind=alibi", "attention.mask.kind=window", "attention.mask.size=40"),
    ("packed", "position.kind=t5"),
]


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_gradients_are_those_of_eager_layers(case: tuple[str, ...]) -> None:
    """In a process of its own, where no shape checks stand between the compiler and the model."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, *case],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
