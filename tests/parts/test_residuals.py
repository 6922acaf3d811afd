"""Residual wirings beside their formulas."""

import pytest
import torch
from torch import Tensor, nn

from archwright.parts.residuals import RESIDUALS
from archwright.spec import residuals as spec


class Scale(nn.Module):
    """A stand-in for a norm: no two are alike and none is the identity."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Scale.made += 1
        self.factor = 1 + Scale.made / 10

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + x.square()


def attention(x: Tensor) -> Tensor:
    return x.cumsum(1) * 0.3


def feedforward(x: Tensor) -> Tensor:
    return x.tanh() - 0.1


BRANCHES = {"attention": attention, "feedforward": feedforward}


def made(choice: spec.Residual, names: list[str]) -> nn.Module:
    Scale.made = 0
    part: nn.Module = RESIDUALS[type(choice)](choice, names, Scale)
    return part


def by_formula(choice: spec.Residual, x: Tensor, names: list[str], norms: nn.Module) -> Tensor:
    for name in names:
        f, norm = BRANCHES[name], norms.norms[name]
        match choice:
            case spec.PostNorm():
                x = norm(x + f(x))
            case spec.PreNorm():
                x = x + f(norm(x))
            case spec.SandwichNorm():
                x = x + norms.out_norms[name](f(norm(x)))
            case _:
                raise AssertionError(choice)
    return x


CHOICES = pytest.mark.parametrize("choice", [kind() for kind in RESIDUALS], ids=lambda c: c.kind)


@CHOICES
@pytest.mark.parametrize(
    "names", [["attention", "feedforward"], ["attention"], ["feedforward"]], ids=" ".join
)
def test_formula(choice: spec.Residual, names: list[str]) -> None:
    part = made(choice, names)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    found = part(x, {name: BRANCHES[name] for name in names})
    torch.testing.assert_close(found, by_formula(choice, x, names, part), rtol=1e-13, atol=1e-13)


@CHOICES
def test_each_branch_has_norms_of_its_own(choice: spec.Residual) -> None:
    part = made(choice, ["attention", "feedforward"])
    factors = {m.factor for m in part.modules() if isinstance(m, Scale)}
    assert len(factors) == (4 if choice.kind == "sandwich" else 2)


@CHOICES
def test_dropout_is_of_the_branch_alone_and_in_training_alone(choice: spec.Residual) -> None:
    choice = choice.model_copy(update={"dropout": 0.25})
    part: nn.Module = RESIDUALS[type(choice)](choice, ["feedforward"], nn.Identity)
    x, one = torch.zeros(1, 1, 100_000), torch.ones(1, 1, 100_000)
    torch.manual_seed(0)
    kept = part.train()(x, {"feedforward": lambda x: one})
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (kept == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    stream = part(one, {"feedforward": torch.zeros_like})
    assert torch.equal(stream, one)
    assert torch.equal(part.eval()(x, {"feedforward": lambda x: one}), one)


@CHOICES
def test_the_stream_is_not_changed_in_place(choice: spec.Residual) -> None:
    part = made(choice, ["attention", "feedforward"])
    x = torch.randn(1, 3, 4)
    before = x.clone()
    part(x, BRANCHES)
    assert torch.equal(x, before)
