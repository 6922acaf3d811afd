"""Liger's kernels against the parts they take the place of: on a GPU, or else in Triton's interpreter."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright.data.inputs import Batch, Inputs
from archwright.losses import linear_cross_entropy
from archwright.machine import liger
from archwright.machine.decide import decide, decided
from archwright.machine.liger import FusedHead, check_liger, fuse, fused_cross_entropy, unfuse
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.model.model import Decoder
from archwright.parts.embeddings import Head
from archwright.parts.feedforward import Gated
from archwright.parts.norms import LayerNorm, RMSNorm
from archwright.runs import RunFolder
from archwright.spec import norms
from archwright.spec.errors import UserError
from archwright.spec.feedforward import GeGLU, SwiGLU
from archwright.spec.machine import MachineSpec
from archwright.spec.model_spec import ModelSpec
from archwright.training.step import StepResult, train_step
from archwright.training.train import resume
from tests.tiny import tiny_run

CHUNKED = MachineSpec(loss="chunked", precision="fp32")
TINY = ModelSpec(dim=24, num_layers=2, vocab_size=96, context_length=10).override(
    "attention.num_heads=2", "attention.num_kv_heads=1", "attention.head_dim=12"
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU; or the CPU, with Triton's interpreter, which is given what it lacks: numbers as arguments of a
    kernel, and the functions of CUDA's library."""
    pytest.importorskip("triton", reason="triton is not installed")
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    if torch.cuda.is_available():
        return torch.device("cuda")
    import numpy as np
    import triton.language as tl
    from liger_kernel.ops import cross_entropy, geglu, layer_norm, rms_norm
    from triton.runtime import interpreter

    converted = interpreter._implicit_cvt

    def with_floats(value: Any) -> Any:
        if not isinstance(value, float):
            return converted(value)
        held = interpreter.TensorHandle(np.array([value], np.float32), tl.float32)
        return tl.tensor(held, tl.float32)

    monkeypatch.setattr(interpreter, "_implicit_cvt", with_floats)
    for module in (rms_norm, layer_norm):
        monkeypatch.setattr(module, "rsqrt", lambda x: tl.rsqrt(x))
    for module in (geglu, cross_entropy):
        monkeypatch.setattr(module, "tanh", lambda x: 2 * tl.sigmoid(2 * x) - 1)
    monkeypatch.setattr(liger, "why_not_fusable", lambda device: "")
    return torch.device("cpu")


def scattered(module: nn.Module, scale: float = 0.3) -> nn.Module:
    """Move all parameters away from what they begin with, so that each shows."""
    dice = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        drawn = scale * torch.randn(parameter.shape, generator=dice)
        parameter.data += drawn.to(parameter.device)
    return module


def stepped(model: Decoder, machine: MachineSpec, **settings: Any) -> StepResult:
    """Move a model by its gradients, once."""
    dice = torch.Generator().manual_seed(2)
    device = model.head.weight.device
    tokens, targets = torch.randint(0, 96, (2, 5, 10), generator=dice).to(device)
    targets[0, :7] = -100
    group = {"params": list(model.parameters()), "lr": 1.0, "initial_lr": 1.0}
    return train_step(
        model,
        Batch(Inputs(tokens), targets),
        {"sgd": torch.optim.SGD([group])},
        lr_scale=1.0,
        precision=Precision(machine.precision, device),
        max_grad_norm=None,
        chunked=machine.loss == "chunked",
        **settings,
    )


@pytest.mark.release
@pytest.mark.parametrize(
    ("changes", "done"),
    [
        ([], "5 norms, 2 gates, 1 loss"),
        (["norm.weight=unit_offset", "norm.eps=0.01", "norm.scale_in=input_dtype"], "5 norms"),
        (["norm.weight=none", "residual.kind=sandwich"], "9 norms, 2 gates, 1 loss"),
        (["norm.kind=layer", "residual.kind=post"], "4 norms, 2 gates, 1 loss"),
        (["norm.kind=layer", "norm.weight=unit_offset", "residual.kind=parallel"], "3 norms"),
        (["attention.qk_norm.kind=rms"], "9 norms, 2 gates, 1 loss"),
        (["feedforward.kind=geglu", "feedforward.approximate=tanh"], "5 norms, 2 gates, 1 loss"),
        (["feedforward.kind=experts", "feedforward.num_experts=3"], "5 norms, 2 gates, 1 loss"),
        (["head.softcap=1.5", "head.bias=true"], "5 norms, 2 gates, 1 loss"),
        (["head.tied=true"], "5 norms, 2 gates, 1 loss"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_a_step_is_the_same(changes: list[str], done: str, device: torch.device) -> None:
    started = build(TINY.override(*changes), seed=0, device=device)
    scattered(started)
    plain, fused = copy.deepcopy(started), copy.deepcopy(started)
    kind, what = fuse(fused, CHUNKED)
    assert kind == "liger"
    assert what.startswith(done)
    settings = {"z_loss": 0.01, "grad_accum_steps": 2}
    expected, found = (stepped(model, CHUNKED, **settings) for model in (plain, fused))
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.z_loss == pytest.approx(expected.z_loss, rel=1e-6)
    before = dict(started.named_parameters())
    for (name, ours), theirs in zip(plain.named_parameters(), fused.parameters(), strict=True):
        moved = ours - before[name]
        assert moved.norm() > 0
        assert (theirs - ours).norm() < 1e-5 * moved.norm(), name


@pytest.mark.release
@pytest.mark.parametrize("scale_in", ["float32", "input_dtype"])
@pytest.mark.parametrize("weight", ["plain", "unit_offset", "none"])
def test_norms_of_narrow_numbers(scale_in: Any, weight: Any, device: torch.device) -> None:
    norm = RMSNorm(norms.RMSNorm(weight=weight, scale_in=scale_in, eps=1e-2), 24)
    compare_narrow(scattered(norm.to(device)), 1, device)


@pytest.mark.release
def test_layer_norms_of_narrow_numbers(device: torch.device) -> None:
    norm = LayerNorm(norms.LayerNorm(weight="unit_offset", eps=1e-2), 24)
    compare_narrow(scattered(norm.to(device)), 1, device)


@pytest.mark.release
@pytest.mark.parametrize("of", [SwiGLU(hidden_dim=24), GeGLU(hidden_dim=24, approximate="tanh")])
def test_gates_of_narrow_numbers(of: Any, device: torch.device) -> None:
    compare_narrow(Gate(of).to(device), 2, device)


class Gate(Gated):
    """A gated feed-forward without its maps."""

    def __init__(self, of: Any) -> None:
        super().__init__(of, 24)
        self.gate = self.up = self.down = None  # type: ignore[assignment]

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        return self.activation(gate, up)


def compare_narrow(plain: nn.Module, num_inputs: int, device: torch.device) -> None:
    """Values are the same but for a few that round to a neighbour, as all casts are where ours are; gradients
    but for rounding. Triton's interpreter cuts bfloat16 off where a GPU rounds."""
    dtype = torch.float16 if device.type == "cpu" else torch.bfloat16
    fused = copy.deepcopy(plain)
    assert liger._fused(fused)
    dice = torch.Generator().manual_seed(3)
    numbers = torch.randn(num_inputs + 1, 40, 24, generator=dice).to(device, dtype)
    found = []
    for module in (plain, fused):
        given = [x.clone().requires_grad_() for x in numbers[1:]]
        y = module(*given)
        found.append((y, *torch.autograd.grad(y, (*given, *module.parameters()), numbers[0])))
    (y, *ours), (z, *theirs) = found
    assert z.dtype == dtype
    assert (y != z).float().mean() < 0.01
    torch.testing.assert_close(z, y, rtol=torch.finfo(dtype).eps, atol=0)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).float().norm() < torch.finfo(dtype).eps * one.float().norm()


@pytest.mark.release
def test_the_loss_in_bfloat16(device: torch.device) -> None:
    head = scattered(build(TINY, device=device).head)
    fused = copy.deepcopy(head)
    fused.__class__ = FusedHead
    dice = torch.Generator().manual_seed(4)
    hidden = torch.randn(2, 30, 24, generator=dice).to(device)
    targets = torch.randint(0, 96, (2, 30), generator=dice).to(device)
    found = []
    for module, loss_of in ((head, linear_cross_entropy), (fused, fused_cross_entropy)):
        given: Tensor = hidden.clone().requires_grad_()
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(given, module, targets, z_loss=0.01, num_valid=60)  # type: ignore[operator]
        loss.total.backward()
        found.append((loss, given.grad, module.weight.grad))
    (ours, *expected), (theirs, *gradients) = found
    bounds = {"total": 1e-6, "nll_sum": 1e-3, "z_term": 8e-3, "num_targets": 0}
    for name, rtol in bounds.items():
        torch.testing.assert_close(getattr(theirs, name), getattr(ours, name), rtol=rtol, atol=0)
    for one, other in zip(expected, gradients, strict=True):
        assert (one - other).norm() < 8e-3 * one.norm()
        assert other.dtype == torch.float32


@pytest.mark.release
def test_a_fused_run_is_trained_and_resumed(
    text: Path, tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("budget=4steps", "evaluate.final_max_tokens=100", "batch_size=2", "checkpoint.every=2")
    made = []
    for name in ("none", "liger"):
        asked = (f"machine.fused={name}", "machine.loss=chunked", f"machine.device={device.type}")
        folder = RunFolder.create(tmp_path / name, tiny_run(text, *few, *asked))
        made.append(resume(folder, quiet=True))
    one, other = (dict(run.model.named_parameters()) for run in made)
    assert not all(torch.equal(one[name], other[name]) for name in one)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-3)


def test_passes_without_gradients_are_ours() -> None:
    """Nothing of liger is needed for them."""
    model = scattered(build(TINY))
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        expected = model(tokens).logits
        fuse(model, CHUNKED)  # type: ignore[arg-type]
        assert torch.equal(model(tokens).logits, expected)


@pytest.mark.parametrize(
    ("changes", "done"),
    [
        (["norm.kind=layer", "norm.bias=false"], "2 gates, 1 loss"),
        (["norm.kind=layer", "norm.weight=none"], "2 gates, 1 loss"),
        (["attention.qk_norm.kind=rms", "attention.qk_norm_over=head"], "9 norms, 2 gates, 1 loss"),
        (["feedforward.kind=geglu"], "5 norms, 1 loss"),
        (["feedforward.kind=reglu"], "5 norms, 1 loss"),
        (["feedforward.kind=gelu"], "5 norms, 1 loss"),
        (["feedforward.hidden_dim=65544"], "5 norms, 1 loss"),
        (["head.logit_scale=0.5"], "5 norms, 2 gates"),
        (["head.logit_divisor=2"], "5 norms, 2 gates"),
        (["embedding.dim=8"], "5 norms, 2 gates"),
        (["head.transform.kind=dense"], "6 norms, 2 gates"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_what_liger_computes_otherwise_stays(changes: list[str], done: str) -> None:
    assert fuse(build(TINY.override(*changes), device="meta"), CHUNKED) == ("liger", done)


@pytest.mark.parametrize(
    ("machine", "done"),
    [
        (MachineSpec(loss="whole"), "5 norms, 2 gates"),
        (MachineSpec(loss="chunked", precision="fp16"), "5 norms, 2 gates"),
        (MachineSpec(loss="chunked", compile="block"), "1 norms, 1 loss"),
    ],
    ids=["whole", "fp16", "compiled"],
)
def test_what_is_left_to_others(machine: MachineSpec, done: str) -> None:
    assert fuse(build(TINY, device="meta"), machine) == ("liger", done)


def test_it_can_be_taken_back() -> None:
    model = build(TINY)
    fresh = build(TINY)
    fuse(model, CHUNKED)
    assert type(model.head) is FusedHead
    unfuse(model)
    for ours, theirs in zip(model.modules(), fresh.modules(), strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, Gated):
            assert ours.activation(torch.ones(1), torch.ones(1)).item() == pytest.approx(0.7310586)
    assert type(model.head) is Head


def test_it_is_for_gpus() -> None:
    asked = MachineSpec(device="cpu", precision="fp32", fused="liger")
    said = r'^machine\.fused: found "liger"; expected "none", as it needs a GPU$'
    with pytest.raises(UserError, match=said):
        decide(asked)
    with pytest.raises(UserError, match=said):
        decided(asked, {})


def test_its_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = MachineSpec(device="cuda", fused="liger")
    monkeypatch.setattr(liger, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("pip install archwright[liger]")):
        check_liger(asked)
    monkeypatch.setattr(liger, "find_spec", lambda name: name)
    check_liger(asked)
