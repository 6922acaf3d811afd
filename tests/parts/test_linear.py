"""Maps, tables and their joint products beside plain sums."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.parts.linear import Embedding, Linear, fused_linears


def made(d_in: int, d_out: int, *, bias: bool) -> Linear:
    part = Linear(d_in, d_out, bias=bias)
    torch.nn.init.normal_(part.weight, 0.0, 1.5 / math.sqrt(d_in))
    if part.bias is not None:
        torch.nn.init.normal_(part.bias, 0.0, 0.3)
    return part.double()


def by_hand(part: Linear, x: Tensor) -> np.ndarray:
    bias = 0.0 if part.bias is None else part.bias.detach().numpy()
    return np.einsum("...i,oi->...o", x.detach().numpy(), part.weight.detach().numpy()) + bias


def test_linear() -> None:
    part = Linear(3, 2, bias=True).double()
    with torch.no_grad():
        part.weight.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
        part.bias.copy_(torch.tensor([10.0, 20]))
    assert part(torch.tensor([[1.0, 0, -1]]).double()).tolist() == [[8, 18]]
    assert Linear(3, 2).bias is None


def test_embedding() -> None:
    part = Embedding(3, 2)
    with torch.no_grad():
        part.weight.copy_(torch.arange(6).view(3, 2))
    assert part(torch.tensor([[2, 0]])).tolist() == [[[4, 5], [0, 1]]]


@pytest.mark.parametrize("biases", [(False, False, False), (True, False, True), (False,), (True,)])
def test_a_joint_product_is_each_map_alone(biases: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    maps = [made(5, 2 + i, bias=bias) for i, bias in enumerate(biases)]
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    found = fused_linears(x, maps)
    pulls = [torch.randn_like(y) for y in found]
    for part, y in zip(maps, found, strict=True):
        np.testing.assert_allclose(y.detach().numpy(), by_hand(part, x), rtol=1e-12, atol=1e-12)
    torch.autograd.backward(found, pulls)
    rows = x.detach().reshape(-1, 5).numpy()
    for part, pull in zip(maps, pulls, strict=True):
        by_row = pull.reshape(-1, part.d_out).numpy()
        np.testing.assert_allclose(part.weight.grad, by_row.T @ rows, rtol=1e-12, atol=1e-12)
        if part.bias is not None:
            np.testing.assert_allclose(part.bias.grad, by_row.sum(0), rtol=1e-12, atol=1e-12)
    expected = sum(p.numpy() @ m.weight.detach().numpy() for p, m in zip(pulls, maps, strict=True))
    np.testing.assert_allclose(x.grad, expected, rtol=1e-12, atol=1e-12)


def test_a_joint_product_under_autocast_is_narrow() -> None:
    maps = [made(5, 3, bias=True).float(), made(5, 4, bias=False).float()]
    with torch.autocast("cpu", torch.bfloat16):
        found = fused_linears(torch.randn(2, 5), maps)
    assert [y.dtype for y in found] == [torch.bfloat16] * 2
    assert [y.shape for y in found] == [(2, 3), (2, 4)]
