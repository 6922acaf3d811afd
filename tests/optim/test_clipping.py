"""Clipping against torch's own."""

import pytest
import torch
from torch import nn

from archwright.optim.clipping import clip_gradients


def parameters(dtype=torch.float32, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    found = []
    for shape in [(5, 3), (7,), (), (2, 3, 4)]:
        p = nn.Parameter(torch.zeros(shape, dtype=dtype))
        p.grad = (torch.randn(shape, generator=generator) * scale).to(dtype)
        found.append(p)
    return [*found, nn.Parameter(torch.zeros(3))]  # the last has no gradient


@pytest.mark.parametrize("max_norm", [0.5, 1.0, 1e6])
def test_same_norm_and_gradients_as_torch(max_norm):
    ours, theirs = parameters(), parameters()
    norm = clip_gradients(iter(ours), max_norm)
    expected = nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    for a, b in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_clipped_gradients_have_the_largest_norm_allowed():
    clipped = parameters(scale=100)
    assert clip_gradients(clipped, 2.0) > 100
    assert clip_gradients(clipped) == pytest.approx(2.0)


def test_smaller_gradients_are_left_bit_for_bit():
    ours, untouched = parameters(), parameters()
    norm = clip_gradients(ours, 100.0)
    assert norm < 100
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours[:-1], untouched, strict=False))


def test_the_norm_of_bfloat16_gradients_is_not_rounded_to_bfloat16():
    ones = nn.Parameter(torch.zeros(1_000_003, dtype=torch.bfloat16))
    ones.grad = torch.ones_like(ones)
    assert clip_gradients([ones]).item() == pytest.approx(1_000_003**0.5, rel=1e-6)


def test_a_gradient_that_is_not_finite_shows_in_the_norm():
    bad = parameters()
    bad[1].grad[0] = float("nan")
    assert clip_gradients(bad, 1.0).isnan()


def test_no_gradients_have_no_norm():
    assert clip_gradients([nn.Parameter(torch.ones(2))], 1.0) == 0
