"""Residual wirings beside their formulas."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright.classic.spec.reversible import Reversible
from archwright.model import build
from archwright.parts import residuals
from archwright.parts.branch import Branch
from archwright.parts.linear import Linear
from archwright.parts.residuals import RESIDUALS, Wired
from archwright.parts.sharing import LayerInfo
from archwright.spec import residuals as spec
from archwright.spec.model_spec import ModelSpec

DIM = 6


class Scale(nn.Module):
    """A stand-in for a norm: no two are alike and none is the identity."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Scale.made += 1
        self.factor = 1 + Scale.made / 10

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + x.square()


class Bare(Branch):
    """A branch that tells nothing of its maps."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        assert projected is None
        return self.function(x)


def bare(function: Callable[[Tensor], Tensor]) -> Wired:
    return Wired(Bare(function))


BRANCHES = {
    "attention": bare(lambda x: x.cumsum(1) * 0.3),
    "recurrence": bare(lambda x: x.sin() * 0.7),
    "feedforward": bare(lambda x: x.tanh() - 0.1),
}


def made(choice: spec.Residual, names: list[str]) -> nn.Module:
    Scale.made = 0
    part: nn.Module = RESIDUALS[type(choice)](choice, DIM, place(Scale), groups(names))
    return part


def place(new_norm: Callable[[], nn.Module]) -> LayerInfo:
    """Return the place of a layer with norms of another make."""

    class Place(LayerInfo):
        def new_norm(self, dim: int) -> nn.Module:
            return new_norm()

    return Place()


def groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Return names in groups: what is joined by + stands side by side."""
    return {name.split("+")[0]: name.split("+") for name in names}


def grouped(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the branches in groups."""
    return {key: {name: BRANCHES[name] for name in group} for key, group in groups(names).items()}


def by_formula(choice: spec.Residual, x: Tensor, names: list[str], part: Any) -> Tensor:
    start = x
    for name, group in groups(names).items():
        norms = dict(part.norms)
        norm = norms.get("shared", norms.get(name))

        def f(h: Tensor, out: Any = None, group: list[str] = group) -> Tensor:
            """The sum over the group, where every branch may have a norm of its result."""
            outs = {name: BRANCHES[name](h) for name in group}
            outs = outs if out is None else {name: out[name](outs[name]) for name in group}
            return sum((choice.multiplier[name] * outs[name] for name in group), torch.zeros(()))

        match choice:
            case spec.PostNorm():
                x = norm(x + f(x))
            case spec.PreNorm(skip_norm=skip_norm):
                x = x + f(x if name == skip_norm else norm(x))
            case spec.SandwichNorm():
                x = x + f(norm(x), part.out_norms)
            case spec.OutputNorm():
                x = x + f(x, norms)
            case spec.Parallel():
                x = x + f(norm(start))
            case spec.NormedResidual():
                x = choice.alpha[name] * norm(x) + f(norm(x))
            case spec.DeepNorm(alpha=alpha):
                assert alpha != "auto"
                x = norm(alpha * x + f(x))
            case Reversible():
                first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
                x = torch.cat((second, first + f(norm(second))), -1)
            case _:
                raise AssertionError(choice)
    return x


DEEPNORM = spec.DeepNorm(alpha=1.0, gain=1.0)
"""Without "auto", which the whole model settles."""
PLAIN = [DEEPNORM if kind is spec.DeepNorm else kind() for kind in RESIDUALS]
UNEVEN = spec.PerBranch(attention=0.5, recurrence=1.75, feedforward=-3.0)
OTHERS = [
    *[choice.model_copy(update={"multiplier": UNEVEN}) for choice in PLAIN],
    spec.PreNorm(skip_norm="attention"),
    spec.PreNorm(skip_norm="feedforward", multiplier=UNEVEN),
    spec.Parallel(num_norms=2),
    spec.Parallel(num_norms=2, multiplier=UNEVEN),
    spec.NormedResidual(alpha=spec.PerBranch(attention=2.5, feedforward=0.25), multiplier=UNEVEN),
    spec.DeepNorm(alpha=2.5, gain=1.0),
]
CHOICES = pytest.mark.parametrize("choice", PLAIN, ids=lambda c: c.kind)


@pytest.mark.parametrize("choice", PLAIN + OTHERS, ids=str)
@pytest.mark.parametrize(
    "names",
    [
        ["attention", "feedforward"],
        ["attention"],
        ["feedforward"],
        ["attention+recurrence", "feedforward"],
        ["recurrence"],
    ],
    ids=" ".join,
)
def test_formula(choice: spec.Residual, names: list[str]) -> None:
    part = made(choice, names)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    found = part(x, grouped(names))
    torch.testing.assert_close(found, by_formula(choice, x, names, part), rtol=1e-13, atol=1e-13)


@CHOICES
def test_each_branch_has_norms_of_its_own(choice: spec.Residual) -> None:
    part = made(choice, ["attention", "feedforward"])
    factors = {m.factor for m in part.modules() if isinstance(m, Scale)}
    assert len(factors) == {"sandwich": 4, "parallel": 1}.get(choice.kind, 2)
    bare = made(spec.PreNorm(skip_norm="attention"), ["attention", "feedforward"])
    assert list(bare.norms) == ["feedforward"]
    both = made(spec.Parallel(num_norms=2), ["attention", "feedforward"])
    assert len([m for m in both.modules() if isinstance(m, Scale)]) == 2


@CHOICES
def test_dropout_is_of_the_branch_alone_and_in_training_alone(choice: spec.Residual) -> None:
    choice = choice.model_copy(update={"dropout": 0.25})
    part: nn.Module = RESIDUALS[type(choice)](
        choice, 1, place(nn.Identity), groups(["feedforward"])
    )
    x, one = torch.zeros(1, 1, 100_000), torch.ones(1, 1, 100_000)
    torch.manual_seed(0)
    ones = {"feedforward": {"feedforward": bare(torch.ones_like)}}
    changed = slice(x.shape[-1] - x.shape[-1] // choice.streams, None)
    kept = part.train()(x, ones)[..., changed]
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert (kept == 0).double().mean().item() == pytest.approx(0.25, abs=0.01)
    stream = part(one, {"feedforward": {"feedforward": bare(torch.zeros_like)}})
    assert torch.equal(stream, one)
    assert torch.equal(part.eval()(x, ones)[..., changed], one[..., changed])


@CHOICES
def test_the_stream_is_not_changed_in_place(choice: spec.Residual) -> None:
    names = ["attention+recurrence", "feedforward"]
    part = made(choice, names)
    x = torch.randn(1, 3, 4)
    before = x.clone()
    part(x, grouped(names))
    assert torch.equal(x, before)


class Gated(Branch):
    """A branch that tells the maps that read x, with a bias where it is asked."""

    def __init__(self, dim: int, widths: list[int], bias: bool) -> None:
        super().__init__()
        self.maps = nn.ModuleList(Linear(dim, n, bias=bias) for n in widths)
        self.calls: list[bool] = []

    @property
    def inputs(self) -> list[Linear]:
        return [*self.maps]

    def forward(self, x: Tensor, projected: Sequence[Tensor] | None = None) -> Tensor:
        self.calls.append(projected is not None)
        parts = [read(x) for read in self.maps] if projected is None else projected
        first, *rest = [part.tanh().cumsum(1) for part in parts]
        return torch.cat((first, *rest), -1)[..., : x.shape[-1]] * first.sum(-1, keepdim=True)


@pytest.mark.parametrize("num_norms", [1, 2])
@pytest.mark.parametrize("biases", [(False, False), (True, False), (True, True)], ids=str)
def test_parallel_branches_are_the_same_fused_and_apart(
    biases: tuple[bool, bool], num_norms: int
) -> None:
    torch.manual_seed(0)
    one, other = Gated(6, [3, 4, 5], biases[0]), Gated(6, [2, 7], biases[1])
    for parameter in (*one.parameters(), *other.parameters()):
        nn.init.normal_(parameter)
    both = nn.ModuleList([one, other]).double()
    part = made(spec.Parallel(num_norms=num_norms, multiplier=UNEVEN), ["attention", "feedforward"])
    x = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    into, given = torch.randn_like(x), [x, *both.parameters()]
    found = part(
        x, {"attention": {"attention": Wired(one)}, "feedforward": {"feedforward": Wired(other)}}
    )
    alone = {"attention": {"attention": bare(one)}, "feedforward": {"feedforward": bare(other)}}
    apart = part(x, alone)
    assert one.calls == other.calls == [num_norms == 1, False]
    torch.testing.assert_close(found, apart, rtol=1e-12, atol=1e-12)
    grads = (torch.autograd.grad(out, given, into) for out in (found, apart))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def test_a_number_that_follows_attention_is_equal_to_the_same_number() -> None:
    both = {"attention": 2.0, "recurrence": 2.0, "cross_attention": 3.0}
    numbers = spec.PerBranch.model_validate(both)
    assert numbers == spec.PerBranch.model_validate({"attention": 2.0, "cross_attention": 3.0})
    assert numbers["recurrence"] == 2.0
    assert spec.PerBranch.model_validate({"recurrence": 2.0})["recurrence"] == 2.0


def test_branches_side_by_side_are_computed_as_one_product() -> None:
    torch.manual_seed(0)
    one, other = Gated(6, [3, 4], bias=False), Gated(6, [2, 7], bias=True)
    for parameter in (*one.parameters(), *other.parameters()):
        nn.init.normal_(parameter)
    part = made(spec.PreNorm(multiplier=UNEVEN), ["attention+recurrence"])
    x = torch.randn(2, 4, 6)
    found = part(x, {"attention": {"attention": Wired(one), "recurrence": Wired(other)}})
    apart = part(x, {"attention": {"attention": bare(one), "recurrence": bare(other)}})
    assert one.calls == other.calls == [True, False]
    torch.testing.assert_close(found, apart)


@pytest.mark.parametrize("feedforward", ["swiglu", "gelu", "geglu"])
@pytest.mark.parametrize("gate", ["none", "head", "value"])
def test_a_parallel_model_is_the_same_fused_and_apart(
    feedforward: str, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
        "residual.kind=parallel",
        "attention.num_heads=2",
        "attention.num_kv_heads=1",
        "attention.bias.key=true",
        "feedforward.bias.up=true",
        f"feedforward.kind={feedforward}",
        f"attention.gate={gate}",
    )
    model, row = build(small).double(), torch.arange(10).view(2, 5)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    found = []
    for _ in range(2):
        out = model(row).logits
        found.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
        monkeypatch.setattr(residuals, "fused_linears", lambda x, maps: [m(x) for m in maps])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
