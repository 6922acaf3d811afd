"""Every option of attention beside the plain loops, for every kernel: values, and gradients along a line."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archwright.cpu import blocks
from archwright.model import build
from archwright.parts.context import Context
from archwright.parts.kernels import KERNELS
from archwright.parts.mixers import SoftmaxAttention
from archwright.parts.sharing import LayerInfo
from archwright.parts.token_layout import token_layout
from archwright.spec import attention as spec
from archwright.spec import masks, positions
from archwright.spec.model_spec import ModelSpec
from tests.parts import plain_attention

DIM, HEADS, KV, HEAD_DIM, LENGTH = 10, 4, 2, 4, 9
THETA = 16.0
"""With heads of 4 the frequencies are 1 and 1/4, which float32 holds exactly."""
MASK = masks.Window(size=5)
INDEX = np.arange(LENGTH)
SEEN = (INDEX[None] <= INDEX[:, None]) & (INDEX[None] > INDEX[:, None] - MASK.size)

NORM_KINDS = {
    "rms": {"kind": "rms", "eps": 0.05},
    "layer": {"kind": "layer", "eps": 0.05},
    "layer without bias": {"kind": "layer", "bias": False},
    "rms without weight": {"kind": "rms", "weight": "none"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    **{f"bias of {name}": {"bias": {name: True}} for name in spec.AttentionBias.model_fields},
    "biases": {"bias": True},
    "scale of another width": {"scale": {"kind": "sqrt", "dim": 11}},
    "inverse scale": {"scale": {"kind": "inverse", "numerator": 3.0}},
    "inverse layer scale": {"scale": {"kind": "inverse_layer"}},
    "fixed scale": {"scale": {"kind": "fixed", "value": 0.21}},
    "no scale": {"scale": {"kind": "none"}},
    **{
        f"length scale from {offset}": {
            "query_temperature": {"kind": "log", "coefficient": 0.7, "period": 3, "offset": offset}
        }
        for offset in (0, 1)
    },
    **{
        f"{norm} over {over} {place}": {
            "qk_norm": NORM_KINDS[norm],
            "qk_norm_over": over,
            "qk_norm_position": place,
        }
        for norm, over, place in product(
            NORM_KINDS, ("head", "per_head", "projection"), ("before", "after")
        )
    },
    "clip": {"qkv_clip": 0.7, "bias": True},
    "wider values": {"value_head_dim": 7, "bias": True},
    "narrower values": {"value_head_dim": 3, "sinks": True, "gate": "value"},
    "value scale": {"value_scale": 0.6},
    "value norm": {"v_norm": NORM_KINDS["rms"], "value_scale": 0.6},
    "value norm with bias": {"v_norm": NORM_KINDS["layer"]},
    "out norm": {"out_norm": NORM_KINDS["rms"]},
    "out norm behind a gate": {"out_norm": NORM_KINDS["layer"], "gate": "head"},
    "soft-cap": {"softcap": 0.8},
    "sinks": {"sinks": True},
    "gate of values": {"gate": "value"},
    "gate of heads": {"gate": "head"},
    "clip before norm": {
        "qkv_clip": 0.5,
        "qk_norm": NORM_KINDS["rms"],
        "v_norm": NORM_KINDS["rms"],
    },
    "all": {
        "value_head_dim": 6,
        "bias": True,
        "scale": {"kind": "fixed", "value": 0.6},
        "query_temperature": {"kind": "log", "coefficient": 0.7, "period": 2},
        "qk_norm": NORM_KINDS["layer"],
        "qk_norm_over": "per_head",
        "v_norm": NORM_KINDS["rms"],
        "value_scale": 1.7,
        "qkv_clip": 0.9,
        "softcap": 0.8,
        "sinks": True,
        "gate": "value",
    },
}
POSITIONS: dict[str, positions.Position] = {
    "none": positions.NoPosition(),
    "rope": positions.RoPE(theta=THETA),
    "alibi": positions.ALiBi(),
    "transformer_xl": positions.TransformerXL(),
}


def made(options: dict[str, Any], position: positions.Position) -> SoftmaxAttention:
    choice = spec.SoftmaxAttention.model_validate(
        {"num_heads": HEADS, "num_kv_heads": KV, "head_dim": HEAD_DIM, "value_head_dim": HEAD_DIM}
        | options
    )
    choice = choice.model_copy(update={"mask": MASK})
    info = LayerInfo(plain_attention.LAYER_NUMBER, position)
    module = SoftmaxAttention(choice, DIM, info).double()
    if module.rotary is not None:
        module.rotary.value.double()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2 and "norm" not in name:
                parameter.normal_(std=1.5 / math.sqrt(parameter.shape[1]))
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def run(part: SoftmaxAttention, x: Tensor) -> Tensor:
    layout = token_layout(torch.zeros(x.shape[:2], dtype=torch.long))
    out: Tensor = part(x, Context(layout, len(x)))
    return out


def by_loops(part: SoftmaxAttention, x: Tensor, position: positions.Position) -> np.ndarray:
    weights = {name: p.detach().numpy() for name, p in part.named_parameters()}
    theta = THETA if position.kind == "rope" else None
    added = {"alibi": alibi, "transformer_xl": transformer_xl(weights)}.get(position.kind)
    seen = np.broadcast_to(SEEN, (len(x), LENGTH, LENGTH))
    return plain_attention.attention(
        part.spec, weights, x.detach().numpy(), seen, theta=theta, added=added
    )


def alibi(head: int, query: int, key: int, q: np.ndarray, k: np.ndarray, scale: float) -> float:
    return 2.0 ** (-8 * (head + 1) / HEADS) * (key - query)


def transformer_xl(weights: plain_attention.Weights) -> plain_attention.AddedScore:
    def added(head: int, query: int, key: int, q: np.ndarray, k: np.ndarray, scale: float) -> float:
        here = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        u, v = (weights[f"position.{name}_bias"][here] for name in ("content", "distance"))
        angles = [(query - key) * 10_000.0 ** (-2 * n / DIM) for n in range(DIM // 2)]
        sines = np.array([*map(math.sin, angles), *map(math.cos, angles)])
        r = weights["position.distance.weight"][here] @ sines
        return scale * float(u @ k + (q + v) @ r)

    return added


def inputs() -> Tensor:
    return torch.randn(2, LENGTH, DIM, dtype=torch.float64, generator=torch.manual_seed(1))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 4)


@pytest.mark.sampled(fast=20)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("position", ["none", "rope", "alibi"])
@pytest.mark.parametrize("options", OPTIONS)
def test_values(options: str, position: str, kernel: str) -> None:
    part, x = made(OPTIONS[options], POSITIONS[position]).eval(), inputs()
    part.kernel = KERNELS[kernel]
    with torch.no_grad():
        found = run(part, x).numpy()
    expected = by_loops(part, x, POSITIONS[position])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.sampled(fast=20)
@pytest.mark.parametrize("kernel", ["eager", "sdpa", "blockwise"])
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients(options: str, kernel: str) -> None:
    """Along a random line through the input and all weights, beside the slope of the loops."""
    position = POSITIONS["rope"]
    part, x = made(OPTIONS[options], position), inputs().requires_grad_()
    part.kernel = KERNELS[kernel]
    given = [x, *part.parameters()]
    into = torch.randn(x.shape, dtype=torch.float64)
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


@pytest.mark.parametrize("kernel", KERNELS)
def test_dropout_is_off_outside_training(kernel: str) -> None:
    part, x = made({"dropout": 0.5, "sinks": True}, POSITIONS["none"]), inputs()
    part.kernel = KERNELS[kernel]
    expected = by_loops(part, x, POSITIONS["none"])
    with torch.no_grad():
        np.testing.assert_allclose(run(part.eval(), x).numpy(), expected, rtol=1e-9, atol=1e-10)
        assert not np.allclose(run(part.train(), x).numpy(), expected, rtol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", ["none", "sinks", "rms over head before", "no scale"])
def test_a_position_that_depends_on_content(options: str, kernel: str) -> None:
    position = POSITIONS["transformer_xl"]
    part, x = made(OPTIONS[options], position), inputs()
    part.kernel = KERNELS[kernel]
    with torch.no_grad():
        found = run(part, x).numpy()
    # sines are float32 numbers
    np.testing.assert_allclose(found, by_loops(part, x, position), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_values_of_another_width_beside_transformers() -> None:
    """A sliding layer of MiMo-V2: scaled values narrower than keys, sinks, rotation of a part."""
    library = pytest.importorskip("transformers.models.mimo_v2_flash.modeling_mimo_v2_flash")
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    config = library.MiMoV2FlashConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=12,
        v_head_dim=6,
        sliding_window=4,
        layer_types=["sliding_attention"],
        attention_value_scale=0.7,
        rope_parameters={"sliding_attention": rope},
    )
    config._attn_implementation = "eager"
    theirs = library.MiMoV2FlashAttention(config, 0).eval()
    dice = torch.Generator().manual_seed(0)
    for tensor in theirs.parameters():
        tensor.data.normal_(0.0, 1.5 * tensor.shape[-1] ** -0.5, generator=dice)
    words = ("num_heads=4", "num_kv_heads=2", "head_dim=12", "value_head_dim=6", "value_scale=0.7")
    mask = ("mask.kind=window", "mask.size=4", "sinks=true")
    model = build(
        ModelSpec(dim=32, num_layers=1, vocab_size=8, context_length=16).override(
            "position.fraction=0.5", *(f"attention.{word}" for word in (*words, *mask))
        )
    )
    ours = model.layers[0].attention.eval()
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
    held = {key.replace(".weight", ""): value for key, value in theirs.state_dict().items()}
    ours.load_state_dict(
        {"sinks": held.pop("sinks")} | {f"{names[key]}.weight": w for key, w in held.items()}
    )
    x, where = torch.randn(2, 11, 32, generator=dice), torch.arange(11)[None]
    turned = library.MiMoV2FlashRotaryEmbedding(config)(x, where, "sliding_attention")
    seen = torch.ones(11, 11).tril().triu(-3).bool()
    hidden = torch.zeros(11, 11).masked_fill(~seen, -torch.inf)[None, None]
    with torch.no_grad():
        expected = theirs(x, position_embeddings=turned, attention_mask=hidden)[0]
        found = ours(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
