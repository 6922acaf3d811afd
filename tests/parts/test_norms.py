"""Norms beside their formulas, computed with numpy in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archwright.parts.norms import NORMS, NoNorm, RMSNorm
from archwright.spec import norms as spec

DIM = 24


def values(dtype: torch.dtype = torch.float64, scale: float = 1.0, offset: float = 0.0) -> Tensor:
    torch.manual_seed(0)
    return (torch.randn(3, 5, DIM, dtype=torch.float64) * scale + offset).to(dtype)


def numbers(x: Tensor | None) -> np.ndarray:
    return np.zeros(()) if x is None else x.detach().double().numpy()


def normed(choice: spec.LayerNorm | spec.RMSNorm, x: Tensor) -> np.ndarray:
    rows = numbers(x)
    if isinstance(choice, spec.LayerNorm):
        rows = rows - rows.sum(-1, keepdims=True) / DIM
    return rows / np.sqrt((rows * rows).sum(-1, keepdims=True) / DIM + choice.eps)


def formula(choice: spec.LayerNorm | spec.RMSNorm, norm: nn.Module, x: Tensor) -> np.ndarray:
    """(x - mean) / sqrt(var + eps) * w + b, or x / sqrt(mean square + eps) * w."""
    weight = {"plain": 0.0, "unit_offset": 1.0, "none": 1.0}[choice.weight] + numbers(norm.weight)
    y: np.ndarray = normed(choice, x) * weight + numbers(getattr(norm, "bias", None))
    return y


def pulled(
    choice: spec.LayerNorm | spec.RMSNorm, norm: nn.Module, x: Tensor, pull: np.ndarray
) -> dict[str, np.ndarray]:
    """The gradients of sum(pull * y), from dy/dx = (I - y y^T / dim - 1 1^T / dim) / deviation."""
    y, rows = normed(choice, x), numbers(x)
    mean = lambda z: z.sum(-1, keepdims=True) / DIM  # noqa: E731
    centred = rows - mean(rows) if isinstance(choice, spec.LayerNorm) else rows
    weight = {"plain": 0.0, "unit_offset": 1.0, "none": 1.0}[choice.weight] + numbers(norm.weight)
    grad = pull * weight
    inner = grad - y * mean(grad * y)
    inner = inner - mean(inner) if isinstance(choice, spec.LayerNorm) else inner
    found = {"x": inner / np.sqrt(mean(centred**2) + choice.eps)}
    over = tuple(range(x.ndim - (norm.weight.ndim if norm.weight is not None else 1)))
    if norm.weight is not None:
        found["weight"] = (pull * y).sum(over)
    if getattr(norm, "bias", None) is not None:
        found["bias"] = pull.sum(tuple(range(x.ndim - norm.bias.ndim)))
    return found


def moved(choice: spec.LayerNorm | spec.RMSNorm, heads: int | None = None) -> nn.Module:
    """Make a norm whose parameters are away from 1 and 0, which hide mistakes."""
    norm: nn.Module = NORMS[type(choice)](choice, DIM, heads)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return norm


EVERY = [
    *(
        spec.LayerNorm(weight=w, bias=b)
        for w in ("plain", "unit_offset", "none")
        for b in (False, True)
    ),
    *(
        spec.RMSNorm(weight=w, scale_in=m)
        for w in ("plain", "unit_offset", "none")
        for m in ("float32", "input_dtype")
    ),
]
ALL = pytest.mark.parametrize(
    "choice", EVERY, ids=lambda c: "-".join(map(str, c.model_dump().values()))
)
HEADS = pytest.mark.parametrize("heads", [None, 5], ids=["shared", "each head"])


@ALL
@HEADS
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_formula(choice: spec.LayerNorm, heads: int | None, eps: float) -> None:
    choice = choice.model_copy(update={"eps": eps})
    norm = moved(choice, heads).double()
    x = values(scale=3, offset=2).requires_grad_()
    y = norm(x)
    np.testing.assert_allclose(numbers(y), formula(choice, norm, x), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(norm(x), y.detach(), rtol=1e-12, atol=1e-12)
    pull = torch.randn_like(y)
    y.backward(pull)
    grads = {"x": x.grad, **{name: p.grad for name, p in norm.named_parameters()}}
    expected = pulled(choice, norm, x, numbers(pull))
    assert set(grads) == set(expected)
    for name, grad in grads.items():
        np.testing.assert_allclose(numbers(grad), expected[name], rtol=1e-9, atol=1e-10)


@ALL
@HEADS
def test_shapes_and_first_values(choice: spec.LayerNorm, heads: int | None) -> None:
    norm = NORMS[type(choice)](choice, DIM, heads)
    shape = (DIM,) if heads is None else (heads, DIM)
    expected = {} if choice.weight == "none" else {"weight": float(choice.weight == "plain")}
    expected |= {"bias": 0.0} if getattr(choice, "bias", False) else {}
    for _ in range(2):
        assert {n: p.shape for n, p in norm.named_parameters()} == dict.fromkeys(expected, shape)
        for name, parameter in norm.named_parameters():
            assert torch.equal(parameter, torch.full(shape, expected[name]))
            torch.nn.init.uniform_(parameter)
        norm.reset_parameters()


@HEADS
@pytest.mark.parametrize("bias", [True, False])
def test_dynamic_tanh(heads: int | None, bias: bool) -> None:
    """Beside weight * tanh(alpha x) + bias, tanh written with exponentials, and its derivatives by hand."""
    choice = spec.DynamicTanh(alpha=0.3, bias=bias)
    norm = NORMS[type(choice)](choice, DIM, heads).double()
    shape = (DIM,) if heads is None else (heads, DIM)
    first = {"alpha": torch.tensor(0.3), "weight": torch.ones(shape)}
    first |= {"bias": torch.zeros(shape)} if bias else {}
    assert {n: p.shape for n, p in norm.named_parameters()} == {
        n: p.shape for n, p in first.items()
    }
    assert choice.num_parameters(DIM * (heads or 1)) == sum(p.numel() for p in norm.parameters())
    for _ in range(2):
        for name, parameter in norm.named_parameters():
            torch.testing.assert_close(parameter.float(), first[name])
            torch.nn.init.uniform_(parameter, 0.5, 2)
        norm.reset_parameters()
    for parameter in norm.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 2)
    x = values(scale=3, offset=2).requires_grad_()
    y, rows = norm(x), numbers(x)
    alpha, weight = numbers(norm.alpha), numbers(norm.weight)
    squashed = 1 - 2 / (np.exp(2 * alpha * rows) + 1)
    np.testing.assert_allclose(
        numbers(y), weight * squashed + numbers(norm.bias), rtol=1e-12, atol=1e-12
    )
    pull = torch.randn_like(y)
    y.backward(pull)
    inner, over = numbers(pull) * weight * (1 - squashed**2), tuple(range(x.ndim - len(shape)))
    expected = {
        "x": inner * alpha,
        "alpha": (inner * rows).sum(),
        "weight": (numbers(pull) * squashed).sum(over),
        "bias": numbers(pull).sum(over),
    }
    for name, grad in {"x": x.grad, **{n: p.grad for n, p in norm.named_parameters()}}.items():
        np.testing.assert_allclose(numbers(grad), expected[name], rtol=1e-9, atol=1e-10)
    narrow = norm.float()(values(torch.bfloat16, scale=3))
    assert narrow.dtype == torch.bfloat16


def test_no_norm() -> None:
    x = values()
    assert NoNorm(spec.NoNorm(), DIM)(x) is x
    assert NoNorm(spec.NoNorm(), DIM, 5)(x) is x


WIDE = [choice for choice in EVERY if getattr(choice, "scale_in", "float32") == "float32"]


@HEADS
class TestPrecision:
    @ALL
    def test_float32_is_exact_to_its_last_digits(
        self, choice: spec.LayerNorm, heads: int | None
    ) -> None:
        norm = moved(choice, heads)
        x = values(torch.float32, scale=50, offset=3)
        np.testing.assert_allclose(numbers(norm(x)), formula(choice, norm, x), rtol=2e-5, atol=2e-5)

    @pytest.mark.parametrize("autocast", [False, True])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @ALL
    def test_half_precision_is_rounded_only_at_the_end(
        self, choice: spec.LayerNorm, heads: int | None, dtype: torch.dtype, autocast: bool
    ) -> None:
        """The mean of the squares of such values overflows float16 and is off by percents in bfloat16."""
        norm = moved(choice, heads)
        x = values(dtype, scale=300, offset=1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = norm(x)
        assert y.dtype == dtype
        found, expected = numbers(y), formula(choice, norm, x)
        # Roundings of half a step: of the result, and where narrow of the normed value and the weight.
        halves = 1.01 if choice in WIDE else 3.1
        error = np.abs(found - expected) / np.maximum(np.abs(expected), 1e-2)
        assert error.max() < halves * torch.finfo(dtype).eps / 2

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    @ALL
    def test_a_whole_model_may_change_its_dtype(
        self, choice: spec.LayerNorm, heads: int | None, dtype: torch.dtype
    ) -> None:
        norm = moved(choice, heads).to(dtype)
        x = values(dtype).requires_grad_()
        norm(x).sum().backward()
        assert norm(x).dtype == dtype
        assert all(p.grad.dtype == dtype for p in norm.parameters())

    @pytest.mark.parametrize("autocast", [False, True])
    @ALL
    def test_backward_under_autocast_is_as_wide_as_without(
        self, choice: spec.LayerNorm, heads: int | None, autocast: bool
    ) -> None:
        norm = moved(choice, heads)
        x = values(torch.float32).requires_grad_()
        pull = torch.linspace(-1, 1, DIM).expand(x.shape)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            norm(x).backward(pull)
        for name, exact in pulled(choice, norm, x, numbers(pull)).items():
            found = x.grad if name == "x" else norm.get_parameter(name).grad
            np.testing.assert_allclose(numbers(found), exact, rtol=2e-5, atol=2e-5)

    @ALL
    def test_backward_works_without_memory(self, choice: spec.LayerNorm, heads: int | None) -> None:
        norm = moved(choice, heads).to("meta")
        x = torch.empty(3, 5, DIM, device="meta", requires_grad=True)
        norm(x).sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape


@pytest.mark.parametrize("weight", ["plain", "unit_offset"])
def test_a_narrow_product_rounds_the_normed_value_first(weight: spec.Weight) -> None:
    """Llama's order differs from OLMo 2's in the last digit of bfloat16 values."""
    x = values(torch.bfloat16)
    found = {}
    for scale_in in ("float32", "input_dtype"):
        norm = moved(spec.RMSNorm(weight=weight, scale_in=scale_in))
        found[scale_in] = norm(x)
    w = (norm.weight.detach() + (weight == "unit_offset")).bfloat16()
    rounded = torch.from_numpy(normed(spec.RMSNorm(), x)).bfloat16()
    assert torch.equal(found["input_dtype"], rounded * w)
    assert not torch.equal(found["input_dtype"], found["float32"])


def test_one_plus_a_small_weight_is_formed_in_float32() -> None:
    norm = RMSNorm(spec.RMSNorm(weight="unit_offset", eps=1e-12), DIM).bfloat16()
    with torch.no_grad():
        norm.weight.fill_(2**-9)  # 1 + 2^-9 is 1 in bfloat16
    x = torch.full((DIM,), 1.0, dtype=torch.float32)
    assert norm(x)[0].item() == pytest.approx(1 + 2**-9, rel=1e-6)
