"""Roles of parameters, and which optimizer gets them."""

import pytest
import torch
from torch import nn

from archwright.model.build import build
from archwright.optim.groups import (
    OPTIMIZERS,
    build_optimizers,
    roles,
    set_learning_rates,
    without_role,
)
from archwright.optim.muon import Muon
from archwright.parts.branch import Branch
from archwright.parts.norms import RMSNorm
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import RMSNorm as RMSNormSpec
from archwright.spec.optimizers import SGD as SGDSpec  # noqa: N811
from archwright.spec.optimizers import AdamW as AdamWSpec
from archwright.spec.optimizers import Muon as MuonSpec
from archwright.spec.optimizers import Optimizer as OptimizerSpec
from archwright.spec.overrides import override

SMALL = ("dim=32", "num_layers=1", "vocab_size=64", "context_length=16")


def small(*assignments: str) -> nn.Module:
    return build(override(ModelSpec(), (*SMALL, *assignments)))


def test_roles_of_the_decoder():
    found = roles(small("head.tied=false", 'position={kind="learned"}'))
    assert found["embedding.weight"] == "embedding"
    assert found["head.weight"] == "head"
    assert {found[name] for name in found if name.startswith("position")} == {"embedding"}
    assert {found[name] for name in found if "norm" in name} == {"vector"}
    matrices = {name for name, role in found.items() if role == "matrix"}
    assert {name.split(".")[-2] for name in matrices} >= {"query", "key", "value", "out", "up"}


def test_roles_of_experts():
    """Stacks of matrices are matrices, stacks of biases are not."""
    found = roles(small("feedforward.kind=experts", "feedforward.expert.bias=true"))
    inside = {
        name.split("feedforward.")[1]: role for name, role in found.items() if "experts" in name
    }
    assert inside == {
        f"experts.{at}.{what}": role
        for at in ("gate", "up", "down")
        for what, role in (("weight", "matrix"), ("bias", "vector"))
    }
    assert found["layers.0.feedforward.router.weight"] == "matrix"


def test_muon_moves_each_expert_as_a_matrix_of_its_own():
    model = small("feedforward.kind=experts", "feedforward.expert.hidden_dim=16")
    model(torch.arange(16)[None]).logits.square().mean().backward()
    up = model.layers[0].feedforward.experts.up.weight
    before, gradient = up.detach().clone(), up.grad.clone()
    build_optimizers(model, MuonSpec(weight_decay=0.0))["muon"].step()
    for e in range(8):
        alone = nn.Parameter(before[e].clone())
        alone.grad = gradient[e].clone()
        alike = MuonSpec()
        single = Muon(
            [alone], lr=alike.lr, momentum=alike.momentum, nesterov=alike.nesterov,
            method=alike.method, steps=alike.steps, weight_decay=0.0, dtype=torch.float32,
        )  # fmt: skip
        single.step()
        torch.testing.assert_close(up[e], alone)


def test_a_tied_head_is_the_embedding():
    found = roles(small("head.tied=true"))
    assert found["embedding.weight"] == "embedding"
    assert "head" not in found.values()


class Foreign(nn.Module):
    """Another project's names; with a matrix of the head's shape in its middle."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(48, 8), nn.Embedding(8, 8)
        self.conv = nn.Conv1d(8, 8, 3, groups=8, padding=1)
        self.mlp = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 8))
        self.experts = nn.Parameter(torch.randn(4, 8, 16))
        self.ln = nn.LayerNorm(8)
        self.output = nn.Linear(8, 48, bias=False)
        if tied:
            self.output.weight = self.wte.weight

    def forward(self, x):
        x = self.wte(x) + self.wpe(x % 8)
        x = x + self.conv(x.mT).mT + self.mlp(x) + (x @ self.experts.sum(0)) @ self.experts[0].mT
        return self.output(self.ln(x))


def test_roles_of_a_foreign_module():
    assert roles(Foreign()) == {
        "experts": "matrix",
        "wte.weight": "embedding",
        "wpe.weight": "embedding",
        "conv.weight": "kernel",
        "conv.bias": "vector",
        "mlp.0.weight": "matrix",
        "mlp.0.bias": "vector",
        "mlp.2.weight": "matrix",
        "mlp.2.bias": "vector",
        "ln.weight": "vector",
        "ln.bias": "vector",
        "output.weight": "head",
    }
    tied = roles(Foreign(tied=True))
    assert tied["mlp.0.weight"] == "matrix"  # though it has the shape of the embedding
    assert "head" not in tied.values()


class Stated(Branch):
    """A branch with parameters of three roles, one of them in a module inside."""

    def __init__(self, **roles: str) -> None:
        super().__init__()
        self.A_log, self.factor = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))
        self.inner = nn.Linear(4, 4, bias=False)
        self.roles = roles


def test_roles_that_a_branch_states_come_first() -> None:
    model = nn.Sequential(Stated(**{"A_log": "vector", "inner.weight": "kernel"}))
    assert roles(model) == {"0.A_log": "vector", "0.factor": "matrix", "0.inner.weight": "kernel"}
    assert without_role(model) == ["0.factor"]
    muon = build_optimizers(model, MuonSpec())["muon"].param_groups
    assert [name for group in muon for name in group["param_names"]] == ["0.factor"]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"A_lgo": "vector"}, 'Stated.roles: found "A_lgo": "vector"; .* Did you mean "A_log"?'),
        (
            {"A_log": "scalar"},
            'found "A_log": "scalar"; .* one of the roles vector, matrix, kernel',
        ),
    ],
)
def test_wrong_roles_are_one_line(wrong: dict[str, str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        roles(Stated(**wrong))


def test_parameters_of_the_package_need_no_role() -> None:
    every = (
        "position.kind=transformer_xl",
        "attention.qk_norm.kind=rms",
        "attention.qk_norm_over=per_head",
    )
    assert without_role(small(*every)) == []
    assert without_role(small("feedforward.kind=experts", "feedforward.expert.bias=true")) == []


@pytest.mark.parametrize("spec", [AdamWSpec(), MuonSpec()], ids=lambda spec: spec.kind)
@pytest.mark.parametrize("make", [Foreign, small], ids=["foreign", "decoder"])
def test_every_trainable_parameter_is_moved_once_and_matrices_decay(make, spec):
    model = make()
    next(iter(model.parameters())).requires_grad_(False)
    optimizers = build_optimizers(model, spec)
    groups = [group for o in optimizers.values() for group in o.param_groups]
    moved = [id(p) for group in groups for p in group["params"]]
    assert sorted(moved) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    for group in groups:
        for p in group["params"]:
            assert group["weight_decay"] == (0.1 if p.ndim >= 2 else 0.0)


def test_muon_takes_the_matrices_inside_and_adamw_the_rest():
    model = Foreign()
    spec = MuonSpec(lr=0.02, adamw_lr=0.003, betas=(0.8, 0.9), momentum=0.9, steps=3)
    optimizers = build_optimizers(model, spec)
    assert set(optimizers) == {"adamw", "muon"}
    (muon,) = optimizers["muon"].param_groups
    assert set(muon["param_names"]) == {"mlp.0.weight", "mlp.2.weight", "experts"}
    assert (muon["lr"], muon["momentum"], muon["steps"]) == (0.02, 0.9, 3)
    assert muon["dtype"] == "float32"
    adamw = optimizers["adamw"].param_groups
    assert {name for group in adamw for name in group["param_names"]} >= {
        "wte.weight",
        "output.weight",
        "conv.weight",
        "ln.weight",
    }
    assert all((g["lr"], g["betas"]) == (0.003, (0.8, 0.9)) for g in adamw)
    auto = build_optimizers(model, MuonSpec(lr=0.02), precision=torch.bfloat16)
    assert auto["adamw"].param_groups[0]["lr"] == 0.02
    assert auto["muon"].param_groups[0]["dtype"] == "bfloat16"


def test_adamw_is_fused_and_is_adamw():
    ours, theirs = Foreign(), Foreign()
    theirs.load_state_dict(ours.state_dict())
    optimizers = build_optimizers(ours, AdamWSpec(weight_decay=0.1))
    assert optimizers["adamw"].defaults["fused"]
    decayed = [p for p in theirs.parameters() if p.ndim >= 2]
    rest = [p for p in theirs.parameters() if p.ndim < 2]
    plain = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        lr=3e-3,
        betas=(0.9, 0.95),
        foreach=False,
    )
    tokens = torch.arange(12).reshape(1, 12)
    for _ in range(3):
        for model, chosen in [(ours, optimizers["adamw"]), (theirs, plain)]:
            chosen.zero_grad()
            model(tokens).square().mean().backward()
            chosen.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_learning_rates_are_shares_of_each_group_s_own_peak():
    optimizers = build_optimizers(Foreign(), MuonSpec(lr=0.02, adamw_lr=0.004))
    set_learning_rates(optimizers, 0.5)
    set_learning_rates(optimizers, 0.25)
    assert optimizers["muon"].param_groups[0]["lr"] == pytest.approx(0.005)
    assert all(g["lr"] == pytest.approx(0.001) for g in optimizers["adamw"].param_groups)


def test_a_frozen_model_is_refused():
    with pytest.raises(ValueError, match="no trainable parameters"):
        build_optimizers(Foreign().requires_grad_(False), AdamWSpec())


def test_every_optimizer_of_the_spec_is_here():
    assert set(OPTIMIZERS) == set(OptimizerSpec.kinds.values())


def test_a_model_of_vectors_needs_no_muon():
    assert set(build_optimizers(nn.LayerNorm(4), MuonSpec())) == {"adamw"}
    assert set(build_optimizers(nn.Linear(4, 4, bias=False), MuonSpec())) == {"muon"}
    assert isinstance(build_optimizers(nn.Linear(4, 4), MuonSpec())["muon"], Muon)


def test_rates_of_a_model_are_those_of_adamw_and_leave_the_decay_alone():
    model = small()
    model.lr_scales = {"matrix": 0.25, "head": 0.5}
    role_of = roles(model)
    groups = build_optimizers(model, AdamWSpec(lr=0.01, weight_decay=0.1))["adamw"].param_groups
    assert {name for group in groups for name in group["param_names"]} == set(role_of)
    for group in groups:
        for name in group["param_names"]:
            rate = model.lr_scales.get(role_of[name], 1.0)
            assert group["initial_lr"] == group["lr"] == pytest.approx(0.01 * rate), name
            decay = 0.0 if role_of[name] == "vector" else 0.01 * 0.1
            assert group["lr"] * group["weight_decay"] == pytest.approx(decay), name
    optimizers = build_optimizers(model, MuonSpec(lr=0.02, adamw_lr=0.004))
    (matrices,) = optimizers["muon"].param_groups
    assert matrices["initial_lr"] == matrices["lr"] == pytest.approx(0.02 * 0.25**0.5)
    assert matrices["lr"] * matrices["weight_decay"] == pytest.approx(0.02 * 0.1)
    assert {group["lr"] for group in optimizers["adamw"].param_groups} == {0.002, 0.004}


def test_rows_of_a_norm_are_vectors():
    model = nn.ModuleDict({"norm": RMSNorm(RMSNormSpec(), 8, 4)})
    assert roles(model) == {"norm.weight": "vector"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_steps_against_the_gradient(momentum: float) -> None:
    """As the formula in float64, with decay of matrices only."""
    model = small().double()
    optimizers = build_optimizers(model, SGDSpec(lr=0.5, momentum=momentum, weight_decay=0.01))
    decayed = {n for n, role in roles(model).items() if role != "vector"}
    expected = {n: p.detach().clone() for n, p in model.named_parameters()}
    sums = {n: torch.zeros_like(p) for n, p in expected.items()}
    for _ in range(3):
        model(torch.arange(16)[None]).logits.square().mean().backward()
        for n, p in model.named_parameters():
            sums[n] = momentum * sums[n] + p.grad + 0.01 * (n in decayed) * expected[n]
            expected[n] = expected[n] - 0.5 * sums[n]
        optimizers["sgd"].step()
        optimizers["sgd"].zero_grad()
        for n, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), expected[n], rtol=1e-12, atol=1e-12)
