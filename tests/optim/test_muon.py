"""Muon against torch's own, against the SVD, and as a well-behaved optimizer."""

import copy

import pytest
import torch
from torch import nn

from archwright.optim import muon
from archwright.optim.muon import JORDAN, POLAR, Muon, orthogonal

SHAPES = [(24, 24), (16, 40), (40, 16), (24, 24), (16, 40), (8, 24)]


def matrices(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def train(optimizers, parameters: list[nn.Parameter], steps: int = 4, start: int = 0) -> None:
    """Step along gradients that depend on nothing but the step."""
    for step in range(start, steps):
        generator = torch.Generator().manual_seed(100 + step)
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=generator) * 1e-3
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            optimizer.step()


def spectrum(low: float, m: int = 32, n: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix with singular values from `low` to 1 on a logarithmic scale, and its U V^T."""
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(m, m, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(n, m, generator=generator, dtype=torch.float64))
    values = torch.logspace(torch.tensor(low).log10(), 0, m, dtype=torch.float64)
    return (u * values) @ v.mT, u @ v.mT


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_jordans_method_takes_the_steps_of_torch(nesterov, dtype):
    ours, theirs, start = matrices(), matrices(), matrices()
    common = {"lr": 0.02, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.1}
    train(Muon(ours, method="jordan", steps=5, dtype=dtype, **common), ours)
    train(torch.optim.Muon(theirs, adjust_lr_fn="match_rms_adamw", **common), theirs)
    for a, b, c in zip(ours, theirs, start, strict=True):
        # torch iterates in bfloat16: the steps agree up to its rounding, carried through 5 of them.
        error = (a - b).norm() / (b - c).norm()
        assert error < 0.02


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_three_steps_are_orthogonal_where_the_singular_values_lie(scale):
    x, exact = spectrum(low=0.05)
    found = orthogonal((x * scale)[None], steps=3)[0]
    if scale > 1e-7:
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.95
        assert values.max() < 1.04
        assert (found - exact).norm() / exact.norm() < 0.04
    assert torch.isfinite(found).all()


def test_more_steps_converge_to_the_polar_factor():
    x, exact = spectrum(low=1e-3)
    errors = [(orthogonal(x[None], steps)[0] - exact).norm() for steps in (3, 5, 8, 12)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6


def test_smaller_directions_are_never_turned_round():
    x, exact = spectrum(low=1e-4)
    along = torch.linalg.eigvalsh(orthogonal(x[None], 3)[0] @ exact.mT)
    assert along.min() > 0


def test_bfloat16_is_near_float32():
    x, _ = spectrum(low=0.03)
    exact = orthogonal(x.float()[None], 3)
    rounded = orthogonal(x.bfloat16()[None], 3)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() / exact.norm() < 0.03


def test_coefficients_are_the_best_on_what_is_left():
    """Minimax: the error of each quintic swings between its extremes at four points."""
    low, high = 0.03, 1.0
    for a, b, c in POLAR[:3]:
        x = torch.linspace(low, high, 200_001, dtype=torch.float64)
        error = a * x + b * x**3 + c * x**5 - 1
        largest = error.abs().max().item()
        swings = error[error.abs() > largest - 2e-3].sign()
        assert (swings.diff() != 0).sum() == 3
        low, high = 1 - largest, 1 + largest
    assert largest == pytest.approx(0.037, abs=5e-4)
    a, b, c = JORDAN
    assert a + b + c == pytest.approx(0.701, abs=1e-3)


@pytest.mark.parametrize(("method", "tolerance"), [("polar", 0.02), ("jordan", 0.2)])
def test_update_has_the_root_mean_square_of_adamw(method, tolerance):
    (p,) = [nn.Parameter(torch.zeros(64, 256))]
    optimizer = Muon([p], lr=1.0, weight_decay=0.0, method=method)
    p.grad = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert p.square().mean().sqrt().item() == pytest.approx(0.2, rel=tolerance)


@pytest.mark.parametrize("method", ["polar", "jordan"])
def test_batches_change_nothing(method, monkeypatch):
    together, alone, chunked = matrices(), matrices(), matrices()
    options = {"method": method, "dtype": torch.float32}
    train(Muon(together, **options), together)
    train([Muon([p], **options) for p in alone], alone)
    monkeypatch.setattr(muon, "BATCH", 700)
    train(Muon(chunked, **options), chunked)
    for a, b, c in zip(together, alone, chunked, strict=True):
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)


def test_a_stack_counts_as_separate_matrices():
    stack = [nn.Parameter(torch.randn(3, 8, 24, generator=torch.Generator().manual_seed(0)))]
    apart = [nn.Parameter(matrix.detach().clone()) for matrix in stack[0]]
    optimizers = [Muon(p, dtype=torch.float32) for p in (stack, apart)]
    for p in stack:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    for p, gradient in zip(apart, stack[0].grad, strict=True):
        p.grad = gradient.clone()
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(stack[0], torch.stack(apart))


def test_a_state_taken_over_goes_on_bit_for_bit():
    undisturbed, stopped = matrices(), matrices()
    train(Muon(undisturbed), undisturbed, 6)
    first = Muon(stopped)
    train(first, stopped, 3)
    state = copy.deepcopy(first.state_dict())
    second = Muon(stopped, lr=123.0)
    second.load_state_dict(state)
    train(second, stopped, 6, start=3)
    assert all(torch.equal(a, b) for a, b in zip(undisturbed, stopped, strict=True))


def test_without_gradients_nothing_moves():
    parameters = matrices()
    optimizer = Muon(parameters)
    optimizer.step()
    assert not optimizer.state
    parameters[0].grad = torch.zeros_like(parameters[0])
    optimizer.step()
    decayed = matrices()[0] * (1 - 1e-2 * 0.1)
    torch.testing.assert_close(parameters[0], decayed)
    assert all(torch.equal(a, b) for a, b in zip(parameters[1:], matrices()[1:], strict=True))


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"found a parameter of shape \[5\]"):
        Muon([nn.Parameter(torch.zeros(5))])


def test_the_closure_is_evaluated_with_gradients():
    (p,) = parameters = [nn.Parameter(torch.ones(4, 4))]
    optimizer = Muon(parameters)

    def closure() -> float:
        loss = p.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 16
    assert p.square().sum().item() < 16
