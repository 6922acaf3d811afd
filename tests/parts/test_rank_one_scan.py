"""Scans with a rank-one transition: chunks against transition matrices multiplied out, with all gradients."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from archwright.parts.leaves import LeafCosts, watched
from archwright.parts.rank_one_scan import rank_one_scan

BATCH, HEADS, KEY_DIM, VALUE_DIM = 2, 3, 8, 6
NAMES = ("r", "log_decay", "k", "v", "a", "b")
Given = dict[str, Tensor]


def inputs(
    length: int, *, key_dim: int = KEY_DIM, value_dim: int = VALUE_DIM, most: float = 1.0
) -> Given:
    generator = torch.Generator().manual_seed(length)

    def drawn(width: int) -> Tensor:
        return torch.randn(BATCH, length, HEADS, width, dtype=torch.float64, generator=generator)

    h = torch.nn.functional.normalize(drawn(key_dim), dim=-1)
    given = {
        "r": drawn(key_dim),
        "log_decay": -most * drawn(key_dim).sigmoid(),
        "k": drawn(key_dim),
    }
    given |= {"v": drawn(value_dim), "a": h, "b": h * drawn(key_dim).sigmoid()}
    return given


def by_hand(
    given: Given, state: Tensor, resets: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Multiply the state of each text and head by the matrix diag(w) - b a^T, and add k v^T."""
    outs, last = torch.zeros_like(given["v"]), torch.zeros_like(state)
    rows: list[list[Tensor]] = []
    for n in range(BATCH):
        for h in range(HEADS):
            s, row = state[n, h], []
            for t in range(given["v"].shape[1]):
                r, g, k, v, a, b = (given[name][n, t, h] for name in NAMES)
                if real is not None and not real[n, t]:
                    row.append(torch.zeros_like(v))
                    continue
                if resets is not None and resets[n, t]:
                    s = torch.zeros_like(s)
                s = (torch.diag(g.exp()) - torch.outer(b, a)) @ s + torch.outer(k, v)
                row.append(s.mT @ r)
            rows.append([torch.stack(row), s])
    outs = torch.stack([row[0] for row in rows]).unflatten(0, (BATCH, HEADS)).transpose(1, 2)
    last = torch.stack([row[1] for row in rows]).unflatten(0, (BATCH, HEADS))
    return outs, last


def gradients(out: Tensor, state: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    loss = (out.sin() * torch.linspace(0.5, 1, out.shape[-1])).sum() + state.cos().sum()
    return list(torch.autograd.grad(loss, wanted, materialize_grads=True, allow_unused=True))


def apart(x: Tensor, y: Tensor) -> float:
    """Return the distance relative to the root mean square."""
    return float((x - y).detach().norm() / y.detach().norm().clamp(min=1e-3))


@pytest.mark.parametrize("kernel", ["chunked", "recurrent"])
@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 130])
def test_it_is_the_formula_with_all_gradients(length: int, boundaries: bool, kernel: str) -> None:
    given = {name: tensor.requires_grad_() for name, tensor in inputs(length).items()}
    state, resets, real = torch.zeros(BATCH, HEADS, KEY_DIM, VALUE_DIM).double(), None, None
    if boundaries:
        generator = torch.Generator().manual_seed(7)
        state = torch.randn(state.shape, dtype=torch.float64, generator=generator)
        resets = torch.rand(BATCH, length, generator=generator) < 0.05
        real = torch.rand(BATCH, length, generator=generator) < 0.9
        resets = resets & real
    state.requires_grad_()
    expected = by_hand(given, state, resets, real)
    found = rank_one_scan(
        *(given[name] for name in NAMES), state=state, resets=resets, real=real, kernel=kernel
    )
    shown = torch.ones(BATCH, length).bool() if real is None else real
    out, other = (x[0] * shown[..., None, None] for x in (found, expected))
    wanted = [*given.values(), state]
    assert apart(out, other) < 1e-12
    assert apart(found[1], expected[1]) < 1e-12
    pairs = zip(
        gradients(out, found[1], wanted), gradients(other, expected[1], wanted), strict=True
    )
    assert all(apart(x, y) < 1e-11 for x, y in pairs)


@pytest.mark.parametrize("most", [0.01, 0.61, 1.0])
def test_float32_is_as_near_as_token_by_token(most: float) -> None:
    """Outputs, states and all gradients; RWKV-7 has decays of at least exp(-0.61)."""
    given = inputs(293, key_dim=64, value_dim=64, most=most)

    def computed(kernel: str, dtype: torch.dtype) -> list[Tensor]:
        vectors = [x.to(dtype).requires_grad_() for x in given.values()]
        state = torch.zeros(BATCH, HEADS, 64, 64, dtype=dtype)
        out, last = rank_one_scan(*vectors, state=state, kernel=kernel)
        return [out, last, *gradients(out, last, vectors)]

    exact = computed("recurrent", torch.float64)
    pairs = zip(
        computed("chunked", torch.float32), computed("recurrent", torch.float32), exact, strict=True
    )
    for chunked, recurrent, expected in pairs:
        error, usual = apart(chunked.double(), expected), apart(recurrent.double(), expected)
        assert error < 3e-5
        assert error < 6 * usual + 1e-6


def test_gradients_are_finite_where_decays_are_strongest_in_a_long_chunk() -> None:
    given = inputs(256, most=1.0)
    given["log_decay"] = torch.full_like(given["log_decay"], -1.0)
    single = {name: x.float().requires_grad_() for name, x in given.items()}
    state = torch.zeros(BATCH, HEADS, KEY_DIM, VALUE_DIM)
    out, last = rank_one_scan(*single.values(), state=state, chunk_size=1000)
    assert all(g.isfinite().all() for g in gradients(out, last, list(single.values())))


@pytest.mark.parametrize(("length", "size"), [(256, 64), (128, 32), (16, 64)])
def test_costs_are_those_of_counters(length: int, size: int) -> None:
    given = {
        name: x.float().requires_grad_()
        for name, x in inputs(length, key_dim=32, value_dim=16).items()
    }
    state, kept = torch.zeros(BATCH, HEADS, 32, 16), dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float32:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with (
        FlopCounterMode(display=False) as counter,
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        rank_one_scan(*given.values(), state=state, chunk_size=size)
    found: list[LeafCosts] = []
    with watched(lambda f, formula, args, kwargs: found.append(formula(*args, **kwargs))):
        rank_one_scan(*given.values(), state=state, chunk_size=size)
    (costs,) = found
    size = min(size, length)
    # Triangular systems are not counted by torch: size^2 (key_dim + value_dim) each.
    solved = BATCH * HEADS * length // size * size**2 * (32 + 16)
    assert counter.get_total_flops() == costs.flops - solved
    assert sum(kept.values()) == pytest.approx(costs.kept[0].numel(), rel=0.06)
