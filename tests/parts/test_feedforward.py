"""Feed-forwards beside their formulas, neuron by neuron in plain Python."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from archwright.parts.feedforward import ACTIVATIONS, FEEDFORWARDS, GATES, XIELU
from archwright.parts.linear import fused_linears
from archwright.spec import feedforward as spec
from archwright.spec import norms


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def relu(x: float) -> float:
    return x if x > 0 else 0.0


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def xielu(x: float, a_p: float = 1.3, a_n: float = 1.1, b: float = 0.4) -> float:
    return a_p * x * x + b * x if x > 0 else a_n * (math.exp(x) - 1 - x) + b * x


def times(f: Callable[[float], float]) -> Callable[[float, float], float]:
    return lambda g, u: f(g) * u


def clamped(limit: float, sharpness: float) -> Callable[[float, float], float]:
    def f(g: float, u: float) -> float:
        g, u = min(g, limit), max(-limit, min(u, limit))
        return g * sigmoid(sharpness * g) * (u + 1)

    return f


CASES: list[tuple[spec.Hidden, Callable[..., float]]] = [
    (spec.ReLU(), relu),
    (spec.GELU(), gelu),
    (spec.GELU(approximate="tanh"), gelu_tanh),
    (spec.SiLU(), silu),
    (spec.SquaredReLU(), lambda x: relu(x) ** 2),
    (spec.QuickGELU(), lambda x: x * sigmoid(1.702 * x)),
    (spec.XIELU(alpha_positive=1.3, alpha_negative=1.1, beta=0.4), xielu),
    (spec.SwiGLU(), times(silu)),
    (spec.SwiGLU(gate_multiplier=0.7), times(lambda g: silu(0.7 * g))),
    (spec.GeGLU(), times(gelu)),
    (spec.GeGLU(approximate="tanh"), times(gelu_tanh)),
    (spec.ReGLU(), times(relu)),
    (spec.SquaredReGLU(), times(lambda g: relu(g) ** 2)),
    (spec.GLU(), times(sigmoid)),
    (spec.Bilinear(), times(lambda x: x)),
    (spec.ClampedSwiGLU(limit=1.1, sharpness=1.3), clamped(1.1, 1.3)),
    (spec.GEGELU(limit=0.9), clamped(0.9, 1.702)),
]
IDS = [f"{choice.kind} {getattr(choice, 'approximate', '')}".strip() for choice, _ in CASES]


def made(choice: spec.Hidden, **changes: object) -> torch.nn.Module:
    choice = choice.model_validate(choice.model_dump() | {"hidden_dim": 7} | changes)
    part: torch.nn.Module = FEEDFORWARDS.make(choice, 5)
    torch.manual_seed(0)
    for name, parameter in part.named_parameters():
        fan_in = parameter.shape[1] if parameter.ndim == 2 else 1.0
        torch.nn.init.normal_(parameter, 0.0, 1.5 * fan_in**-0.5 if "weight" in name else 0.3)
    if isinstance(part.activation, XIELU):
        part.double().activation.reset_parameters()
    return part.double()


@pytest.mark.parametrize("choice", [spec.SquaredReLU(), spec.SwiGLU(), spec.XIELU()], ids=str)
def test_a_norm_of_hidden_values(choice: spec.Hidden) -> None:
    """It stands between the function and the projection down, over all of the hidden layer."""
    plain = made(choice)
    normed = choice.model_copy(
        update={"hidden_dim": 7, "hidden_norm": norms.RMSNorm(weight="none", eps=0.3)}
    )
    part = FEEDFORWARDS.make(normed, 5).double()
    part.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    hidden = part.activation(*(read(x) for read in part.inputs))
    scale = (hidden.square().sum(-1, keepdim=True) / 7 + 0.3) ** -0.5
    expected = (hidden * scale) @ part.down.weight.T
    torch.testing.assert_close(part(x), expected, rtol=1e-12, atol=1e-12)


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
            hidden = [f(g, u) for g, u in zip(dot(part.gate, x[b, t].numpy()), up, strict=True)]
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
    numbers = dict.fromkeys(("activation.positive", "activation.negative"), (1,))
    assert shapes == expected | gate | (numbers if choice.kind == "xielu" else {})


def test_every_choice_is_tested() -> None:
    hidden = {type(choice) for choice, _ in CASES}
    assert hidden == {*ACTIVATIONS, *GATES}


@pytest.mark.parametrize(("choice", "f"), CASES, ids=IDS)
def test_what_is_projected_already_is_not_projected_again(choice: spec.Hidden, f: object) -> None:
    part = made(choice, bias={"up": True})
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    assert part.inputs == ([part.gate, part.up] if choice.gated else [part.up])
    projected = fused_linears(x, part.inputs)
    for linear in part.inputs:
        linear.weight = None
    found = part(x, projected)
    torch.testing.assert_close(found, made(choice, bias={"up": True})(x))


@pytest.mark.sampled(fast=2)
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


class TestXIELU:
    def test_it_starts_where_the_spec_says(self) -> None:
        part = XIELU(spec.XIELU(alpha_positive=0.9, alpha_negative=0.8, beta=0.3))
        part.reset_parameters()
        a_p = math.log(1 + math.exp(part.positive.item()))
        a_n = 0.3 + math.log(1 + math.exp(part.negative.item()))
        assert (a_p, a_n) == (pytest.approx(0.9, rel=1e-6), pytest.approx(0.8, rel=1e-6))

    def test_far_out_and_near_zero_it_stays_exact(self) -> None:
        part = XIELU(spec.XIELU())
        part.reset_parameters()
        x = torch.tensor([-1e4, -100.0, -1e-3, 0.0, 1e-3, 200.0], requires_grad=True)
        y = part(x)
        y.sum().backward()
        expected = [xielu(v, 0.8, 0.8, 0.5) for v in x.tolist()]
        assert y.tolist() == pytest.approx(expected, rel=1e-5)
        slopes = [1.6 * v + 0.5 if v > 0 else 0.8 * math.expm1(v) + 0.5 for v in x.tolist()]
        assert x.grad.tolist() == pytest.approx(slopes, rel=1e-5)

    def test_narrow_values_are_computed_wide(self) -> None:
        part = XIELU(spec.XIELU())
        part.reset_parameters()
        x = torch.linspace(-3, 3, 301).bfloat16()
        assert part(x).dtype == torch.bfloat16
        expected = torch.tensor([xielu(v, 0.8, 0.8, 0.5) for v in x.tolist()])
        torch.testing.assert_close(part(x).float(), expected, rtol=2**-8, atol=0)
