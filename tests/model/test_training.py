"""Whole models learn: a small text by heart, in every precision, compiled or not."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from archwright.machine.compiling import has_compiler
from archwright.model import Decoder, build
from archwright.spec.read import load

TEXT = b"the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. "


def tiny(preset: str, *words: str) -> Decoder:
    sizes = "dim=64", "num_layers=2", "vocab_size=256", "attention.num_heads=4"
    return build(load(preset).override(*sizes, *words))


def losses(model: Decoder, steps: int, lr: float = 3e-3, narrow: bool = False) -> list[float]:
    row = torch.tensor([list(TEXT)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    found = []
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            logits = model(row[:, :-1]).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), row[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("preset", ["modern", "textbook"])
def test_a_tiny_model_learns_a_small_text_by_heart(preset: str, narrow: bool) -> None:
    model = tiny(preset)
    found = losses(model, 120, narrow=narrow)
    assert found[-1] < 0.05
    assert writes_on(model, TEXT[:4], 40) == TEXT[:44]


def writes_on(model: Decoder, start: bytes, num_bytes: int) -> bytes:
    row = torch.tensor([list(start)])
    with torch.no_grad():
        for _ in range(num_bytes):
            row = torch.cat([row, model(row).logits[:, -1:].argmax(-1)], 1)
    return bytes(row[0].tolist())


def test_the_first_loss_is_that_of_a_guess() -> None:
    """Logits start near zero spread, so a model that knows nothing costs about ln(vocabulary)."""
    for preset in ("modern", "textbook"):
        first = losses(tiny(preset, "head.tied=true"), 1)[0]
        assert first == pytest.approx(5.545, abs=1.0)


COMPILED = """
import sys
import torch
import torch.nn.functional as F
from archwright.model import build
from archwright.spec.read import load

def gradients(model, row):
    loss = F.cross_entropy(model(row[:, :-1]).logits.flatten(0, 1), row[:, 1:].flatten())
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

kernel, backend = sys.argv[1:]
torch.set_num_threads(1)
row = torch.randint(0, 64, (2, 33), generator=torch.Generator().manual_seed(0))
spec = load("modern").override("dim=32", "num_layers=1", "vocab_size=64", "attention.num_heads=4")
model = build(spec.override("attention.qk_norm.kind=rms")).use_kernel(kernel)
eager = gradients(model, row)
for layer in model.layers:
    layer.compile(backend=backend)
for ours, theirs in zip(gradients(model, row), eager, strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
print(torch._dynamo.utils.counters["frames"]["ok"])
"""


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "backend"),
    [
        ("blockwise", "aot_eager"),
        pytest.param(
            "sdpa",
            "inductor",
            marks=pytest.mark.skipif(not has_compiler(), reason="no C++ compiler is here"),
        ),
    ],
)
def test_compiled_layers_have_the_gradients_of_eager_ones(kernel: str, backend: str) -> None:
    """In a process of its own, where no shape checks stand between the compiler and the model."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, kernel, backend],
        env=os.environ | {"TORCHINDUCTOR_MIX_ORDER_REDUCTION": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0  # something was compiled
    assert "recompile_limit" not in done.stderr
