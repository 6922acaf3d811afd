"""Weights in 8 and 4 bits: close to the model that they come from."""

import copy

import pytest
import torch

from archwright.model import build
from archwright.model.model import Decoder
from archwright.model.quantisation import Weights, quantise
from archwright.parts.linear import Linear
from archwright.spec.errors import UserError
from archwright.spec.read import load


def small(*overrides: str) -> Decoder:
    sizes = ("dim=64", "num_layers=2", "vocab_size=96", "context_length=64", *overrides)
    return build(load("modern").override(*sizes), seed=0).eval()


@pytest.mark.parametrize(("weights", "most"), [("int8", 0.04), ("int4", 0.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", ["true", "false"])
@torch.inference_mode()
def test_logits_change_little(weights: Weights, most: float, dtype: torch.dtype, tied: str) -> None:
    model = small(f"head.tied={tied}").to(dtype)
    tokens = torch.arange(40).view(2, 20)
    whole, few = model(tokens).logits, model(tokens[:1, :8]).logits
    changed = quantise(copy.deepcopy(model), weights)
    for before, after in ((whole, changed(tokens).logits), (few, changed(tokens[:1, :8]).logits)):
        off = (after.float() - before.float()).norm() / before.float().norm()
        assert 0 < off < most


@pytest.mark.parametrize("weights", ["int8", "int4"])
@torch.inference_mode()
def test_products_are_those_of_the_rounded_weights(weights: Weights) -> None:
    """Few rows and many give the same, and biases count."""
    m = Linear(64, 48, bias=True)
    assert m.bias is not None
    m.bias.data.normal_()
    x = torch.randn(40, 64).bfloat16().float()
    quantise(m, weights)
    matrix = (m(torch.eye(64)) - m.bias).T
    exact = x @ matrix.T + m.bias
    for rows in (1, 16, 40):
        assert torch.allclose(m(x[:rows]), exact[:rows], atol=0.1, rtol=0.02)


def test_what_cannot_be_quantised_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match="no plain linear map"):
        quantise(torch.nn.Identity(), "int8")


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-2-9b", "mixtral-8x7b"])
@torch.inference_mode()
def test_models_of_all_kinds_give_numbers(name: str) -> None:
    model = quantise(build(load(name).tiny(), seed=0).eval(), "int8")
    tokens = torch.arange(24).view(2, 12)
    inputs = (tokens, tokens) if not model.spec.encoder.is_none else (tokens,)
    assert model(*inputs).logits.isfinite().all()
    assert not model.can_cache or model(*inputs, cache=model.new_cache()).logits.isfinite().all()
