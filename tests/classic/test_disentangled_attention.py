"""DeBERTa's attention beside its formula, one query, head and key at a time in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.classic.parts.disentangled import DisentangledAttention, log_buckets
from archwright.classic.spec import disentangled as spec
from archwright.model import build
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.token_layout import token_layout
from archwright.planning.cost import forward_flops
from archwright.spec.read import load
from tests.parts.plain_attention import linear

DIM, HEADS, WIDTH, LENGTH = 10, 3, 8, 11
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "biases": {"bias": True},
    "bias of query": {"bias": {"query": True}},
    "one term": {"terms": "content_to_position"},
    "the other term": {"terms": "position_to_content"},
    "maps of content": {"distance_maps": "content", "bias": True},
    "buckets": {"num_buckets": 4, "max_distance": 9},
    "norm": {"distance_norm": {"kind": "layer"}},
    "far": {"max_distance": 40},
    "causal": {"mask": {"kind": "causal"}},
    "window": {"mask": {"kind": "symmetric_window", "radius": 2}},
    "soft-cap": {"softcap": 0.8},
    "scale": {"scale": {"kind": "fixed", "value": 0.7}},
}


def made(options: dict[str, Any]) -> DisentangledAttention:
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "max_distance": 4}
    part = DisentangledAttention(spec.DisentangledAttention.model_validate(sizes | options), DIM)
    part.add_module("table", part.distances.value)  # so that it is among the parameters
    torch.manual_seed(0)
    for parameter in part.double().parameters():
        parameter.data = torch.randn_like(parameter) * 1.5 * DIM**-0.5
    return part.eval()


def vectors() -> Tensor:
    dice = torch.Generator().manual_seed(1)
    return torch.randn(2, LENGTH, DIM, generator=dice, dtype=torch.float64)


def row_of(distance: int, choice: spec.DisentangledAttention) -> int:
    """Return the row of the table for the distance of a query from a key, with the buckets as a loop."""
    side = int(choice.max_distance)
    if choice.num_buckets != "none":
        side, middle = choice.num_buckets, choice.num_buckets // 2
        if abs(distance) > middle:
            share = math.log(abs(distance) / middle)
            share /= math.log((int(choice.max_distance) - 1) / middle)
            size = math.ceil(share * (middle - 1) - 1e-6) + middle
            distance = size if distance > 0 else -size
    return min(max(distance + side, 0), 2 * side - 1)


def by_loops(part: DisentangledAttention, x: Tensor) -> np.ndarray:
    weights = {name: p.detach().numpy() for name, p in part.named_parameters()}
    choice, rows = part.spec, []
    table = weights["table.weight"]
    if choice.distance_norm.kind == "layer":
        table = (table - table.mean(-1, keepdims=True)) / np.sqrt(
            table.var(-1, keepdims=True) + 1e-5
        )
        table = table * weights["table.norm.weight"] + weights["table.norm.bias"]
    own = choice.distance_maps == "own"
    of_keys, of_queries = (
        linear(weights, name, table).reshape(-1, HEADS, WIDTH)
        if name in ("key", "query") or f"{name}.weight" in weights
        else None
        for name in (("distance_key", "distance_query") if own else ("key", "query"))
    )
    terms = {"both": 3, "content_to_position": 2, "position_to_content": 2}[choice.terms]
    scale = (0.7 if choice.scale.kind == "fixed" else WIDTH**-0.5) / math.sqrt(terms)
    for row in x.detach().numpy():
        q, k, v = (
            linear(weights, name, row).reshape(LENGTH, HEADS, WIDTH)
            for name in ("query", "key", "value")
        )
        mixed = np.zeros((LENGTH, HEADS, WIDTH))
        for i, h in np.ndindex(LENGTH, HEADS):
            total = 0.0
            for j in range(LENGTH):
                if choice.mask.kind == "causal" and j > i:
                    continue
                if choice.mask.kind == "symmetric_window" and abs(i - j) > 2:
                    continue
                score = scale * float(q[i, h] @ k[j, h])
                if choice.softcap != "none":
                    score = choice.softcap * math.tanh(score / choice.softcap)
                d = row_of(i - j, choice)
                if choice.terms != "position_to_content":
                    assert of_keys is not None
                    score += scale * float(q[i, h] @ of_keys[d, h])
                if choice.terms != "content_to_position":
                    assert of_queries is not None
                    score += scale * float(k[j, h] @ of_queries[d, h])
                total += math.exp(score)
                mixed[i, h] += math.exp(score) * v[j, h]
            mixed[i, h] /= total
        rows.append(linear(weights, "out", mixed.reshape(LENGTH, -1)))
    return np.stack(rows)


def run(part: DisentangledAttention, x: Tensor) -> Tensor:
    layout = token_layout(torch.zeros(x.shape[:2], dtype=torch.long))
    out: Tensor = part(x, Context(layout, len(x)))
    return out


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "flex"])
@pytest.mark.parametrize("options", OPTIONS)
def test_values(options: str, kernel: str) -> None:
    part = made(OPTIONS[options])
    part.use_kernel(kernel)
    with torch.no_grad():
        found = run(part, vectors()).numpy()
    np.testing.assert_allclose(found, by_loops(part, vectors()), rtol=1e-9, atol=1e-10)


def test_buckets_are_those_of_the_loop() -> None:
    for number, farthest in ((256, 512), (32, 64), (8, 24), (5, 9)):
        choice = spec.DisentangledAttention(num_buckets=number, max_distance=farthest)
        distances = torch.arange(-3 * farthest, 3 * farthest + 1)
        rows = (log_buckets(distances, number, farthest) + number).clamp(0, 2 * number - 1)
        assert rows.tolist() == [row_of(int(d), choice) for d in distances]


def test_layers_share_one_table() -> None:
    words = ("dim=16", "num_layers=3", "vocab_size=32", "context_length=12", "position.kind=none")
    apart = (
        "attention.kind=disentangled",
        "attention.num_heads=2",
        "layer_kinds.wide={attention={max_distance=20}}",
        'layers.prefix=["wide"]',
    )
    model = build(load("modern").override(*words, *apart))
    tables = [name for name, _ in model.named_parameters() if name.startswith("relatives")]
    assert tables == ["relatives.distances_0.weight", "relatives.distances_1.weight"]
    assert [p.shape[0] for n, p in model.named_parameters() if n in tables] == [40, 24]


def test_flops_of_a_model_name_the_branch() -> None:
    model = build(load("modern").override("attention.kind=disentangled", "position.kind=none"))
    assert forward_flops(model, 64)["layers.attention"] > 0
