"""LongT5's attention and its formula, one query, head and key at a time in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.classic.parts.transient_global import TransientGlobalAttention
from archwright.classic.spec import transient_global as spec
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec import positions
from tests.parts.plain_attention import linear
from tests.parts.test_masks import sees

DIM, HEADS, WIDTH, LENGTH, BLOCK, LAYER = 10, 3, 8, 11, 4, 3
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "biases": {"bias": True},
    "soft-cap": {"softcap": 0.8},
    "inverse layer scale": {"scale": {"kind": "inverse_layer"}},
    "a causal mask": {"mask": {"kind": "causal"}},
    "all tokens": {"mask": {"kind": "full"}},
    "keys that count twice": {
        "mask": {"kind": "big_bird", "block_size": 1, "num_random": 1, "random": "first"}
    },
    "blocks of one": {"block_size": 1},
    "one block": {"block_size": 11},
    "a text without a block": {"block_size": 12},
}
POSITIONS: dict[str, positions.Position] = {
    "none": positions.NoPosition(),
    "t5": positions.T5Bias(num_buckets=8, max_distance=6),
    "t5 of its own": positions.T5Bias(num_buckets=8, max_distance=6, shared=False),
    "alibi": positions.ALiBi(),
}


def made(options: dict[str, Any], position: positions.Position) -> TransientGlobalAttention:
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "block_size": BLOCK}
    mask = {"mask": {"kind": "symmetric_window", "radius": 2}}
    choice = spec.TransientGlobalAttention.model_validate({**sizes, **mask, **options})
    torch.manual_seed(0)
    part = TransientGlobalAttention(choice, DIM, LayerInfo(LAYER, position)).double()
    for relative in (part.relative, part.sum_relative):
        if relative is not None:
            relative.value.double()
            for parameter in relative.value.parameters():
                torch.nn.init.normal_(parameter)
    for name, parameter in part.named_parameters():
        if "position" not in name:
            parameter.data = torch.randn_like(parameter) * 1.5 * DIM**-0.5
    return part.eval()


def vectors(length: int = LENGTH) -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(2, length, DIM, generator=dice, dtype=torch.float64)


def bucket(distance: int, two_way: bool) -> int:
    """Of 8 buckets up to a distance of 6, half of them for each direction if there are two; half of those are of one
    distance each."""
    number = 4 if two_way else 8
    near, behind = number // 2, abs(distance) if two_way else max(0, -distance)
    far = near + int(math.log(max(behind, 1) / near) / math.log(6 / near) * (number - near))
    return (behind if behind < near else min(far, number - 1)) + 4 * (two_way and distance > 0)


def added(
    position: positions.Position,
    table: np.ndarray | None,
    head: int,
    distance: int,
    two_way: bool = True,
) -> float:
    if position.kind == "alibi":  # the third of three heads: a slope of twice as many
        return -(2**-4, 2**-8, 2**-2)[head] * abs(distance)
    return 0.0 if table is None else float(table[bucket(distance, two_way), head])


def by_loops(part: TransientGlobalAttention, x: Tensor, position: positions.Position) -> np.ndarray:
    weights = {name: p.detach().numpy() for name, p in part.named_parameters()}
    tables = [
        None if r is None or position.kind != "t5" else r.value.table.weight.detach().numpy()  # type: ignore[union-attr]
        for r in (part.relative, part.sum_relative)
    ]
    choice, rows = part.spec, []
    two_way = not choice.mask.causal
    size, scale = (
        choice.block_size,
        WIDTH**-0.5 / (LAYER if choice.scale.kind == "inverse_layer" else 1),
    )
    for row in x.detach().numpy():
        long = len(row)
        blocks = [row[i * size : (i + 1) * size] for i in range(long // size)]
        if blocks:
            blocks[-1] = row[(len(blocks) - 1) * size :]
        sums = np.stack([b.sum(0) for b in blocks]) if blocks else np.zeros((0, DIM))
        sums = sums / np.sqrt((sums**2).mean(-1, keepdims=True) + choice.norm.eps)  # type: ignore[attr-defined]
        sums = sums * weights["norm.weight"]
        q, k, v = (
            linear(weights, n, row).reshape(-1, HEADS, WIDTH) for n in ("query", "key", "value")
        )
        s, u = (linear(weights, n, sums).reshape(-1, HEADS, WIDTH) for n in ("key", "value"))
        mixed = np.zeros((long, HEADS, WIDTH))
        for t, h in np.ndindex(long, HEADS):
            keys = [
                (k[i, h], v[i, h], added(position, tables[0], h, i - t, two_way))
                for i in range(long)
                for _ in range(times(choice.mask, t, i, long))
            ]
            own = min(t // size, len(blocks) - 1)
            keys += [
                (s[i, h], u[i, h], added(position, tables[1], h, i - own))
                for i in range(len(blocks))
            ]
            total = 0.0
            for key, value, more in keys:
                score = scale * float(q[t, h] @ key)
                if choice.softcap != "none":
                    score = choice.softcap * math.tanh(score / choice.softcap)
                total += math.exp(score + more)
                mixed[t, h] += math.exp(score + more) * value
            mixed[t, h] /= total
        rows.append(linear(weights, "out", mixed.reshape(long, -1)))
    return np.stack(rows)


def times(mask: Any, query: int, key: int, length: int) -> int:
    """Return how often a key is seen: the first block of BigBird's again for each random one, from those between."""
    if not sees(mask, query, key, length=length):
        return 0
    again = mask.kind == "big_bird" and key == 0 < query < length - 1 and length > 7
    return 2 if again else 1


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_values(options: str, position: str, kernel: str) -> None:
    part = made(OPTIONS[options], POSITIONS[position])
    part.use_kernel(kernel)
    with torch.no_grad():
        found = part(vectors()).numpy()
    expected = by_loops(part, vectors(), POSITIONS[position])
    exact = "twice" not in options  # what counts twice adds ln 2 in float32
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 if exact else 1e-8)


@pytest.mark.parametrize("kernel", ["eager", "blockwise"])
@pytest.mark.parametrize("position", ["none", "t5"])
def test_each_document_of_a_packed_row_has_sums_of_its_own(position: str, kernel: str) -> None:
    part, x = made({}, POSITIONS[position]), vectors()
    part.use_kernel(kernel)
    ids = torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [1] * 2])
    layout = token_layout(torch.zeros(2, LENGTH).long(), segment_ids=ids)
    found = part(x, Context(layout, 2))
    for row, cut in enumerate((4, 9)):
        for piece in (slice(0, cut), slice(cut, LENGTH)):
            alone = part(x[row : row + 1, piece])
            torch.testing.assert_close(found[row, piece], alone[0], rtol=1e-9, atol=1e-10)
