"""Norms beside their formulas, computed with numpy in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.parts.norms import LayerNorm, NoNorm, RMSNorm
from archwright.spec import norms as spec

DIM = 24


def values(dtype: torch.dtype = torch.float64, scale: float = 1.0, offset: float = 0.0) -> Tensor:
    torch.manual_seed(0)
    return (torch.randn(3, 5, DIM, dtype=torch.float64) * scale + offset).to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> np.ndarray:
    rows = x.double().numpy()
    mean = rows.sum(-1, keepdims=True) / DIM
    variance = ((rows - mean) ** 2).sum(-1, keepdims=True) / DIM
    y = (rows - mean) / np.sqrt(variance + eps) * weight.detach().double().numpy()
    return y if bias is None else y + bias.detach().double().numpy()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> np.ndarray:
    rows = x.double().numpy()
    mean_square = (rows * rows).sum(-1, keepdims=True) / DIM
    return rows / np.sqrt(mean_square + eps) * weight.detach().double().numpy()


def off_one(norm: torch.nn.Module) -> torch.nn.Module:
    """Move a norm's parameters away from 1 and 0, which hide mistakes."""
    torch.manual_seed(1)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, 1.0, 0.3)
    return norm


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm(bias: bool, eps: float) -> None:
    norm = off_one(LayerNorm(spec.LayerNorm(bias=bias, eps=eps), DIM)).double()
    x = values(scale=3, offset=2)
    expected = layer_norm(x, norm.weight, norm.bias if bias else None, eps)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    assert len(list(norm.parameters())) == 1 + bias


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rms_norm(eps: float) -> None:
    norm = off_one(RMSNorm(spec.RMSNorm(eps=eps), DIM)).double()
    x = values(scale=3, offset=2)
    expected = rms_norm(x, norm.weight, eps)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_no_norm() -> None:
    x = values()
    assert NoNorm(spec.NoNorm(), DIM)(x) is x


@pytest.mark.parametrize("choice", [spec.LayerNorm(), spec.LayerNorm(bias=False), spec.RMSNorm()])
class TestPrecision:
    def test_float32_is_exact_to_its_last_digits(self, choice: spec.Norm) -> None:
        norm, reference = made(choice)
        x = values(torch.float32, scale=50, offset=3)
        np.testing.assert_allclose(norm(x).detach().numpy(), reference(x), rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("autocast", [False, True])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_rounded_only_at_the_end(
        self, choice: spec.Norm, dtype: torch.dtype, autocast: bool
    ) -> None:
        """The mean of the squares of such values overflows float16 and is off by percents in bfloat16."""
        norm, reference = made(choice)
        x = values(dtype, scale=300, offset=1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = norm(x)
        assert y.dtype == dtype
        found, expected = y.detach().double().numpy(), reference(x)
        step = torch.finfo(dtype).eps  # of the result, of the normed value and of the weight
        assert np.abs(found - expected).max() < 1.6 * step * np.abs(expected).max()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_a_whole_model_may_change_its_dtype(
        self, choice: spec.Norm, dtype: torch.dtype
    ) -> None:
        norm = made(choice)[0].to(dtype)
        x = values(dtype).requires_grad_()
        norm(x).sum().backward()
        assert norm(x).dtype == dtype
        assert norm.weight.grad.dtype == dtype

    def test_gradients(self, choice: spec.Norm) -> None:
        norm = made(choice)[0].double()
        names = [name for name, _ in norm.named_parameters()]

        def call(x: Tensor, *parameters: Tensor) -> Tensor:
            return torch.func.functional_call(norm, dict(zip(names, parameters, strict=True)), x)

        inputs = (
            values()[0].requires_grad_(),
            *(p.detach().requires_grad_() for p in norm.parameters()),
        )
        assert torch.autograd.gradcheck(call, inputs)


def made(choice: spec.Norm):  # type: ignore[no-untyped-def]
    if isinstance(choice, spec.LayerNorm):
        norm = off_one(LayerNorm(choice, DIM))
        return norm, lambda x: layer_norm(x, norm.weight, norm.bias, choice.eps)
    norm = off_one(RMSNorm(choice, DIM))
    return norm, lambda x: rms_norm(x, norm.weight, choice.eps)
