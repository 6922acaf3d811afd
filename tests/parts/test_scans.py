"""Linear scans: the chunked kernel against the token-by-token formula, and its costs against counters."""

import itertools
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from archwright.parts import fla_scan, scans
from archwright.parts.scans import linear_scan, linear_scan_costs
from archwright.spec.errors import UserError

BATCH, LENGTH, HEADS, KEY_DIM, VALUE_DIM = 2, 21, 2, 6, 5
DECAYS = ("none", "fixed", "head", "channel")


def inputs(
    decay: str, delta: bool, *, strength: float = 1.0, length: int = LENGTH
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = {
        "fixed": (HEADS,),
        "head": (BATCH, length, HEADS),
        "channel": (BATCH, length, HEADS, KEY_DIM),
    }.get(decay)
    q, k = (
        torch.nn.functional.normalize(drawn(BATCH, length, HEADS, KEY_DIM), dim=-1) for _ in "qk"
    )
    return {
        "q": q,
        "k": k,
        "v": drawn(BATCH, length, HEADS, VALUE_DIM),
        "log_decay": None if shape is None else -strength * drawn(*shape).abs(),
        "beta": 2 * drawn(BATCH, length, HEADS).sigmoid() if delta else None,
        "state": drawn(BATCH, HEADS, KEY_DIM, VALUE_DIM),
    }


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
    resets: Tensor | None = None,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition for one row, head and token at a time, written with sums over indices."""
    out = torch.zeros_like(v)
    states = []
    for row, head in itertools.product(range(v.shape[0]), range(v.shape[2])):
        matrix = state[row, head]
        for t in range(v.shape[1]):
            if real is not None and not real[row, t]:
                continue
            if resets is not None and resets[row, t]:
                matrix = torch.zeros_like(matrix)
            if log_decay is not None:
                g = log_decay[head] if log_decay.ndim == 1 else log_decay[row, t, head]
                matrix = torch.einsum("k,kv->kv", g.exp().expand(len(matrix)), matrix)
            key, value = k[row, t, head], v[row, t, head]
            if beta is not None:
                value = beta[row, t, head] * (value - torch.einsum("kv,k->v", matrix, key))
            matrix = matrix + torch.outer(key, value)
            out[row, t, head] = torch.einsum("kv,k->v", matrix, q[row, t, head])
        states.append(matrix)
    return out, torch.stack(states).view_as(state)


def boundaries(length: int = LENGTH) -> dict[str, Tensor]:
    """Documents that begin inside chunks of 16 and at their borders, and padding in the middle."""
    resets, real = torch.zeros(BATCH, length).bool(), torch.ones(BATCH, length).bool()
    resets[0, [0, 5, 16]] = True
    resets[1, [3, 4, 18]] = True
    real[1, 7:10] = real[0, -2:] = False
    return {"resets": resets, "real": real}


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_the_reference_is_the_formula(decay: str, delta: bool) -> None:
    given, where = inputs(decay, delta), boundaries()
    out, state = linear_scan(**given, **where, kernel="recurrent")
    expected, last = formula(**given, **where)
    real = where["real"]
    torch.testing.assert_close(out[real], expected[real], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk_size", [1, 3, 16, 64])
@pytest.mark.parametrize("has_boundaries", [False, True])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_chunks_give_outputs_states_and_gradients_of_the_reference(
    decay: str, delta: bool, has_boundaries: bool, chunk_size: int
) -> None:
    """64 is longer than the text."""
    where = boundaries() if has_boundaries else {}

    def run(kernel: str) -> tuple[Tensor, ...]:
        given = {n: t if t is None else t.requires_grad_() for n, t in inputs(decay, delta).items()}
        out, state = linear_scan(**given, **where, kernel=kernel, chunk_size=chunk_size)
        out = out[where["real"]] if where else out
        wanted = [t for t in given.values() if t is not None]
        gradients = torch.autograd.grad(out.sin().sum() + state.cos().sum(), wanted)
        return out.detach(), state.detach(), *gradients

    for found, expected in zip(run("chunked"), run("recurrent"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def results(
    given: dict[str, Tensor | None], kernel: str, dtype: torch.dtype, **options: Any
) -> dict[str, Tensor]:
    """Return the outputs, the last state and all gradients, in float64."""
    some = {n: x.detach().to(dtype).requires_grad_() for n, x in given.items() if x is not None}
    out, state = linear_scan(**some, **options, kernel=kernel)
    real = options.get("real")
    out = out if real is None else out[real]  # padding has no result
    weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
    loss = (out * weights).sum() + state.sum()
    gradients = torch.autograd.grad(loss, list(some.values()))
    named = {"out": out.detach(), "last state": state.detach()}
    named |= {f"gradient of {n}": x for n, x in zip(some, gradients, strict=True)}
    return {n: x.double() for n, x in named.items()}


def relative_rms(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_chunks_agree_with_tokens_at_all_strengths_and_lengths(
    decay: str, delta: bool, length: int
) -> None:
    """Relative RMS of outputs, states and gradients: 1e-12 in float64, 8e-6 in float32.

    Logs of decays are 0, all -20, or a third each of 0, weak and down to -20.
    """
    for strength, has_state, has_boundaries in itertools.product(
        ["mixed"] if length == 1000 else ["mixed", 0.0, 20.0], [True, False], [True, False]
    ):
        if length == 1000 and has_state != has_boundaries:
            continue
        # Values of float32: all dtypes compute the same sums.
        given = {
            n: x.float() for n, x in inputs(decay, delta, length=length).items() if x is not None
        }
        g = given["log_decay"]
        if strength == "mixed":
            kind = torch.arange(length) % 3
            scale = torch.tensor([0.0, -0.1, -20.0])[kind]
            given["log_decay"] = scale.view(-1, *[1] * (g.ndim - 2)) * g.tanh().abs()
        else:
            given["log_decay"] = torch.full_like(g, -float(strength))
        if not has_state:
            del given["state"]
        where = boundaries(length) if has_boundaries and length > 20 else {}
        tokens = results(given, "recurrent", torch.float64, **where)
        for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 8e-6)):
            for name, x in results(given, "chunked", dtype, **where).items():
                at = (name, dtype, strength, has_state, has_boundaries)
                assert relative_rms(x, tokens[name]) <= bound, (relative_rms(x, tokens[name]), at)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", DECAYS)
def test_padding_of_a_single_text_is_nothing(decay: str, delta: bool) -> None:
    given = {
        n: x if x is None or (n == "log_decay" and x.ndim == 1) else x[:1]
        for n, x in inputs(decay, delta).items()
    }
    real = torch.ones(1, LENGTH).bool()
    real[:, :3] = real[:, 8:13] = real[:, -2:] = False
    text = {
        n: x if x is None or n == "state" or x.ndim == 1 else x[real][None]
        for n, x in given.items()
    }
    (out, state), (expected, last) = linear_scan(**given, real=real), linear_scan(**text)
    assert relative_rms(out[real][None], expected) < 1e-12
    assert relative_rms(state, last) < 1e-12


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_gradients_of_bfloat16_are_finite_under_the_strongest_decays(decay: str) -> None:
    given = inputs(decay, True, length=150)
    given["log_decay"] = torch.full_like(given["log_decay"], -20.0)
    for name, x in results(given, "chunked", torch.bfloat16).items():
        assert x.isfinite().all(), name
        assert x.abs().max() > 0, name


@pytest.mark.parametrize(
    ("decay", "module", "function"),
    [
        ("channel", "kimi_linear", "recurrent_kimi_delta_attention"),
        ("head", "qwen3_next", "torch_recurrent_gated_delta_rule"),
    ],
)
def test_a_scan_is_a_delta_rule_of_transformers(decay: str, module: str, function: str) -> None:
    library = pytest.importorskip(f"transformers.models.{module}.modeling_{module}")
    given = inputs(decay, True, length=100)
    q, k, v, g, beta, state = (given[n].float() for n in given)
    expected, last = getattr(library, function)(
        q, k, v, g, beta, initial_state=state, output_final_state=True
    )
    given["q"] = given["q"] * KEY_DIM**-0.5
    out, state = linear_scan(**given)
    assert relative_rms(out, expected) < 1e-5
    assert relative_rms(state, last) < 1e-5


def test_a_scan_is_the_state_space_dual_of_transformers() -> None:
    """Mamba-2: k = B for all heads, v = dt x, g = dt A, q = C."""
    library = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    given = inputs("head", False, length=100)
    b, c = given["k"][:, :, :1], given["q"][:, :, :1]
    dt, rate = given["log_decay"].exp(), -torch.tensor([0.3, 2.0], dtype=torch.float64)
    floats = (x.float() for x in (given["v"], dt, rate, b, c))
    expected = library.mamba2_chunk_scan(*floats, chunk_size=16)
    expected = expected[0] if isinstance(expected, tuple) else expected
    out, _ = linear_scan(c, b, dt[..., None] * given["v"], dt * rate)
    torch.testing.assert_close(out.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [20.0, float("inf")])
@pytest.mark.parametrize("decay", ["fixed", "head", "channel"])
def test_strong_decays_neither_overflow_nor_lose_the_result(
    decay: str, strength: float, dtype: torch.dtype
) -> None:
    """Logs of -20 and beyond over three chunks of 64, next to tokens that forget nothing."""
    given = inputs(decay, True, strength=strength, length=150)
    if decay != "fixed":
        given["log_decay"][:, ::3] = 0
    given = {n: t if t is None else t.to(dtype).requires_grad_() for n, t in given.items()}
    results = []
    for kernel in ("chunked", "recurrent"):
        out, state = linear_scan(**given, kernel=kernel)
        gradients = torch.autograd.grad(
            out.square().sum(), [t for t in given.values() if t is not None]
        )
        results.append((out, state, *gradients))
    tolerance = 1e-9 if dtype == torch.float64 else 3e-4
    for found, expected in zip(*results, strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_key_heads_may_be_shared_by_several_value_heads() -> None:
    given = inputs("head", True)
    shared = {name: given[name][:, :, :1] for name in ("q", "k")}
    repeated = {name: x.expand(-1, -1, HEADS, -1) for name, x in shared.items()}
    found, expected = (linear_scan(**{**given, **some})[0] for some in (shared, repeated))
    assert torch.equal(found, expected)


def test_states_are_wide_and_outputs_have_the_dtype_of_values() -> None:
    given = {n: t if t is None else t.bfloat16() for n, t in inputs("head", True).items()}
    with torch.autocast("cpu", torch.bfloat16):
        out, state = linear_scan(**given)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    expected, _ = linear_scan(**{n: t if t is None else t.float() for n, t in given.items()})
    torch.testing.assert_close(out, expected.bfloat16(), rtol=0, atol=0)


def test_an_unknown_kernel_is_refused_with_the_names() -> None:
    with pytest.raises(UserError, match='scan: found "fast"; expected one of recurrent, chunked'):
        linear_scan(**inputs("none", False), kernel="fast")


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize(("length", "key_heads"), [(1, 2), (50, 2), (256, 2), (256, 1)])
def test_costs_are_those_of_counters(length: int, key_heads: int, delta: bool, decay: str) -> None:
    given = inputs(decay, delta, length=length)
    given |= {name: given[name][:, :, :key_heads] for name in ("q", "k")}
    given = {
        name: x if x is None else x.float().requires_grad_(name != "log_decay" or x.ndim > 1)
        for name, x in given.items()
    }
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float32:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with (
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        linear_scan(**given)
    kinds: dict[str, scans.DecayKind] = {"head": "per_head", "channel": "per_channel"}
    kind = kinds.get(decay, decay)  # type: ignore[call-overload]
    costs = linear_scan_costs(
        length, HEADS, KEY_DIM, VALUE_DIM, delta=delta, decay=kind, key_heads=key_heads
    )
    assert counter.get_total_flops() == BATCH * costs.flops
    assert sum(kept.values()) == pytest.approx(BATCH * costs.kept, rel=0.06, abs=HEADS * 64**2)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("has_boundaries", [False, True])
def test_the_adapter_passes_documents_and_states_to_flash_linear_attention(
    decay: str, delta: bool, has_boundaries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with the library's arguments computes the formula; the library itself needs a GPU."""
    module, name = fla_scan.FUNCTIONS[delta, decay == "channel"]

    def stand_in(
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor | None = None,
        scale: float,
        initial_state: Tensor,
        output_final_state: bool,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert scale == 1
        assert output_final_state
        q, k, v = (x.double() for x in (q, k, v))
        if cu_seqlens is None:
            return formula(q, k, v, g, beta, initial_state)
        assert len(q) == 1
        assert len(initial_state) == len(cu_seqlens) - 1
        parts = []
        for i, (start, stop) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
            some = (x if x is None else x[:, start:stop] for x in (q, k, v, g, beta))
            parts.append(formula(*some, initial_state[i : i + 1]))  # type: ignore[arg-type]
        outs, states = zip(*parts, strict=True)
        return torch.cat(outs, 1), torch.cat(states)

    library = types.ModuleType(f"fla.ops.{module}")
    setattr(library, name, stand_in)
    monkeypatch.setitem(sys.modules, "fla", types.ModuleType("fla"))
    monkeypatch.setitem(sys.modules, "fla.ops", types.ModuleType("fla.ops"))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setitem(scans.SCANS, "fla", fla_scan.fla)
    given = inputs(decay, delta)
    for x in "qkv":
        given[x] = given[x].bfloat16().double()
    where = {"resets": boundaries()["resets"]} if has_boundaries else {}
    found, expected = (
        linear_scan(**given, **where, kernel=kernel) for kernel in ("fla", "recurrent")
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
