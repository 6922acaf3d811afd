"""Sums with learned weights."""

import numpy as np
import torch

from archwright.parts.weighted_sum import WeightedSum


def test_it_begins_as_it_is_asked_to_and_takes_the_dtype_of_its_first() -> None:
    part = WeightedSum(1.0, 0.0)
    x, z = torch.randn(2, 3, 4, dtype=torch.bfloat16), torch.randn(2, 3, 4)
    assert torch.equal(part(x, z), x)
    assert part(x, z).dtype == torch.bfloat16


def test_formula_and_gradients() -> None:
    part = WeightedSum(0.3, -0.7).double()
    dice = torch.Generator().manual_seed(0)
    x, z = torch.randn(2, 2, 3, 4, dtype=torch.float64, generator=dice)
    x.requires_grad_()
    z.requires_grad_()
    y = part(x, z)
    expected = 0.3 * x.detach().numpy() - 0.7 * z.detach().numpy()
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-6, atol=1e-6)
    y.sin().sum().backward()
    pull = np.cos(y.detach().numpy())
    assert part.first.grad is not None
    assert part.second.grad is not None
    np.testing.assert_allclose(part.first.grad, (pull * x.detach().numpy()).sum(), rtol=1e-9)
    np.testing.assert_allclose(part.second.grad, (pull * z.detach().numpy()).sum(), rtol=1e-9)
