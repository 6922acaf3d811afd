"""What is written for speed computes what the plain formula says, also where precision is narrow."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.model import Decoder, build
from archwright.parts import linear
from archwright.parts.linear import to_autocast_dtype
from archwright.parts.norms import RMSNorm
from archwright.parts.positions import Rotary, Rotation
from archwright.spec import norms as spec
from archwright.spec.read import load

SHAPE = ("dim=48", "num_layers=2", "vocab_size=96", "attention.num_heads=4", "context_length=150")
TOKENS = torch.randint(0, 96, (2, 150), generator=torch.Generator().manual_seed(0))
"""Longer than a block of queries."""

Step = Callable[[Decoder], list[Tensor]]


def plain_norm(self: RMSNorm, x: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    y = wide / (wide.square().mean(-1, keepdim=True) + self.eps).sqrt()
    return (y * self.weight).to(x.dtype)


def plain_rotation(self: Rotary, x: Tensor, rotation: Rotation) -> Tensor:
    """As products of complex numbers: pairs are (i, i + r / 2)."""
    assert self.spec.pairing == "half"
    middle = self.num_rotary // 2
    wide = x if x.dtype == torch.float64 else x.float()
    numbers = torch.complex(wide[..., :middle], wide[..., middle:])
    unit = torch.complex(rotation.cos[..., middle:], rotation.sin[..., middle:]).to(numbers.dtype)
    turned = numbers * unit
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[Decoder], Decoder]:
    """Make a model compute by formulas alone."""

    def swap(model: Decoder) -> Decoder:
        monkeypatch.setattr(RMSNorm, "forward", plain_norm)
        monkeypatch.setattr(Rotary, "rotate", plain_rotation)
        return model.use_kernel("eager")

    return swap


def gradients(model: Decoder, **given: Tensor) -> list[Tensor]:
    logits = model(TOKENS[:, :-1], **given).logits
    loss = F.cross_entropy(logits.flatten(0, 1).double(), TOKENS[:, 1:].flatten())
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def distance(found: list[Tensor], truth: list[Tensor]) -> float:
    """The distance of all gradients as one vector, relative to its length."""
    a, b = (torch.cat([x.flatten().double() for x in xs]) for xs in (found, truth))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("narrowed", ["", "documents", "padding"])
def test_a_model_of_formulas_is_the_same(
    narrowed: str, plain: Callable[[Decoder], Decoder]
) -> None:
    row = torch.arange(149)
    given = {
        "": {},
        "documents": {"segment_ids": torch.stack([row // 40, row // 130])},
        "padding": {"padding_mask": torch.stack([row >= 30, row < 120])},
    }[narrowed]
    model = build(load("modern").override(*SHAPE)).double()
    fast = gradients(model, **given)
    torch.testing.assert_close(fast, gradients(plain(model), **given), rtol=1e-9, atol=1e-12)


def test_bfloat16_loses_no_more_than_the_formulas_do(plain: Callable[[Decoder], Decoder]) -> None:
    model = build(load("modern").override(*SHAPE))
    truth = gradients(build(load("modern").override(*SHAPE)).double().use_kernel("eager"))
    with torch.autocast("cpu", torch.bfloat16):
        fast, slow = gradients(model), gradients(plain(model))
    assert distance(fast[1:], truth[1:]) < 1.2 * distance(slow[1:], truth[1:])
    assert abs(fast[0] - truth[0]) < 1e-3


def test_a_norm_keeps_its_precision_when_backward_runs_under_autocast() -> None:
    norm = RMSNorm(spec.RMSNorm(), 64)
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.linspace(-1, 1, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad((norm(x) * weight).sum(), [x, norm.weight])
    double = RMSNorm(spec.RMSNorm(), 64).double()
    truth = torch.autograd.grad((plain_norm(double, x.double()) * weight).sum(), [x, double.weight])
    for ours, exact in zip(found, truth, strict=True):
        torch.testing.assert_close(ours.double(), exact.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_softmax_of_narrow_scores_is_computed_in_float32(dtype: torch.dtype) -> None:
    """The blockwise kernel relies on it, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    scores, grad = (torch.randn(50, 1000, generator=generator).to(dtype) for _ in range(2))
    rounding = {"rtol": torch.finfo(dtype).eps, "atol": 1e-6}
    weights = torch.softmax(scores, -1)
    torch.testing.assert_close(weights.float(), torch.softmax(scores.float(), -1), **rounding)
    found = torch._softmax_backward_data(grad, weights, -1, dtype)
    exact = torch._softmax_backward_data(grad.float(), weights.float(), -1, torch.float32)
    torch.testing.assert_close(found.float(), exact, **rounding)


def test_values_are_narrowed_where_autocast_would() -> None:
    x = torch.ones(3)
    assert to_autocast_dtype(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        assert to_autocast_dtype(x).dtype == torch.bfloat16
        assert to_autocast_dtype(x.double()).dtype == torch.float64


@pytest.mark.parametrize("rows", [1, 4, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_products_in_wider_numbers(rows: int, dtype: torch.dtype) -> None:
    """Pieces of a weight are put together, and the result is rounded once."""
    m = linear.Linear(96, 40, bias=True).to(dtype)
    x = torch.randn(2, rows, 96, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(linear, "SLICE", 700)
        patch.setattr(linear, "multiplies", lambda dtype: False)
        found = m(x)
    assert m.bias is not None
    exact = x.double() @ m.weight.double().T + m.bias.double()
    assert found.dtype == dtype
    assert torch.allclose(found.double(), exact, rtol=2.0**-8, atol=2.0**-8)
