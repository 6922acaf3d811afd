"""What is compiled, and that it computes the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from archwright.cpu import prepare_process
from archwright.machine.compiling import compile_parts, has_compiler, uncompile_parts
from archwright.model import build
from archwright.model.model import Decoder
from archwright.spec.model_spec import ModelSpec


@pytest.fixture
def model() -> Decoder:
    return build(ModelSpec(dim=16, num_layers=2, vocab_size=64, context_length=8))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: done.append(type(self).__name__))
    monkeypatch.delenv("CXX", raising=False)
    return done


def test_it_can_be_forbidden(model: Decoder, compiled: list[str]) -> None:
    assert compile_parts(model, "none", whole_loss=True) == ("none", "not asked for")
    assert compiled == []


def test_each_layer_and_the_head_are_compiled(
    model: Decoder, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert compile_parts(model, "block", whole_loss=True) == ("block", "asked for")
    assert compiled == ["Layer", "Layer", "Head"]
    uncompile_parts(model)
    assert not any("product" in vars(module) for module in model.modules())


def test_a_head_that_reads_chunks_of_many_sizes_is_not(
    model: Decoder, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    compile_parts(model, "block", whole_loss=False)
    assert compiled == ["Layer", "Layer"]


def test_without_a_compiler_the_run_goes_on(
    model: Decoder, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done, reason = compile_parts(model, "block", whole_loss=True)
    assert done == "none"
    assert "no C++ compiler" in reason
    assert compiled == []


def test_the_allocator_is_tuned_only_where_it_is_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not prepare_process()


COMPILED = """
import copy
import torch
from archwright.cpu import transposed
from archwright.losses import cross_entropy
from archwright.model import build
from archwright.parts.linear import Linear
from archwright.spec.read import load
from archwright.machine.compiling import compile_parts, uncompiled

def gradients(model):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(row[:, :-1]).logits
    return torch.autograd.grad(cross_entropy(logits, row[:, 1:]).total, list(model.parameters()))

torch.set_num_threads(1)
row = torch.randint(0, 96, (2, 65), generator=torch.Generator().manual_seed(0))
spec = load("modern").override(
    "dim=64", "num_layers=1", "vocab_size=96", "attention.num_heads=2", "attention.num_kv_heads=1",
    "feedforward.hidden_dim=160", "attention.bias.key=true", "head.tied=true",
)
model = build(spec, seed=0).use_kernel("blockwise")
names, eager = [name for name, _ in model.named_parameters()], gradients(model)
assert compile_parts(model, "block", whole_loss=True)[0] == "block"
for name, ours, theirs in zip(names, gradients(model), eager, strict=True):
    assert (ours - theirs).norm() < 0.02 * theirs.norm(), (name, ours.norm(), theirs.norm())
frames = torch._dynamo.utils.counters["frames"]["ok"]
assert frames > 1, "not all was compiled"
with uncompiled(model):
    for ours, theirs in zip(gradients(model), eager, strict=True):
        assert torch.equal(ours, theirs)
assert torch._dynamo.utils.counters["frames"]["ok"] == frames
if any(m.product is transposed.linear for m in model.modules() if isinstance(m, Linear)):
    a, b = torch.randn(2, 64, 64).bfloat16()
    for ours, theirs in zip(torch.compile(lambda *x: [y.t().contiguous() for y in x])(a, b), (a, b)):
        assert torch.equal(ours, theirs.t())

# Layers that read token ids, and the stream before the first layer.
other = spec.override(
    "num_layers=2", "norm.kind=dyt", "residual.embedding_skip=true", "attention.value_embedding.kind=gated",
)
model = build(other, seed=0).use_kernel("blockwise")
eager = model(row).logits
wanted = torch.autograd.grad(eager.sin().sum(), list(model.parameters()))
assert compile_parts(model, "block", whole_loss=True)[0] == "block"
logits = model(row).logits
assert (logits - eager).abs().max() < 1e-4 * eager.std()
for ours, theirs in zip(torch.autograd.grad(logits.sin().sum(), list(model.parameters())), wanted, strict=True):
    assert (ours - theirs).norm() < 1e-4 * theirs.norm()
"""


@pytest.mark.release
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler is here")
def test_narrow_gradients_are_those_of_the_model_as_it_stands(tmp_path: Path) -> None:
    """In a process of its own, where no shape checks stand between the compiler and the model, and with nothing
    that was compiled before."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
