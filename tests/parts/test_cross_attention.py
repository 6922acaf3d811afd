"""Cross-attention against its formula, one query and one key at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from archwright.parts.context import Context, Memory
from archwright.parts.mixers.cross import SoftmaxCrossAttention
from archwright.parts.sharing import LayerInfo
from archwright.parts.states import SourceKV
from archwright.parts.token_layout import TokenLayout, token_layout
from archwright.spec import cross_attention as spec
from archwright.spec.errors import UserError
from archwright.spec.norms import RMSNorm

DIM, MEMORY_DIM, ROWS, LENGTH, SOURCE = 12, 10, 2, 3, 5


def made(**options: Any) -> SoftmaxCrossAttention:
    choice = spec.SoftmaxCrossAttention(num_heads=4, head_dim=6, **options)
    part = SoftmaxCrossAttention(choice, DIM, LayerInfo(memory_dim=MEMORY_DIM)).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in part.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2)
    return part


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((ROWS, LENGTH, DIM), (ROWS, SOURCE, MEMORY_DIM))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)  # type: ignore[return-value]


def context_of(x: Tensor, memory: Tensor, real: Tensor | None = None) -> Context:
    context = Context.alone(x)
    ids = torch.zeros(memory.shape[:2], dtype=torch.long)
    layout = token_layout(ids, padding_mask=real)
    context.memory = Memory(memory, layout)
    return context


@torch.no_grad()
def by_formula(part: SoftmaxCrossAttention, x: Tensor, m: Tensor, real: Tensor) -> Tensor:
    heads, groups, width = part.num_heads, part.num_kv_heads, part.head_dim
    q, k, v = part.query(x), part.key(m), part.value(m)
    mixed = torch.zeros(ROWS, LENGTH, heads * width, dtype=torch.float64)
    for row in range(ROWS):
        for t in range(LENGTH):
            for h in range(heads):
                g = h * groups // heads
                at, own = slice(h * width, (h + 1) * width), slice(g * width, (g + 1) * width)
                query = part.query_norm(q[row, t, at])
                weights, values = [], []
                for s in (s for s in range(SOURCE) if real[row, s]):
                    score = float(query @ part.key_norm(k[row, s, own])) / math.sqrt(width)
                    if part.spec.softcap != "none":
                        score = part.spec.softcap * math.tanh(score / part.spec.softcap)
                    weights.append(math.exp(score))
                    values.append(v[row, s, own])
                for weight, value in zip(weights, values, strict=True):
                    mixed[row, t, at] += weight / sum(weights) * value
    return part.out(mixed)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_kv_heads": 2, "bias": spec.AttentionBias(query=True, key=True, value=True, out=True)},
    {"num_kv_heads": 1, "qk_norm": RMSNorm(), "softcap": 2.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise"])
@pytest.mark.parametrize("padded", [False, True])
def test_it_is_its_formula(options: dict[str, Any], kernel: str, padded: bool) -> None:
    part, (x, memory) = made(**options), drawn()
    part.use_kernel(kernel)
    real = torch.ones(ROWS, SOURCE, dtype=torch.bool)
    if padded:
        real[0, :2] = real[1, 4:] = False
    found = part(x, context_of(x, memory, real if padded else None))
    # Norms are computed in float32 at least.
    torch.testing.assert_close(found, by_formula(part, x, memory, real), rtol=1e-6, atol=1e-6)


def test_the_source_is_read_once() -> None:
    part, (x, memory) = made(), drawn()
    state = part.new_state(ROWS)
    assert state.num_bytes == 0
    first = part(x, context_of(x, memory), state)
    assert state.num_bytes == ROWS * part.state_bytes(SOURCE, 8)
    again = part(x, context_of(x, torch.full_like(memory, torch.nan)), state)
    assert torch.equal(again, first)
    asked = []

    def new() -> tuple[Tensor, Tensor]:
        asked.append(1)
        return memory, memory

    kept = SourceKV()
    assert kept.update(new) is kept.update(new)
    assert asked == [1]


def test_without_a_source_it_is_refused() -> None:
    part, (x, _) = made(), drawn()
    with pytest.raises(UserError, match="the encoder's output is read by this layer"):
        part(x, Context(TokenLayout(LENGTH, x.device), ROWS))
