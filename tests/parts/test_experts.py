"""Mixtures of experts beside their formulas, token by token."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from archwright.losses import pop_aux_losses
from archwright.model import build
from archwright.parts import feedforward
from archwright.parts.feedforward import FEEDFORWARDS, Experts, rows_in_block
from archwright.parts.init import Glorot, initialise
from archwright.parts.linear import GroupedLinear, Linear, grouped_linear
from archwright.spec import feedforward as spec
from archwright.spec import init as init_spec
from archwright.spec import norms
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

DIM = 8
SWIGLU = spec.SwiGLU(hidden_dim=16)

CASES: dict[str, dict[str, Any]] = {
    "mixtral": {},
    "qwen2": {"normalize_weights": False, "shared": "gated", "shared_hidden_dim": 12},
    "gpt-oss": {
        "routing": {"kind": "softmax_of_chosen"},
        "router_bias": True,
        "expert": spec.ClampedSwiGLU(
            hidden_dim=16, limit=1.0, bias=spec.FeedForwardBias(up=True, down=True)
        ),
    },
    "deepseek v2": {
        "normalize_weights": False,
        "num_groups": 3,
        "top_groups": 2,
        "top_k": 3,
        "routed_scaling_factor": 1.7,
        "shared": "added",
        "shared_hidden_dim": 8,
    },
    "deepseek v3": {
        "routing": {"kind": "sigmoid"},
        "selection_bias": True,
        "num_groups": 3,
        "group_score": "top_two",
        "routed_scaling_factor": 2.5,
        "shared": "added",
        "shared_hidden_dim": 8,
    },
    "llama 4": {
        "routing": {"kind": "sigmoid"},
        "top_k": 1,
        "normalize_weights": False,
        "router_weight_on": "input",
        "shared": "added",
        "shared_hidden_dim": 8,
    },
    "phi 3.5": {"routing": {"kind": "sparsemixer"}, "normalize_weights": False, "jitter": 0.3},
    "sparsemixer of three": {"routing": {"kind": "sparsemixer"}, "jitter": 0.4, "top_k": 3},
    "dbrx": {"normalize_power": 2.0, "top_k": 4},
    "ernie 4.5": {"selection_bias": True, "normalize_min": 0.6},
    "lfm2": {"routing": {"kind": "sigmoid"}, "selection_bias": True, "normalize_eps": 0.2},
    "command a+": {"routing": {"kind": "sigmoid"}, "shared": "averaged", "shared_hidden_dim": 12},
    "jetmoe": {"routing": {"kind": "softmax_of_chosen"}, "out_bias": True},
    "normed": {
        "expert": spec.SwiGLU(hidden_dim=16, hidden_norm=norms.LayerNorm()),
        "shared": "added",
        "shared_hidden_dim": 8,
    },
    "plain": {"expert": spec.XIELU(hidden_dim=16), "top_k": 3},
    "nemotron 3 super": {
        "routing": {"kind": "sigmoid"},
        "routed_scaling_factor": 2.5,
        "expert": spec.SquaredReLU(hidden_dim=16),
        "latent_dim": 5,
        "shared": "added",
        "shared_hidden_dim": 12,
    },
    "odd widths": {"expert": spec.GeGLU(hidden_dim=7)},
    "all": {"top_k": 6},
    "one": {"num_experts": 1, "top_k": 1},
    "one of six": {"routing": {"kind": "sigmoid"}, "top_k": 1, "normalize_weights": True},
}
"""Choices of six experts, two for each token where nothing else is said."""

ALL = pytest.mark.parametrize("name", CASES)


def made(name: str, seed: int = 0, **changes: Any) -> Experts:
    given = {"num_experts": 6, "top_k": 2, "expert": SWIGLU} | CASES[name] | changes
    choice = spec.Experts(**given)
    part = Experts(choice, DIM).double().eval()
    dice = torch.Generator().manual_seed(seed)
    for tensor in itertools.chain(part.parameters(), part.buffers()):
        tensor.data.normal_(0.0, 1.5 * tensor.shape[-1] ** -0.5, generator=dice)
    return part


def tokens(rows: int = 10) -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(2, rows, DIM, generator=dice, dtype=torch.float64)


def by_hand(part: Experts, x: Tensor) -> Tensor:
    """The formula, one token and one expert after the other."""
    s, state = part.spec, part.state_dict()
    logits = state["router.weight"] @ x
    if s.router_bias:
        logits = logits + state["router.bias"]
    if s.routing.kind == "sparsemixer":
        chosen, weights = mixed_sparsely(logits.tolist(), s.top_k, s.jitter)
    else:
        chosen, weights = chosen_by_hand(part, logits)
    if s.normalize_weights:
        size = sum(w**s.normalize_power for w in weights) ** (1 / s.normalize_power)
        weights = [w / max(size + s.normalize_eps, s.normalize_min) for w in weights]
    out = torch.zeros_like(x)
    down, up = (
        torch.eye(DIM).double() if s.latent_dim == "none" else state[f"latent_{name}.weight"]
        for name in ("down", "up")
    )
    for e, w in zip(chosen, weights, strict=True):
        dense = expert(part, e)
        out += s.routed_scaling_factor * (
            up @ (dense(w * down @ x) if s.router_weight_on == "input" else w * dense(down @ x))
        )
    if part.shared is not None:
        gate = 1.0
        if s.shared == "gated":
            gate = torch.sigmoid(state["shared_gate.weight"][0] @ x).item()
        out += gate * part.shared(x[None])[0]
        out /= 2 if s.shared == "averaged" else 1
    return out + state["bias"] if s.out_bias else out


def mixed_sparsely(logits: list[float], top_k: int, jitter: float) -> tuple[list[int], list[float]]:
    """Take the best of those left, weighed among those left that are near it."""
    chosen: list[int] = []
    weights = []
    for _ in range(top_k):
        left = {e: s for e, s in enumerate(logits) if e not in chosen}
        best = max(left.values())
        near = [s for s in left.values() if (best - s) / max(abs(s), best) <= 2 * jitter]
        chosen.append(max(left, key=lambda e: left[e]))
        weights.append(1 / sum(math.exp(s - best) for s in near))
    return chosen, weights


def chosen_by_hand(part: Experts, logits: Tensor) -> tuple[list[int], list[float]]:
    """Take the best of the best groups; return them with their scores."""
    s, state = part.spec, part.state_dict()
    scores = {
        "softmax": logits.exp() / logits.exp().sum(),
        "sigmoid": 1 / (1 + (-logits).exp()),
        "softmax_of_chosen": logits,
    }[s.routing.kind].tolist()
    bias = state["selection_bias"].tolist() if s.selection_bias else [0.0] * s.num_experts
    ranks = [score + b for score, b in zip(scores, bias, strict=True)]
    size = s.num_experts // s.num_groups
    groups = [range(start, start + size) for start in range(0, s.num_experts, size)]
    best = 1 if s.group_score == "max" else 2
    groups.sort(key=lambda group: -sum(sorted(ranks[e] for e in group)[-best:]))
    allowed = [e for group in groups[: s.top_groups] for e in group]
    chosen = sorted(allowed, key=lambda e: -ranks[e])[: s.top_k]
    weights = [scores[e] for e in chosen]
    if s.routing.kind == "softmax_of_chosen":
        weights = [math.exp(w) for w in weights]
        weights = [w / sum(weights) for w in weights]
    return chosen, weights


def expert(part: Experts, e: int) -> nn.Module:
    """The dense feed-forward that an expert is, which has tests of its own."""
    choice = part.spec.expert
    dense: nn.Module = FEEDFORWARDS.make(choice, part.experts.up.d_in).double()
    state = part.experts.state_dict()
    alone = {k: v if k.startswith(("activation", "norm")) else v[e] for k, v in state.items()}
    dense.load_state_dict(alone)
    return dense.eval()


@ALL
@torch.no_grad()
def test_formula(name: str) -> None:
    part, x = made(name), tokens()
    expected = torch.stack([torch.stack([by_hand(part, t) for t in row]) for row in x])
    torch.testing.assert_close(part(x), expected, rtol=1e-9, atol=1e-9)


@ALL
@torch.no_grad()
def test_a_token_has_its_output_whoever_is_beside_it(name: str) -> None:
    part, x = made(name), tokens()
    whole = part(x)
    alone = torch.stack([torch.stack([part(t[None])[0] for t in row]) for row in x])
    torch.testing.assert_close(whole, alone, rtol=1e-12, atol=1e-12)


@ALL
def test_gradients(name: str) -> None:
    part, x = made(name), tokens(3)
    names = [name for name, _ in part.named_parameters()]

    def call(x: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(part, given, x)

    leaves = (x.requires_grad_(), *(p.detach().requires_grad_() for p in part.parameters()))
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@ALL
def test_rows_that_fill_up_an_expert_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed(most: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr(feedforward, "MOST_IN_BLOCK", most)
        torch.manual_seed(1)
        x = torch.randn(4, 120, DIM, dtype=torch.float64).requires_grad_()
        out = part(x)
        out.sin().sum().backward()
        grads = [p.grad for p in part.parameters()]
        part.zero_grad()
        load = part.load
        part.after_step(updated=False)
        return out, x.grad, *grads, load

    part = made(name)
    rows = 4 * 120 * part.spec.top_k
    assert rows_in_block(rows, part.spec.num_experts) >= 4
    for plain, filled in zip(passed(1), passed(32), strict=True):
        assert (plain is None) == (filled is None)
        if plain is not None:
            torch.testing.assert_close(filled, plain, rtol=1e-12, atol=1e-12)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any), st.sampled_from([2, 8]))
def test_every_row_is_found_where_experts_are_filled_up(counts: list[int], block: int) -> None:
    which = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    ends = torch.tensor(counts).cumsum(0, dtype=torch.int32)
    source, place, new_ends = feedforward._filled_up(which, ends, block)
    assert source[place].tolist() == list(range(len(which)))
    assert (
        len(source) == new_ends[-1] == -(-(len(which) + len(counts) * (block - 1)) // block) * block
    )
    sizes = new_ends.diff(prepend=new_ends.new_zeros(1))
    assert not (sizes % block).any()
    for e, rows in enumerate(source.split(sizes.tolist())):
        assert not counts[e] or set(which[rows].tolist()) == {e}
        assert place[which == e].tolist() == [
            int(new_ends[e] - sizes[e]) + i for i in range(counts[e])
        ]


@pytest.mark.parametrize("widths", [(8, 16), (7, 5), (8, 12)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_grouped_product(widths: tuple[int, int], dtype: torch.dtype) -> None:
    """Also of groups without rows, at either end and between."""
    dice = torch.Generator().manual_seed(0)
    x = torch.randn(9, widths[0], generator=dice).to(dtype).requires_grad_()
    weight = torch.randn(5, widths[1], widths[0], generator=dice).to(dtype).requires_grad_()
    ends, which = torch.tensor([0, 4, 4, 9, 9], dtype=torch.int32), [1] * 4 + [3] * 5
    found = grouped_linear(x, weight, ends)
    expected = torch.stack([weight[e] @ row for e, row in zip(which, x, strict=True)])
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    slope = torch.randn(found.shape, generator=dice).to(dtype)
    ours = torch.autograd.grad(found, (x, weight), slope)
    theirs = torch.autograd.grad(expected, (x, weight), slope)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=4 * tolerance)


@ALL
def test_float32_and_bfloat16_under_autocast(name: str) -> None:
    """They may choose others only where two are equal to a rounding, which they are not here."""
    part, x = made(name), tokens()
    expected = part(x)
    part.float()
    torch.testing.assert_close(part(x.float()).double(), expected, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        found = part(x.float())
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in part.parameters())
    assert (found.double() - expected).norm() < 0.03 * expected.norm()


def test_routing_is_in_float32_where_all_else_is_narrow() -> None:
    """Scores that bfloat16 cannot tell apart still rank."""
    part = made("mixtral", top_k=1).bfloat16()
    part.router.weight.data.zero_()
    part.router.weight.data[:, 0] = 1.0
    part.router.weight.data[3, 1] = 2.0**-10
    with torch.autocast("cpu", torch.bfloat16):
        chosen, _ = part.route(part.router(torch.ones(1, DIM).bfloat16()))
    assert chosen.tolist() == [[3]]


class TestAuxiliary:
    @pytest.mark.parametrize("kind", ["softmax", "sigmoid", "softmax_of_chosen"])
    def test_formula(self, kind: str) -> None:
        routing = {"kind": kind}
        part, x = made("mixtral", routing=routing, balance_loss=0.3, router_z_loss=0.7), tokens()
        part.train()(x)
        logits = x.flatten(0, 1) @ part.router.weight.T
        chosen = logits.topk(2).indices.flatten().tolist()
        p = 1 / (1 + (-logits).exp()) if kind == "sigmoid" else logits.exp()
        p = (p / p.sum(-1, keepdim=True)).mean(0)
        balance = 6 * sum(chosen.count(e) / len(chosen) * p[e] for e in range(6))
        expected = 0.3 * balance + 0.7 * logits.exp().sum(-1).log().square().mean()
        torch.testing.assert_close(
            pop_aux_losses(part)["router_loss"], expected, rtol=1e-12, atol=0
        )

    def test_balance_is_one_where_all_are_chosen_alike(self) -> None:
        part = made("all", balance_loss=1.0)
        part.router.weight.data.zero_()
        part.train()(tokens())
        assert pop_aux_losses(part)["router_loss"].item() == pytest.approx(1.0)

    def test_evaluation_asks_for_nothing(self) -> None:
        part = made("mixtral").eval()
        part(tokens())
        assert part.auxiliary is None
        part.train()
        with torch.no_grad():
            part(tokens())
        assert part.auxiliary is None


@pytest.mark.parametrize("top_k", [1, 2])
def test_an_expert_takes_the_first_tokens_of_each_row(top_k: int) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_experts": 3, "top_k": top_k, "expert": SWIGLU}
    full, free = (
        FEEDFORWARDS.make(spec.Experts(**options, **more), DIM).double()
        for more in ({"capacity": 2}, {})
    )
    for parameter in free.parameters():
        nn.init.normal_(parameter)
    full.load_state_dict(free.state_dict())
    x = torch.randn(2, 3, 7, DIM, dtype=torch.float64)
    found = full(x)
    for row, out in zip(x.flatten(0, 1), found.flatten(0, 1), strict=True):
        taken = [0, 0, 0]
        chosen, weights = free.route(free.router(row))
        for t, token in enumerate(row):
            expected = torch.zeros(DIM, dtype=torch.float64)
            for e, weight in zip(chosen[t].tolist(), weights[t], strict=True):
                taken[e] += 1
                if taken[e] <= 2:
                    each = [free.experts.gate, free.experts.up, free.experts.down]
                    gate, up, down = (m.weight[e] for m in each)
                    hidden = nn.functional.silu(gate @ token) * (up @ token)
                    expected += weight * (down @ hidden)
            torch.testing.assert_close(out[t], expected)
        assert max(taken) > 2


def test_each_expert_starts_as_a_dense_one_would() -> None:
    stack, dense = GroupedLinear(3, 6, 4, active_fraction=1.0), Linear(6, 4)
    glorot = Glorot(init_spec.Glorot(embedding_std=0.02), 2, 6)
    initialise(nn.ModuleDict({"up": stack}), glorot, seed=5)
    for e in range(3):
        initialise(nn.ModuleDict({"up": nn.ModuleDict({str(e): dense})}), glorot, seed=5)
        assert torch.equal(stack.weight[e], dense.weight)


def test_the_selection_bias_is_saved_and_has_no_gradient() -> None:
    part = made("deepseek v3")
    assert "selection_bias" in part.state_dict()
    assert "selection_bias" not in dict(part.named_parameters())
    small = ModelSpec(dim=16, num_layers=1, vocab_size=32).override(
        "feedforward.kind=experts", "feedforward.selection_bias=true"
    )
    assert not build(small).layers[0].feedforward.selection_bias.any()


def test_what_is_computed_again_is_no_load() -> None:
    part = made("deepseek v3", selection_bias_update_rate=0.5).train()
    x = tokens()
    part(x)
    assert part.load is not None
    before = part.load.clone()
    part.first_pass = False
    part(x)
    assert torch.equal(part.load, before)
    part.first_pass = True
    part(x)
    assert torch.equal(part.load, 2 * before)


def test_experts_with_little_load_are_chosen_more_often() -> None:
    part = made("deepseek v3", selection_bias_update_rate=0.5)
    before = part.selection_bias.clone()
    part.load = torch.tensor([4.0, 0.0, 2.0, 2.0, 1.0, 3.0][: len(before)])
    mean = part.load.mean()
    expected = before + 0.5 * torch.sign(mean - part.load)
    part.after_step(updated=True)
    assert torch.equal(part.selection_bias, expected)
    assert part.load is None


def test_an_expert_without_a_function_is_named() -> None:
    class Lost(spec.Plain):
        kind: str = "lost_expert"

    try:
        with pytest.raises(UserError, match=r'feedforward\.kind = "lost_expert": Lost has no part'):
            Experts(spec.Experts(expert=Lost(hidden_dim=8)), DIM)
    finally:
        del spec.FeedForward.kinds["lost_expert"]


def test_an_expert_is_a_feedforward_with_a_hidden_layer() -> None:
    base = ModelSpec().override("feedforward.kind=experts")
    for kind in ("experts", "none"):
        with pytest.raises(UserError, match=r'feedforward.expert.kind: found "'):
            base.override(f"feedforward.expert.kind={kind}")
    found = base.override("feedforward.expert.kind=relu", "feedforward.expert.hidden_dim=8")
    assert found.feedforward.expert == spec.ReLU(hidden_dim=8)
    found = ModelSpec().override("feedforward.kind=experts", "feedforward.expert.hidden_dim=8")
    assert found.feedforward.expert == spec.SwiGLU(hidden_dim=8)
