import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archwright.machine import float8
from archwright.machine.decide import decide
from archwright.machine.float8 import Float8Products, check_float8
from archwright.machine.precision import Precision
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec


def test_it_is_for_gpus() -> None:
    with pytest.raises(UserError, match=r'machine\.precision: found "fp8", which needs a GPU'):
        decide(MachineSpec(device="cpu", precision="fp8"))


def test_older_gpus_do_not_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    with pytest.raises(UserError, match=r"of compute capability 8\.9, this one has 8\.6"):
        check_float8("cuda")


def test_its_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(float8, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("pip install archwright[fp8]")):
        check_float8("cuda")
    monkeypatch.setattr(float8, "find_spec", lambda name: name)
    check_float8("cuda")


class Zeros(nn.Module):
    """Stands for a product of 8 bits, so that one sees where it is taken."""

    def __init__(self, d_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.d_out = d_out

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], self.d_out)


@pytest.mark.parametrize(
    ("rows", "d_in", "d_out", "taken"),
    [(16, 32, 48, True), (16, 32, 64, False), (16, 24, 48, False), (8, 32, 48, False)],
    ids=["fits", "head", "side", "rows"],
)
def test_what_the_units_do_not_take_is_left(
    rows: int, d_in: int, d_out: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float8, "_float8_map", lambda d_out, d_in, bias, emulated: Zeros(d_out))
    x, weight = torch.ones(2, rows // 2, d_in), torch.ones(d_out, d_in)
    with Float8Products(spared=64):
        y = F.linear(x, weight)
    assert y.shape == (2, rows // 2, d_out)
    assert torch.equal(y.float(), torch.full_like(y, 0.0 if taken else d_in).float())


def test_products_are_those_of_rounded_numbers() -> None:
    """Of two numbers with three bits behind the point, each is at most 1/16 off."""
    pytest.importorskip("torchao.float8")
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 64, generator=generator).requires_grad_() for n in (32, 48))
    with Precision("fp8", torch.device("cpu")).autocast():
        y = F.linear(x, weight)
    exact = x @ weight.T
    error = (y - exact).norm() / exact.norm()
    assert 0.01 < error < 1 / 8
    y.float().sum().backward()
    assert weight.grad is not None
    assert (weight.grad - x.sum(0)).norm() / weight.grad.norm() < 1 / 16
