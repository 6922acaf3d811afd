"""Transposed products have the values and gradients of plain ones."""

import pytest
import torch

from archwright.cpu.transposed import Product, _apart
from tests.parts.test_linear import made


@pytest.mark.parametrize("d_out", [3, 8, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_a_compiled_map_has_a_backward_pass_of_its_own(d_out: int, bias: bool) -> None:
    """Either factor may be the narrower one, which is transposed."""
    part, x = made(8, d_out, bias=bias), torch.randn(2, 5, 8).double().requires_grad_()
    given = [x, *part.parameters()]
    grad = torch.randn(2, 5, d_out).double()
    expected = torch.autograd.grad(part(x), given, grad)
    y = Product.apply(x, part.weight, part.bias)
    assert torch.equal(y, part(x))
    for ours, theirs in zip(torch.autograd.grad(y, given, grad), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_transposed_lies_on_different_lines_of_the_cache() -> None:
    for rows in (5, 32, 64, 4096):
        copied = _apart(torch.randn(rows, 3).bfloat16().t())
        assert copied.stride()[0] * 2 % 128 == 64
        assert copied.stride()[0] >= rows
