"""The selective scan and the RG-LRU next to their formulas, in float64, and next to published implementations."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archwright.model import build
from archwright.parts.context import Context
from archwright.parts.diagonal_scan import diagonal_scan
from archwright.parts.leaves import watched
from archwright.parts.mixers import RGLRU, SelectiveScan
from archwright.scale.cuts import cut_axes, own_part, share_sizes
from archwright.scale.tensor import computed_alike
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.scale_down import tiny

BATCH, CHANNELS, ENTRIES = 2, 5, 3
LENGTHS = (1, 63, 64, 65, 293)


def drawn(length: int, *, strength: float = 1.0, dtype: torch.dtype = torch.float64) -> Any:
    """Return the inputs of a scan, with log-decays around -strength."""
    dice = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice, dtype=torch.float64).to(dtype)

    return {
        "x": normal(BATCH, length, CHANNELS),
        "steps": normal(BATCH, length, CHANNELS).abs() * strength,
        "rates": -normal(CHANNELS, ENTRIES).exp(),
        "writes": normal(BATCH, length, ENTRIES),
        "reads": normal(BATCH, length, ENTRIES),
        "state": normal(BATCH, ENTRIES, CHANNELS),
    }


def boundaries(length: int) -> dict[str, Tensor]:
    """Documents that begin in and next to chunks of 16, and padding in the middle and at both ends."""
    resets, real = torch.zeros(BATCH, length).bool(), torch.ones(BATCH, length).bool()
    for row, starts in enumerate(((0, 5, 16, 63), (3, 4, 64, 100))):
        resets[row, [t for t in starts if t < length]] = True
    real[1, 7:10] = real[1, :1] = real[0, -2:] = False
    real[0, 0] = True
    return {"resets": resets, "real": real}


def formula(
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    writes: Tensor,
    reads: Tensor,
    state: Tensor,
    resets: Tensor | None = None,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition for one text, channel, entry and token at a time, in numbers of Python."""
    y, last = torch.zeros_like(x), torch.zeros_like(state)
    for row in range(BATCH):
        for channel in range(CHANNELS):
            entries = state[row, :, channel].tolist()
            for t in range(x.shape[1]):
                if real is not None and not real[row, t]:
                    continue
                for n in range(ENTRIES):
                    g = float(steps[row, t, channel] * rates[channel, n])
                    reset = resets is not None and bool(resets[row, t])
                    before = 0.0 if reset else entries[n] * math.exp(g)
                    entries[n] = before + float(writes[row, t, n] * x[row, t, channel])
                y[row, t, channel] = reads[row, t] @ torch.tensor(entries, dtype=x.dtype)
            last[row, :, channel] = torch.tensor(entries, dtype=state.dtype)
    return y, last


@pytest.mark.parametrize("has_boundaries", [False, True])
@pytest.mark.parametrize("kernel", ["recurrent", "chunked"])
def test_a_scan_is_its_formula(kernel: str, has_boundaries: bool) -> None:
    where = boundaries(21) if has_boundaries else {}
    y, state = diagonal_scan(**drawn(21), **where, kernel=kernel, chunk_size=16)
    expected, last = formula(**drawn(21), **where)
    real = where.get("real", torch.ones(BATCH, 21).bool())
    torch.testing.assert_close(y[real], expected[real], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


def run(length: int, kernel: str, chunk_size: int = 16, **options: Any) -> list[Tensor]:
    """Return outputs, the last state and all gradients."""
    where = boundaries(length) if options.pop("has_boundaries", False) else {}
    inputs = {name: t.requires_grad_() for name, t in drawn(length, **options).items()}
    if options.pop("without_state", False):
        inputs["state"] = torch.zeros_like(inputs["state"]).requires_grad_()
    y, state = diagonal_scan(**inputs, **where, kernel=kernel, chunk_size=chunk_size)
    seen = y[where["real"]] if where else y
    loss = seen.sin().sum() + state.cos().sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()))
    return [seen.detach(), state.detach(), *gradients]


@pytest.mark.parametrize("has_boundaries", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_give_outputs_states_and_gradients_of_the_reference(
    length: int, has_boundaries: bool
) -> None:
    expected = run(length, "recurrent", has_boundaries=has_boundaries)
    for chunk_size in (1, 16, 64):
        actual = run(length, "chunked", chunk_size, has_boundaries=has_boundaries)
        for ours, reference in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("strength", [20.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_strong_decays_neither_overflow_nor_lose_the_result(
    strength: float, dtype: torch.dtype
) -> None:
    """Logs of -20 and far beyond: all of the state is gone after a token, and gradients are finite."""
    expected = run(150, "recurrent", strength=strength)
    actual = run(150, "chunked", strength=strength, dtype=dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours.double(), reference, rtol=tolerance, atol=tolerance)


def test_states_are_wide_and_outputs_have_the_dtype_of_inputs() -> None:
    given = drawn(40, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = diagonal_scan(**given)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    expected, _ = diagonal_scan(**{name: t.float() for name, t in given.items()})
    torch.testing.assert_close(y, expected.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 50, 64])
def test_costs_are_those_of_the_operations(length: int) -> None:
    """The backward pass needs inputs and the states before chunks, not the states of all tokens."""
    given = {name: t.float().requires_grad_() for name, t in drawn(length).items()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        diagonal_scan(**given, chunk_size=16, kernel="chunked")
    costs: Any = None

    def watch(function: Any, form: Any, args: Any, kwargs: Any) -> Any:
        nonlocal costs
        costs = form(*args, **kwargs)
        return function(*args, **kwargs)

    with watched(watch):
        y, state = diagonal_scan(**given, chunk_size=16)
    assert [(t.shape, t.dtype) for t in costs.results] == [(t.shape, t.dtype) for t in (y, state)]
    # Per entry and token: step * rate, write * x, decay * state + write, and read * state in a sum.
    assert costs.flops == 6 * BATCH * length * CHANNELS * ENTRIES
    if length > 1:
        stated = sum(t.numel() * t.element_size() for t in costs.kept)
        assert sum(kept.values()) == pytest.approx(stated, rel=0.06)


def small(*words: str) -> ModelSpec:
    base = ModelSpec(dim=24, num_layers=1, vocab_size=32, context_length=64)
    alone = ("attention.kind=none", "position.kind=none")
    return base.override(*alone, *(f"recurrence.{word}" for word in words)).resolved()


def mixer(*words: str) -> Any:
    """Return a mixer in float64, with values that show every detail."""
    part = next(build(small(*words), seed=1).double().mixers())
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=dice, dtype=torch.float64))
    return part


SELECTIVE = ("kind=selective", "inner_dim=40", "state_dim=6", "step_rank=5")
RG_LRU = ("kind=rg_lru", "num_heads=3", "head_dim=12")


def tokens(length: int = 70) -> Tensor:
    dice = torch.Generator().manual_seed(2)
    return torch.randn(2, length, 24, generator=dice, dtype=torch.float64)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | float) -> Tensor:
    """Return sum_j w_j x_(t-j) + b, written with shifts."""
    width = weight.shape[-1]
    y = torch.zeros_like(x)
    for back in range(width):
        y[back:] += weight[:, 0, width - 1 - back] * x[: len(x) - back]
    return y + bias


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("conv_bias=false", "bias=true", "conv_width=2"),
        ("scan_norm={kind='rms',eps=0.01}",),
        ("scan_norm={kind='rms',weight='none'}", "conv_width=1"),
    ],
    ids=["mamba", "biases", "jamba", "falcon-mamba"],
)
def test_the_selective_scan_is_its_formula(words: tuple[str, ...]) -> None:
    """Algorithm 2 of the paper for one text, token by token."""
    part, x = mixer(*SELECTIVE, *words), tokens()
    p: dict[str, Tensor] = dict(part.named_parameters())
    s = small(*SELECTIVE, *words).recurrence

    def affine(name: str, y: Tensor) -> Tensor:
        return y @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def normed(name: str, y: Tensor) -> Tensor:
        if s.scan_norm.is_none:  # type: ignore[attr-defined]
            return y
        root = (y.square().mean(-1, keepdim=True) + s.scan_norm.eps).sqrt()  # type: ignore[attr-defined]
        return y / root * p.get(f"{name}.weight", 1)

    expected: list[Tensor] = []
    for text in x:
        u = convolved(affine("value", text), p["value_conv.weight"], p.get("value_conv.bias", 0.0))
        u, z = silu(u), affine("gate", text)
        low = normed("step_norm", affine("step_down", u))
        dt = (1 + (low @ p["step_up.weight"].T + p["step_up.bias"]).exp()).log()
        b, c = (normed(f"{name}_norm", affine(name, u)) for name in ("write", "read"))
        state, ys = torch.zeros(40, 6, dtype=x.dtype), []
        for t in range(len(text)):
            decay = (-dt[t, :, None] * p["log_rates"].exp()).exp()
            state = decay * state + torch.outer(dt[t] * u[t], b[t])
            ys.append(state @ c[t] + p["skip"] * u[t])
        expected.append(affine("out", torch.stack(ys) * silu(z)))
    actual = part(x, Context.alone(x))
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-10, atol=1e-11)


def test_the_rg_lru_is_its_formula() -> None:
    """Equations 1 to 4 of the paper, for one text, token and head at a time; the first token enters unscaled."""
    part, x = mixer(*RG_LRU), tokens()
    p = dict(part.named_parameters())

    def sigmoid(y: Tensor) -> Tensor:
        return 1 / (1 + (-y).exp())

    expected = []
    for text in x:
        u = text @ p["value.weight"].T + p["value.bias"]
        u = convolved(u, p["value_conv.weight"], p["value_conv.bias"])
        gate = text @ p["gate.weight"].T + p["gate.bias"]
        cubic = (2 / math.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        gate = 0.5 * gate * (1 + cubic.tanh())
        hs = torch.zeros_like(u)
        for head in range(3):
            own = slice(12 * head, 12 * head + 12)
            h = torch.zeros(12, dtype=x.dtype)
            for t in range(len(text)):
                r = sigmoid(u[t, own] @ p["decay_gate.weight"][head] + p["decay_gate.bias"][head])
                i = sigmoid(u[t, own] @ p["input_gate.weight"][head] + p["input_gate.bias"][head])
                a = (1 + p["rates"][own].exp()) ** (-8 * r)
                h = a * h + (1 if t == 0 else (1 - a**2).sqrt()) * i * u[t, own]
                hs[t, own] = h
        expected.append((hs * gate) @ p["out.weight"].T + p["out.bias"])
    actual = part(x, Context.alone(x))
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-10, atol=1e-11)


def test_gradients_of_an_rg_lru_that_forgets_nothing_are_finite() -> None:
    """The root of 1 - a^2 has an infinite slope at a = 1; the published code bounds it by 1,000."""
    library = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    part, x = mixer(*RG_LRU), tokens(20)
    with torch.no_grad():
        part.rates.copy_(torch.linspace(-40, -12, 36))
    config = library.RecurrentGemmaConfig(
        hidden_size=24, lru_width=36, num_attention_heads=3, num_hidden_layers=1
    )
    theirs = library.RecurrentGemmaRecurrentBlock(config, 0).double()
    names = {
        "linear_x": "value",
        "linear_y": "gate",
        "linear_out": "out",
        "conv_1d": "value_conv",
        "rg_lru.recurrent_param": "rates",
        "rg_lru.input_gate_weight": "input_gate.weight",
        "rg_lru.input_gate_bias": "input_gate.bias",
        "rg_lru.recurrent_gate_weight": "decay_gate.weight",
        "rg_lru.recurrent_gate_bias": "decay_gate.bias",
    }
    own: dict[str, nn.Parameter] = dict(part.named_parameters())

    def of(name: str) -> nn.Parameter:
        prefix = next(p for p in names if name == p or name.startswith(p + "."))
        return own[names[prefix] + name.removeprefix(prefix)]

    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(of(name))
    positions = torch.arange(20)[None].expand(2, -1)
    expected, _ = theirs(x, positions, None, use_cache=False)
    y = part(x, Context.alone(x))
    # The library accumulates in float32.
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    for out in (y, expected):
        out.square().sum().backward()
    for name, parameter in theirs.named_parameters():
        assert of(name).grad is not None
        scale = float(parameter.grad.abs().max())
        assert of(name).grad.isfinite().all()  # type: ignore[union-attr]
        torch.testing.assert_close(of(name).grad, parameter.grad, rtol=1e-4, atol=1e-5 * scale)


def test_initial_values_are_those_published() -> None:
    model = build(small("kind=selective", "inner_dim=4096"), seed=3)
    part = next(model.mixers())
    assert isinstance(part, SelectiveScan)
    steps = torch.nn.functional.softplus(part.step_up.bias.detach()).log()
    assert math.log(0.001) <= steps.min() < math.log(0.0011)
    assert math.log(0.09) < steps.max() <= math.log(0.1) + 1e-5
    # Log-uniform: half of the steps are below 0.01.
    assert (steps < math.log(0.01)).float().mean() == pytest.approx(0.5, abs=0.03)
    assert torch.equal(part.log_rates.exp().round(), torch.arange(1.0, 17).expand(4096, -1))
    assert float(part.step_up.weight.detach().abs().max()) == pytest.approx(2**-0.5, rel=1e-3)
    assert torch.equal(part.skip, torch.ones(4096))
    part = next(build(small("kind=rg_lru", "num_heads=2", "head_dim=512"), seed=3).mixers())
    assert isinstance(part, RGLRU)
    squares = (-2 * torch.nn.functional.softplus(part.rates)).exp()
    assert 0.81 <= squares.min() < 0.82
    assert 0.997 < squares.max() <= 0.998002
    assert float(squares.detach().mean()) == pytest.approx((0.81 + 0.998) / 2, abs=0.005)
    assert float(part.decay_gate.weight.detach().std()) == pytest.approx(
        (0.01 / 512) ** 0.5, rel=0.02
    )
    assert float(part.value_conv.weight.detach().std()) == pytest.approx(
        (0.01 / 4) ** 0.5, rel=0.05
    )
    assert not part.value_conv.bias.any()  # type: ignore[union-attr]


def test_two_ranks_share_the_heads_of_an_rg_lru() -> None:
    """The results of ranks add up to the result of the mixer, also for a text in two pieces."""
    part, x = mixer("kind=rg_lru", "num_heads=4", "head_dim=6"), tokens(20)
    pieces, total = (x[:, :13], x[:, 13:]), torch.zeros_like(x)
    contexts = [Context.alone(piece) for piece in pieces]
    object.__setattr__(contexts[1].layout, "start", 13)
    for rank in range(2):
        own = copy.deepcopy(part)
        for tensor, axis in cut_axes(own):
            tensor.data = own_part(tensor.data, axis, 2, rank)
        share_sizes(own, 2)
        state = own.new_state(2)
        outs = [own(piece, at, state) for piece, at in zip(pieces, contexts, strict=True)]
        assert state.num_bytes == 2 * own.state_bytes(20, 8) == part.state_bytes(20, 8)
        total += torch.cat(outs, 1)
    torch.testing.assert_close(total, part(x, Context.alone(x)), rtol=1e-10, atol=1e-11)


def test_ranks_compute_a_selective_scan_alike() -> None:
    """Plans count its weights on every device of a tensor group."""
    selective = build(small("kind=selective"))
    assert computed_alike(selective, 2) == ["recurrence"]
    assert not [*cut_axes(next(selective.mixers()))]
    assert computed_alike(build(small("kind=rg_lru", "num_heads=2")), 2) == []


def test_a_norm_over_one_entry_is_refused() -> None:
    """It would leave nothing of B and C but their signs."""
    norm = "scan_norm.kind=rms"
    with pytest.raises(
        UserError, match=r"state_dim: found 1 with scan_norm.kind = .rms.; expected"
    ):
        build(small("kind=selective", "state_dim=1", norm))
    assert build(small("kind=selective", "state_dim=2", norm))


def test_sizes_follow_from_the_width_and_shrink_with_it() -> None:
    spec = ModelSpec(dim=1024, num_layers=1, vocab_size=32, context_length=64)
    alone = ("attention.kind=none", "position.kind=none")
    selective = spec.override(*alone, "recurrence.kind=selective").resolved()
    assert dict(selective.recurrence) | {"inner_dim": 2048, "step_rank": 64} == dict(
        selective.recurrence
    )
    of_tiny = dict(tiny(selective).resolved().recurrence)
    assert (of_tiny["inner_dim"], of_tiny["step_rank"]) == (2 * tiny(selective).dim, 4)
    rg_lru = spec.override(*alone, "recurrence.kind=rg_lru").resolved()
    heads = dict(rg_lru.recurrence)
    assert (heads["num_heads"], heads["head_dim"]) == (4, 256)
