import pytest
import torch
from torch import nn

from archwright.machine.precision import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_run_in_it_and_weights_stay(name: str, dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 4)
    with Precision(name, CPU).autocast():
        assert layer(torch.ones(1, 4)).dtype == dtype
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_only_fp16_scales(name: str) -> None:
    precision = Precision(name, CPU)
    loss = torch.tensor(2.0)
    assert precision.scaled(loss) is loss
    assert not precision.scales
    assert precision.state() == {}


def test_fp16_scales_up_and_back_down() -> None:
    precision = Precision("fp16", CPU)
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    precision.scaled((weight * 3).sum()).backward()
    assert weight.grad is not None
    assert weight.grad.item() == 3 * 2.0**16
    precision.unscale([optimizer])
    assert weight.grad.item() == 3
    precision.step(optimizer)
    precision.update()
    assert weight.item() == 1 - 0.5 * 3


def test_fp16_skips_a_step_that_overflows_and_lowers_its_scale() -> None:
    precision = Precision("fp16", CPU)
    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    precision.scaled((weight * float("inf")).sum()).backward()
    precision.unscale([optimizer])
    precision.step(optimizer)
    precision.update()
    assert weight.item() == 1
    assert precision.state()["scale"] == 2.0**15


def test_its_state_comes_back() -> None:
    precision, other = Precision("fp16", CPU), Precision("fp16", CPU)
    precision.restore(precision.state() | {"scale": 8.0, "_growth_tracker": 5})
    precision.scaled(torch.tensor(1.0))
    other.restore(precision.state())
    assert other.scaled(torch.tensor(1.0)).item() == 8.0
    assert other.state() == precision.state()
