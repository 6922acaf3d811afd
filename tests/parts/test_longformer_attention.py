"""Longformer's attention beside its formula, one query, head and key at a time in float64; and beside transformers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.mixers import LongformerAttention
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec import attention as spec
from archwright.spec import masks, positions
from tests.parts.plain_attention import linear, turned
from tests.parts.test_masks import sees

DIM, HEADS, WIDTH, LENGTH, THETA, LAYER = 10, 3, 8, 11, 16.0, 3
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "biases": {"bias": True},
    "bias of query": {"bias": {"query": True}},
    "soft-cap": {"softcap": 0.8},
    "inverse layer scale": {"scale": {"kind": "inverse_layer"}},
    "dilation": {"mask": {"kind": "longformer", "radius": 2, "dilation": 2, "num_global": 3}},
    "dilation in a head": {
        "mask": {"kind": "longformer", "radius": 2, "dilation": 3, "dilated_heads": 1}
    },
    "more global tokens than there are": {
        "mask": {"kind": "longformer", "radius": 2, "num_global": 40}
    },
}
POSITIONS: dict[str, positions.Position] = {
    "none": positions.NoPosition(),
    "rope": positions.RoPE(theta=THETA),
    "alibi": positions.ALiBi(),
}


def made(options: dict[str, Any], position: positions.Position) -> LongformerAttention:
    mask = {"kind": "longformer", "radius": 2, "num_global": 2}
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "mask": mask}
    choice = spec.LongformerAttention.model_validate(sizes | options)
    part = LongformerAttention(choice, DIM, LayerInfo(LAYER, position)).double()
    if part.rotary is not None:
        part.rotary.value.double()
    torch.manual_seed(0)
    for parameter in part.parameters():
        parameter.data = torch.randn_like(parameter) * 1.5 * DIM**-0.5
    return part.eval()


def vectors() -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(2, LENGTH, DIM, generator=dice, dtype=torch.float64)


def run(part: LongformerAttention, x: Tensor) -> Tensor:
    layout = token_layout(torch.zeros(x.shape[:2], dtype=torch.long))
    out: Tensor = part(x, Context(layout, len(x)))
    return out


def by_loops(part: LongformerAttention, x: Tensor, position: positions.Position) -> np.ndarray:
    weights = {name: p.detach().numpy() for name, p in part.named_parameters()}
    choice, rows = part.spec, []
    assert isinstance(choice.mask, masks.Longformer)
    scale = WIDTH**-0.5 / (LAYER if choice.scale.kind == "inverse_layer" else 1)
    for row in x.detach().numpy():
        maps: dict[str, tuple[np.ndarray, ...]] = {}
        for ending in ("", "_global"):
            q, k, v = (
                linear(weights, name + ending, row).reshape(LENGTH, HEADS, WIDTH)
                for name in ("query", "key", "value")
            )
            if position.kind == "rope":
                q, k = turned(q, THETA), turned(k, THETA)
            maps[ending] = q, k, v
        mixed = np.zeros((LENGTH, HEADS, WIDTH))
        for t, h in np.ndindex(LENGTH, HEADS):
            q, k, v = maps["_global" if t < choice.mask.num_global else ""]
            total = 0.0
            for i in range(LENGTH):
                if not sees(choice.mask, t, i, h, HEADS):
                    continue
                score = scale * float(q[t, h] @ k[i, h])
                if choice.softcap != "none":
                    score = choice.softcap * math.tanh(score / choice.softcap)
                if position.kind == "alibi":  # the third of three heads: a slope of twice as many
                    score -= (2**-4, 2**-8, 2**-2)[h] * abs(i - t)
                total += math.exp(score)
                mixed[t, h] += math.exp(score) * v[i, h]
            mixed[t, h] /= total
        rows.append(linear(weights, "out", mixed.reshape(LENGTH, -1)))
    return np.stack(rows)


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_values(options: str, position: str, kernel: str) -> None:
    part = made(OPTIONS[options], POSITIONS[position])
    part.use_kernel(kernel)
    with torch.no_grad():
        found = run(part, vectors()).numpy()
    expected = by_loops(part, vectors(), POSITIONS[position])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernel", ["sdpa", "blockwise"])
def test_gradients(kernel: str) -> None:
    """Along a random line through the input and all weights, beside the slope of the loops."""
    part, position = made({"bias": True}, POSITIONS["rope"]), POSITIONS["rope"]
    part.use_kernel(kernel)
    x = vectors().requires_grad_()
    given, into = [x, *part.parameters()], torch.randn(x.shape, dtype=torch.float64)
    grads = torch.autograd.grad(run(part, x), given, into)
    line = [torch.randn_like(p) for p in given]
    slope = sum((g * d).sum().item() for g, d in zip(grads, line, strict=True))
    ends = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for p, d in zip(given, line, strict=True):
                p.add_(d, alpha=step)
        ends.append((by_loops(part, x, position) * into.numpy()).sum())
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-6)


def test_each_document_of_a_packed_row_has_global_tokens_of_its_own() -> None:
    part, x = made({}, POSITIONS["rope"]), vectors()
    ids = torch.tensor([[0] * 4 + [1] * 7, [0] * 10 + [1]])
    layout = token_layout(torch.zeros(2, LENGTH).long(), segment_ids=ids)
    found = part(x, Context(layout, 2))
    for row, cut in enumerate((4, 10)):
        for piece in (slice(0, cut), slice(cut, LENGTH)):
            alone = part(x[row : row + 1, piece])
            torch.testing.assert_close(found[row, piece], alone[0], rtol=1e-9, atol=1e-10)


def test_the_map_of_global_queries_reads_global_tokens_alone() -> None:
    """Pairs of every head cost 4 head_dim, and what the map of global queries would read of others is taken off."""
    part = made({}, POSITIONS["none"])
    num_pairs = sum(sees(part.spec.mask, q, k) for q in range(LENGTH) for k in range(LENGTH))
    idle = (LENGTH - 2) * 2 * DIM * HEADS * WIDTH
    expected = num_pairs * 4 * HEADS * WIDTH - idle
    assert part.flops_per_token(LENGTH) * LENGTH == pytest.approx(expected)
    assert part.new_state(2) is None


@pytest.mark.parametrize("num_global", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_beside_transformers(num_global: int, padded: bool) -> None:
    """Their layer, which takes texts of whole windows, and says with numbers what is padding and what is global."""
    library = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = library.LongformerConfig(
        hidden_size=32, num_attention_heads=4, attention_window=[4], num_hidden_layers=1
    )
    theirs = library.LongformerSelfAttention(config, 0).double().eval()
    dice = torch.Generator().manual_seed(num_global)
    for tensor in theirs.parameters():
        tensor.data.normal_(0.0, 1.5 * tensor.shape[-1] ** -0.5, generator=dice)
    mask = masks.Longformer(radius=2, num_global=num_global)
    ours = LongformerAttention(
        spec.LongformerAttention.model_validate({"num_heads": 4, "bias": True, "mask": mask}), 32
    ).double()
    state = dict(theirs.state_dict())
    state |= {"out.weight": torch.eye(32), "out.bias": torch.zeros(32)}
    ours.load_state_dict(state)

    x = torch.randn(2, 12, 32, generator=dice, dtype=torch.float64)
    real = torch.ones(2, 12, dtype=torch.bool)
    if padded:
        real[0, 7:] = False
    told = torch.where(real, 0.0, -10000.0).double()
    told[:, :num_global] = 10000.0
    layout = token_layout(real.long(), padding_mask=real if padded else None)
    with torch.no_grad():
        expected = theirs(
            x,
            attention_mask=told,
            is_index_masked=told < 0,
            is_index_global_attn=told > 0,
            is_global_attn=True,
        )[0]
        found = ours(x, Context(layout, 2))
    # Their softmax has float32 inside.
    torch.testing.assert_close(found[real], expected[real], rtol=1e-5, atol=1e-6)
