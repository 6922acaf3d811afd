"""The linear recurrence next to its formula, token by token in float64."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from archwright.machine.decide import Decisions, decide_scan
from archwright.model.build import build
from archwright.parts.context import Context
from archwright.parts.mixers import LinearRecurrence, RecurrentMixer
from archwright.parts.scans import SCANS
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.testing import LAWS_OF_MODELS, OF_BRANCHES, OF_MIXERS, OF_RECURRENCES, tried
from archwright.testing.case import Case

SETTINGS = {
    "delta net": ("decay.kind=none",),
    "gated delta net": ("num_key_heads=2", "value_head_dim=12", "beta_max=2"),
    "kda": ("decay={kind='per_channel',rank=3}", "gate=sigmoid", "gate_rank=5"),
    "bounded kda": ("decay={kind='per_channel',lower_bound=-5.0}", "bias=true"),
    "retention": ("decay.kind=fixed", "write=added", "conv_width=none", "activation=none"),
    "lightning": (
        *("decay={kind='fixed',rates='slopes',slower_with_depth=true}", "write=added"),
        *("conv_width=none", "out_norm_over=all", "gate=sigmoid", "qk_norm=none", "scale=none"),
    ),
    "gla": ("decay={kind='sigmoid',rank=3}", "write=added", "activation=none", "qk_norm=none"),
    "ssd": (
        *("write=step", "skip=true", "num_key_heads=2", "qk_norm=none", "scale=none", "bias=true"),
        *("gate_position=before", "out_norm_over=group", "conv_bias=true"),
        "decay={kind='per_head',clamp_min=0.01,clamp_max=0.5}",
    ),
    "falcon-h1": (
        *("write=step", "skip=true", "num_key_heads=1", "qk_norm=none", "scale=none"),
        *("gate_position=before", "out_norm_over=group", "conv_bias=true", "decay.kind=per_head"),
        "multipliers={query=0.7,key=1.3,value=0.8,gate=1.4,decay=0.6}",
    ),
}
"""Published recurrences, as settings of the choice."""


def spec(*words: str) -> ModelSpec:
    small = ModelSpec(dim=32, num_layers=2, vocab_size=32, context_length=96)
    words = ("kind=linear", "num_heads=4", "head_dim=8", *words)
    return small.override(*(f"recurrence.{word}" for word in words)).resolved()


def mixer(*words: str) -> LinearRecurrence:
    """Return the recurrence of layer 2 with values that show every detail."""
    model = build(spec(*words), seed=1).double()
    part = [*model.stack][1].recurrence
    assert isinstance(part, LinearRecurrence)
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in part.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=dice, dtype=p.dtype))
    return part


def formula(part: LinearRecurrence, x: Tensor) -> Tensor:
    """Compute the mixer for one text x [length, dim], with loops over heads and tokens."""
    s, p = part.spec, dict(part.named_parameters())

    def affine(name: str, y: Tensor) -> Tensor:
        bias = p.get(f"{name}.bias")
        return y @ p[f"{name}.weight"].T + (0 if bias is None else bias)

    def silu(y: Tensor) -> Tensor:
        return y / (1 + (-y).exp())

    def mixed(name: str) -> Tensor:
        y = affine(name, x) * getattr(s.multipliers, name)
        if s.conv_width != "none":
            taps = p[f"{name}_conv.weight"][:, 0]  # [channels, width], the last one for the token
            z = torch.zeros_like(y)
            for t in range(len(y)):
                for back in range(min(t + 1, s.conv_width)):
                    z[t] += taps[:, -1 - back] * y[t - back]
            y = z + p[f"{name}_conv.bias"] if s.conv_bias else z
        return silu(y) if s.activation == "silu" else y

    q, k, v = mixed("query"), mixed("key"), mixed("value")
    heads, width, value_width = 4, 8, int(s.value_head_dim)
    gate = None
    if s.gate != "none":
        y = affine("gate_down", x) if "gate_down.weight" in p else x
        gate = affine("gate", y) * s.multipliers.gate
        gate = silu(gate) if s.gate == "silu" else 1 / (1 + (-gate).exp())
    out = torch.zeros(len(x), heads, value_width, dtype=x.dtype)
    for h in range(heads):
        group = h * int(s.num_key_heads) // heads
        keys = slice(group * width, (group + 1) * width)
        values = slice(h * value_width, (h + 1) * value_width)
        state = torch.zeros(width, value_width, dtype=x.dtype)
        for t in range(len(x)):
            qt, kt, vt = q[t, keys], k[t, keys], v[t, values]
            if s.qk_norm == "l2":
                qt, kt = (y / (y.dot(y) + 1e-6).sqrt() for y in (qt, kt))
            if s.scale == "sqrt":
                qt = qt / math.sqrt(width)
            decay, step = _decay(part, affine, x[t], h)
            state = decay * state
            if s.write == "delta":
                beta = s.beta_max / (1 + (-affine("write", x[t])[h]).exp())
                state = state + torch.outer(kt, beta * (vt - kt @ state))
            else:
                state = state + torch.outer(kt, vt * (step if s.write == "step" else 1))
            out[t, h] = qt @ state + (p["skip"][h] * vt if s.skip else 0)
    y = out.flatten(1)
    if gate is not None and s.gate_position == "before":
        y = y * gate
    parts = {"head": heads, "group": int(s.num_key_heads), "all": 1}[s.out_norm_over]
    rows = y.unflatten(1, (parts, -1))
    rows = rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p["norm.weight"]
    y = rows.flatten(1)
    if gate is not None and s.gate_position == "after":
        y = y * gate
    return affine("out", y)


def _decay(part: LinearRecurrence, affine, x: Tensor, head: int):  # type: ignore[no-untyped-def]
    """Return the factor of head's state, a number or [key_dim, 1], and the step."""
    d, p = part.spec.decay, dict(part.decay.named_parameters())
    own = slice(8 * head, 8 * head + 8)
    if d.kind == "none":
        return 1.0, None
    if d.kind == "fixed" and d.rates == "retention":
        return 1 - 2.0 ** (-5 - head), None
    if d.kind == "fixed":  # layer 2 of 2
        factor = 1 - 1 / (1 + 1e-5) + 1e-5
        return math.exp(-factor * 2.0 ** (-2 * (head + 1))), None
    if d.kind == "per_head":
        y = affine("decay.step", x)[head] * part.spec.multipliers.decay
        step = (1 + (y + p["step_bias"][head]).exp()).log()
        step = step.clamp(d.clamp_min, None if d.clamp_max == "none" else d.clamp_max)
        return (-p["log_rate"][head].exp() * step).exp(), step
    y = affine("decay.up", affine("decay.down", x) if "down.weight" in p else x)[own]
    if d.kind == "sigmoid":
        return (1 / (1 + (-y).exp())).pow(1 / 16)[:, None], None
    y, rate = y + p["step_bias"][own], p["log_rate"][head].exp()
    bounded = d.lower_bound != "none"
    g = d.lower_bound / (1 + (-rate * y).exp()) if bounded else -rate * (1 + y.exp()).log()
    return g.exp()[:, None], None


@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_it_computes_its_formula(words: tuple[str, ...]) -> None:
    part = mixer(*words)
    x = torch.randn(1, 70, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = formula(part, x[0])
        y = part(x, Context.alone(x))[0]
    assert (y - expected).abs().max() < 1e-11 * expected.abs().max()


@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_parameters_are_counted(words: tuple[str, ...]) -> None:
    resolved = spec(*words)
    assert resolved.recurrence.num_parameters(32) == sum(
        p.numel()
        for name, p in build(resolved, device="meta").named_parameters()
        if name.startswith("layers.0.recurrence.")
    )


@pytest.mark.slow
@pytest.mark.parametrize("words", SETTINGS.values(), ids=SETTINGS)
def test_it_is_lawful(words: tuple[str, ...]) -> None:
    laws = LAWS_OF_MODELS | OF_RECURRENCES | OF_MIXERS | OF_BRANCHES
    case = Case(spec(*words).override("context_length=24"))
    assert not [f for f in tried(laws, case, None) if f.state == "broken"]


def test_initial_steps_and_rates_are_those_of_the_spec() -> None:
    model = build(spec("decay={kind='per_head',most_rate=4.0}"), seed=0)
    part = next(iter(model.stack)).recurrence
    steps = torch.nn.functional.softplus(part.decay.step_bias)
    rates = part.decay.log_rate.exp()
    assert steps.min() >= 0.001
    assert steps.max() <= 0.1
    assert rates.min() >= 1.0
    assert rates.max() <= 4.0


def test_a_rate_of_0_has_a_finite_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """OLMo Hybrid draws rates from 0 on."""
    model = build(spec("decay={kind='per_head',least_rate=0.0}"), seed=0)
    decay = next(iter(model.stack)).recurrence.decay
    monkeypatch.setattr(Tensor, "uniform_", lambda x, least, most: x.fill_(least))
    decay.reset_parameters()
    assert decay.log_rate.isfinite().all()


def test_a_bias_of_1_is_the_inverse_of_its_step() -> None:
    """The published class of Qwen3-Next begins with this bias."""
    decay = load("qwen-3-next-80b-a3b").layer(0).recurrence.decay
    step = f"least_step={decay.least_step},most_step={decay.most_step}"
    model = build(spec(f"decay={{kind='per_head',{step}}}"), seed=0)
    bias = next(iter(model.stack)).recurrence.decay.step_bias
    torch.testing.assert_close(bias, torch.ones_like(bias))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("num_key_heads=3",), "num_key_heads: found 3; expected a divisor of num_heads = 4"),
        (("write=step", "decay.kind=none"), 'write: found "step" with decay.kind = "none"'),
        (("write=added", "beta_max=2"), 'beta_max: found 2 with write = "added"'),
        (("gate=none", "gate_rank=4"), 'gate_rank: found 4 with gate = "none"'),
        (("conv_width=none", "conv_bias=true"), 'conv_bias: found true with conv_width = "none"'),
        (("decay={kind='per_channel',lower_bound=2.0}",), "lower_bound: found 2.0"),
        (("decay={kind='per_head',least_rate=20.0}",), "least_rate: found 20.0"),
    ],
)
def test_contradictions_are_refused(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError, match=line.replace("(", r"\(")):
        spec(*words)


@pytest.mark.parametrize(
    ("words", "blocks"),
    [
        (("num_key_heads=2",), 2),
        (("num_key_heads=1",), 4),  # a single key head is replicated; the states are split
        (("out_norm_over=all",), 1),  # not split
    ],
)
def test_ranks_split_the_state_like_its_heads(words: tuple[str, ...], blocks: int) -> None:
    assert mixer(*words).kept_blocks == blocks


@pytest.mark.parametrize(
    ("kind", "fused"), [("linear", True), ("rwkv7", False), ("rg_lru", False), ("none", False)]
)
def test_the_decision_names_the_scan_that_runs(
    kind: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCANS, "fla", SCANS["chunked"])
    model = build(ModelSpec(dim=32, vocab_size=32).override(f"recurrence.kind={kind}").resolved())
    decisions = Decisions(MachineSpec(device="cuda"), {})
    decide_scan(decisions, model)
    assert decisions.machine.scan == ("fla" if fused else "chunked")
    kernels = {m.kernel for m in model.modules() if isinstance(m, RecurrentMixer)}
    assert kernels <= {decisions.machine.scan}
    decisions = Decisions(MachineSpec(scan="fla"), {})
    with nullcontext() if fused else pytest.raises(UserError, match="no recurrence of this model"):
        decide_scan(decisions, model)
