"""Longformer's attention beside its formula, one query, head and key at a time in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.classic.parts.longformer import Longformer, LongformerAttention
from archwright.classic.spec import longformer as spec
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.masks import pairs
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec import positions
from archwright.testing.mask_laws import LENGTHS, check_members
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
    assert isinstance(choice.mask, spec.Longformer)
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


def test_windows_without_global_queries() -> None:
    choice = spec.Longformer(radius=2, num_global=3)
    pattern = Longformer(choice, 1, global_queries=False)
    for length in LENGTHS:
        check_members(pattern, length)
    assert pairs(pattern, 41) == 41 * 3 + 38 * 5 - 6 + 3  # three near pairs of global queries
