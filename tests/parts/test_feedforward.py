"""Feed-forwards beside their formulas, neuron by neuron in plain Python."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from archwright.parts.feedforward import FEEDFORWARDS
from archwright.spec import feedforward as spec


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def relu(x: float) -> float:
    return x if x > 0 else 0.0


CASES: list[tuple[spec.Hidden, Callable[[float], float]]] = [
    (spec.ReLU(), relu),
    (spec.GELU(), gelu),
    (spec.GELU(approximate="tanh"), gelu_tanh),
    (spec.SiLU(), silu),
    (spec.SquaredReLU(), lambda x: relu(x) ** 2),
    (spec.SwiGLU(), silu),
    (spec.GeGLU(), gelu),
    (spec.GeGLU(approximate="tanh"), gelu_tanh),
    (spec.ReGLU(), relu),
]
IDS = [f"{choice.kind} {getattr(choice, 'approximate', '')}".strip() for choice, _ in CASES]


def made(choice: spec.Hidden, **changes: object) -> torch.nn.Module:
    choice = choice.model_validate(choice.model_dump() | {"hidden_dim": 7} | changes)
    part: torch.nn.Module = FEEDFORWARDS[type(choice)](choice, 5)
    torch.manual_seed(0)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    return part.double()


def dot(weight: torch.nn.Module, x: np.ndarray) -> list[float]:
    rows = weight.weight.detach().numpy()
    bias = [0.0] * len(rows) if weight.bias is None else weight.bias.tolist()
    return [
        sum(w * v for w, v in zip(row, x, strict=True)) + b
        for row, b in zip(rows, bias, strict=True)
    ]


@pytest.mark.parametrize(
    "bias", [{"up": False, "down": False}, {"up": True, "down": True}, {"up": True}]
)
@pytest.mark.parametrize(("choice", "f"), CASES, ids=IDS)
def test_formula(choice: spec.Hidden, f: Callable[[float], float], bias: dict[str, bool]) -> None:
    part = made(choice, bias=bias)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    found = part(x).detach().numpy()
    for b, t in np.ndindex(2, 3):
        up = dot(part.up, x[b, t].numpy())
        if choice.gated:
            hidden = [f(g) * u for g, u in zip(dot(part.gate, x[b, t].numpy()), up, strict=True)]
        else:
            hidden = [f(u) for u in up]
        np.testing.assert_allclose(
            found[b, t], dot(part.down, np.array(hidden)), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(("choice", "f"), CASES, ids=IDS)
def test_biases_and_shapes_are_those_of_the_spec(choice: spec.Hidden, f: object) -> None:
    shapes = {
        name: tuple(p.shape) for name, p in made(choice, bias={"up": True}).named_parameters()
    }
    expected = {"up.weight": (7, 5), "up.bias": (7,), "down.weight": (5, 7)}
    gate = {"gate.weight": (7, 5), "gate.bias": (7,)} if choice.gated else {}
    assert shapes == expected | gate


@pytest.mark.parametrize(("choice", "f"), CASES, ids=IDS)
def test_gradients(choice: spec.Hidden, f: object) -> None:
    part = made(choice, bias={"up": True, "down": True})
    names = [name for name, _ in part.named_parameters()]

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(part, dict(zip(names, values, strict=True)), x)

    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        call, (x, *(p.detach().requires_grad_() for p in part.parameters()))
    )


@torch.no_grad()
@pytest.mark.parametrize(("choice", "f"), CASES, ids=IDS)
def test_dropout_is_of_hidden_values_and_in_training_alone(choice: spec.Hidden, f: object) -> None:
    part = made(choice, dropout=0.25)
    torch.nn.init.eye_(part.down.weight)
    x = torch.randn(1, 5, dtype=torch.float64).expand(20_000, 5)
    part.eval()
    whole = part(x)
    part.train()
    torch.manual_seed(0)
    kept = part(x)
    ratio = (kept / whole)[:, whole[0] != 0]
    assert ratio.unique().round(decimals=6).unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (ratio == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("choice", "f"), CASES, ids=IDS)
def test_bfloat16_under_autocast(choice: spec.Hidden, f: object) -> None:
    part = made(choice, bias={"up": True, "down": True})
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = part(x)
    part.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = part(x.float())
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 for p in part.parameters())
    assert (found.double() - expected).norm() < 0.02 * expected.norm()
