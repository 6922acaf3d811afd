"""Latent attention and its formula, head by head in float64; and with a cache."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archwright.model import Decoder, build
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.mixers import LatentAttention
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec import latent as spec
from archwright.spec import positions
from archwright.spec.model_spec import ModelSpec
from tests.parts.plain_attention import linear, normed, turned

DIM, HEADS, LENGTH, THETA = 10, 3, 9, 16.0
SIZES = {
    "num_heads": HEADS, "kv_rank": 6, "nope_head_dim": 5, "rope_head_dim": 4, "value_head_dim": 7
}  # fmt: skip
LAYER = 3
"""Which layer an attention is tried as."""
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "a latent of queries": {"query_rank": 8},
    "biases": {"query_rank": 8, "bias": True},
    "biases without a latent of queries": {"bias": True},
    **{f"bias of {name}": {"bias": {name: True}} for name in ("latent", "rope_key", "out")},
    "layer norms": {"query_rank": 8, "norm": {"kind": "layer", "eps": 0.05}},
    "no norms": {"query_rank": 8, "norm": {"kind": "none"}},
    "fixed scale": {"scale": {"kind": "fixed", "value": 0.4}},
    "inverse layer scale": {"scale": {"kind": "inverse_layer"}},
    "inverse scale": {"scale": {"kind": "inverse", "numerator": 3.0}},
    "soft-cap": {"softcap": 0.8},
    "gate of values": {"gate": "value"},
    "gate of heads": {"gate": "head"},
}
POSITIONS: dict[str, positions.Position] = {
    "none": positions.NoPosition(),
    "rope": positions.RoPE(theta=THETA),
    "alibi": positions.ALiBi(),
}


def made(options: dict[str, Any], position: positions.Position) -> LatentAttention:
    choice = spec.LatentAttention.model_validate(SIZES | options)
    part = LatentAttention(choice, DIM, LayerInfo(LAYER, position)).double()
    if part.rotary is not None:
        part.rotary.value.double()
    return drawn(part)


def drawn(part: LatentAttention) -> LatentAttention:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in part.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=1.5 / math.sqrt(parameter.shape[1]))
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return part.eval()


def run(part: LatentAttention, x: Tensor) -> Tensor:
    layout = token_layout(torch.zeros(x.shape[:2], dtype=torch.long))
    out: Tensor = part(x, Context(layout, len(x)))
    return out


def by_loops(part: LatentAttention, x: Tensor, position: positions.Position) -> np.ndarray:
    """One query, one head and one key at a time."""
    weights = {name: p.detach().numpy() for name, p in part.named_parameters()}
    choice, rows = part.spec, []
    scales = {"sqrt": 9**-0.5, "fixed": 0.4, "inverse": 3.0 / 9, "inverse_layer": 9**-0.5 / LAYER}
    scale = scales[choice.scale.kind]
    for row in x.detach().numpy():
        if choice.query_rank == "none":
            q = linear(weights, "query", row)
        else:
            down = linear(weights, "query_down", row)
            q = linear(weights, "query_up", normed(choice.norm, weights, "query_norm", down))
        latent = normed(choice.norm, weights, "latent_norm", linear(weights, "latent", row))
        q, k, v = (
            y.reshape(LENGTH, HEADS, -1)
            for y in (q, linear(weights, "key_up", latent), linear(weights, "value_up", latent))
        )
        still, turning, shared = q[..., :5], q[..., 5:], linear(weights, "rope_key", row)[:, None]
        if position.kind == "rope":
            turning, shared = turned(turning, THETA), turned(shared, THETA)
        mixed = np.zeros((LENGTH, HEADS, 7))
        for t, h in np.ndindex(LENGTH, HEADS):
            scores = []
            for i in range(t + 1):
                score = scale * (still[t, h] @ k[i, h] + turning[t, h] @ shared[i, 0])
                if choice.softcap != "none":
                    score = choice.softcap * math.tanh(score / choice.softcap)
                if (
                    position.kind == "alibi"
                ):  # of three heads, the third has a slope of twice as many
                    score += (2**-4, 2**-8, 2**-2)[h] * (i - t)
                scores.append(score)
            weight = np.exp(scores) / np.exp(scores).sum()
            mixed[t, h] = sum(w * v[i, h] for i, w in enumerate(weight))
        if choice.gate != "none":
            mixed /= 1 + np.exp(-linear(weights, "gate", row).reshape(LENGTH, HEADS, -1))
        rows.append(linear(weights, "out", mixed.reshape(LENGTH, -1)))
    return np.stack(rows)


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_values(options: str, position: str, kernel: str) -> None:
    part = made(OPTIONS[options], POSITIONS[position])
    part.kernel = KERNELS[kernel]
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    with torch.no_grad():
        found = run(part, x).numpy()
    np.testing.assert_allclose(found, by_loops(part, x, POSITIONS[position]), rtol=1e-9, atol=1e-10)


def test_what_is_left_open_has_the_proportions_of_deepseek_v2() -> None:
    """Section 2.1.4: the latent is 4 heads wide and the rotary part half of one, with 128 heads of 128."""
    choice = spec.LatentAttention(num_heads=128, nope_head_dim=128)
    assert choice.heads(5120) == {
        "num_heads": 128, "kv_rank": 512, "nope_head_dim": 128, "rope_head_dim": 64, "value_head_dim": 128
    }  # fmt: skip
    for dim in range(1, 200):
        resolved = ModelSpec(dim=dim, attention=spec.LatentAttention()).resolved().attention
        assert isinstance(resolved, spec.LatentAttention)
        assert resolved.rope_head_dim != "auto"
        assert resolved.rope_head_dim % 2 == 0


def model(*words: str) -> Decoder:
    base = ModelSpec(dim=32, num_layers=2, vocab_size=33, context_length=128)
    built = build(base.override("attention.kind=latent", "attention.num_heads=4", *words))
    return built.double().eval()


def test_a_cache_keeps_the_latent_and_the_rotary_key_alone() -> None:
    found, tokens = model("attention.kv_rank=20", "attention.rope_head_dim=6"), 100
    cache = found.new_cache()
    found(torch.zeros(3, tokens).long(), cache=cache)
    assert cache.num_bytes == 8 * 3 * 2 * (tokens + 1) * (20 + 6)  # one slot takes what is not kept


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("position", ["rope", "none", "alibi", "t5", "transformer_xl"])
@pytest.mark.parametrize("rank", [1, 4, 40])
def test_with_and_without_keys_and_values(
    rank: int, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = model(f"attention.kv_rank={rank}", f"position.kind={position}", "attention.softcap=5.0")
    for parameter in found.parameters():
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(rank))
    tokens = torch.randint(33, (2, 30), generator=torch.Generator().manual_seed(1))
    expected = found(tokens).logits
    assert expected.std() > 0.1
    for absorbs in (True, False):
        monkeypatch.setattr(LatentAttention, "_absorbs", lambda self, t, s, a=absorbs: a)
        cache = found.new_cache()
        parts = [found(piece, cache=cache).logits for piece in tokens.split([11, 1, 9, 1, 8], 1)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("queries", "keys", "absorbs"), [(1, 1000, True), (30, 1000, True), (900, 1000, False)]
)
def test_the_cheaper_way_is_taken(queries: int, keys: int, absorbs: bool) -> None:
    """Beside multiplications counted head by head, in the shape of DeepSeek-V2."""
    sizes = {
        "num_heads": 2, "kv_rank": 512, "nope_head_dim": 128, "rope_head_dim": 64, "value_head_dim": 128
    }  # fmt: skip
    choice = spec.LatentAttention.model_validate(sizes)
    part = LatentAttention(choice, 64)
    with_keys = keys * 512 * (128 + 128) + queries * keys * (192 + 128)
    without = queries * (128 * 512 + 512 * 128) + queries * keys * (576 + 512)
    assert part._absorbs(queries, keys) == absorbs == (without < with_keys)
