import shutil

import pytest
import torch

from archwright.model import build
from archwright.model.decoder import Decoder
from archwright.spec.model_spec import ModelSpec
from archwright.training.allocator import tune_allocator
from archwright.training.compiling import compile_layers


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
    assert compile_layers(model, "none") == ("none", "not asked for")
    assert compiled == []


def test_each_layer_is_compiled(
    model: Decoder, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert compile_layers(model, "block") == ("block", "asked for")
    assert compiled == ["Layer", "Layer"]


def test_without_a_compiler_the_run_goes_on(
    model: Decoder, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done, reason = compile_layers(model, "block")
    assert done == "none"
    assert "no C++ compiler" in reason
    assert compiled == []


def test_the_allocator_is_tuned_only_where_it_is_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert not tune_allocator()
