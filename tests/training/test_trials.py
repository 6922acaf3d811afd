"""What is tried before the first step is kept only where steps are then faster."""

import math
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archwright.model import build
from archwright.model.model import Decoder
from archwright.spec.machine import MachineSpec
from archwright.spec.model_spec import ModelSpec
from archwright.training import trials
from archwright.training.trials import compile_for_cuda, compile_if_faster, fuse_if_faster


@pytest.fixture
def model() -> Decoder:
    return build(ModelSpec(dim=16, num_layers=2, vocab_size=64, context_length=8))


class Timed:
    """A session of which only some things are known of a step as it is, and of a changed one."""

    def __init__(self, model: Decoder, *seen: tuple[float, float]) -> None:
        """A step's seen are the norm of a gradient and its time."""
        self.model, self.seen = model, list(seen)
        self.run = SimpleNamespace(
            machine=MachineSpec(loss="whole", device="cpu"), budget=SimpleNamespace(seconds=None)
        )
        self.processes = SimpleNamespace(layout=SimpleNamespace(size=1))

    def gradient_norms(self) -> dict[str, float]:
        norm, seconds = self.seen[0]
        if math.isinf(norm):
            self.seen.pop(0)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if math.isinf(seconds):
            self.seen.pop(0)
        if norm < 0:
            raise RuntimeError("no such intrinsic\nand more")
        return {"other": 2.0, "weight": norm}

    def time_step(self, seconds: float) -> float:
        return self.seen.pop(0)[1]


PLAIN = (0.5, 1.0)
CASES = [
    ((0.52, 0.8), True, "a step takes 800 ms instead of 1000"),
    ((0.5, 0.99), False, "a step takes 990 ms instead of 1000"),
    ((0.6, 0.1), False, " gives other gradients, first of weight"),
    ((math.nan, 0.1), False, " gives other gradients, first of weight"),
    ((-1.0, 0.1), False, " failed: no such intrinsic"),
    ((math.inf, 0.1), False, " failed: CUDA out of memory."),
]


@pytest.mark.slow
@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize(("changed", "kept", "reason"), CASES)
def test_compiled_layers(
    model: Decoder,
    changed: tuple[float, float],
    kept: bool,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    session: Any = Timed(model, PLAIN, changed)
    found, why = compile_if_faster(session)
    assert found == ("block" if kept else "none")
    assert why.removeprefix("compiling").startswith(reason)
    for layer in model.layers:
        assert (layer._compiled_call_impl is not None) == kept


@pytest.mark.parametrize(("changed", "kept", "reason"), CASES)
def test_fused_kernels(
    model: Decoder, changed: tuple[float, float], kept: bool, reason: str
) -> None:
    before = [type(module) for module in model.modules()]
    session: Any = Timed(model, PLAIN, changed)
    found, why = fuse_if_faster(session, MachineSpec(loss="chunked"))
    assert found == ("liger" if kept else "none")
    assert why.removeprefix("liger").startswith(reason)
    assert ([type(module) for module in model.modules()] != before) == kept


def test_what_cannot_be_done_is_not_timed_again(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    session: Any = Timed(model, PLAIN)
    found, why = compile_if_faster(session)
    assert found == "none"
    assert "no C++ compiler" in why


UNTIMED = math.inf
FITS, TOO_LARGE = (0.5, UNTIMED), (math.inf, UNTIMED)


@pytest.mark.parametrize(
    ("plain", "changed", "found"),
    [
        (FITS, FITS, "block"),
        (FITS, (0.6, UNTIMED), "none"),
        (FITS, TOO_LARGE, "none"),
        (TOO_LARGE, FITS, "block"),
    ],
)
def test_on_a_gpu_layers_are_compiled_if_gradients_are_the_same(
    plain: tuple[float, float],
    changed: tuple[float, float],
    found: str,
    model: Decoder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is timed. Whatever does not fit into memory loses to what fits."""
    monkeypatch.setattr(trials, "can_compile_for_cuda", lambda: True)
    monkeypatch.setattr(trials, "compile_parts", lambda model, *_, **__: ("block", "asked for"))
    session: Any = Timed(model, plain, changed)
    assert compile_for_cuda(session)[0] == found
    session = Timed(model)
    session.processes.layout.size = 8
    assert compile_for_cuda(session)[0] == "block", "of one of several processes"
    session.run.budget.seconds = 20.0
    assert compile_for_cuda(session) == ("none", "compiling would take most of 20 s")
    monkeypatch.setattr(trials, "can_compile_for_cuda", lambda: False)
    assert compile_for_cuda(session)[0] == "none"
