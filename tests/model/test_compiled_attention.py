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
