"""Transformer-XL: segments with a memory of those before, beside the paper's formula and XLNet's published code."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from archwright import hf
from archwright.model import Decoder, build
from archwright.spec.model_spec import ModelSpec

Array = NDArray[np.float64]

SEGMENT, MEMORY, LENGTH, HEADS = 5, 7, 23, 2
EPS = 1e-5
SPEC = ModelSpec(dim=12, num_layers=3, vocab_size=32, context_length=64).override(
    "residual.kind=post",
    "norm.kind=layer",
    f"norm.eps={EPS}",
    "position.kind=transformer_xl",
    f"attention.num_heads={HEADS}",
    f"attention.num_kv_heads={HEADS}",
    "attention.mask.kind=segment_memory",
    f"attention.mask.size={SEGMENT}",
    f"attention.mask.memory={MEMORY}",
    "feedforward.kind=relu",
    "feedforward.bias=true",
)


def drawn(spec: ModelSpec) -> Decoder:
    model = build(spec).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim > 1:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter.shape[1]))
            else:
                parameter.add_(0.3 * noise)
    return model


def tokens() -> Tensor:
    return torch.randint(0, 32, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def by_the_paper(model: Decoder, row: Array, memory: int = MEMORY) -> Array:
    """Return the last layer's output of one text, segment by segment: section 3.2's recurrence of hidden states, and
    section 3.3's scores."""
    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    held: list[Array] = [np.zeros((0, SPEC.dim)) for _ in range(SPEC.num_layers)]
    found = []
    for first in range(0, LENGTH, SEGMENT):
        h = weights["embedding.weight"][row[first : first + SEGMENT]]
        for n in range(SPEC.num_layers):
            both = np.concatenate((held[n], h))  # [SG(memory) ; hidden states]
            mine = {
                k.split(".", 2)[2]: v for k, v in weights.items() if k.startswith(f"layers.{n}.")
            }
            held[n] = both[len(both) - memory :] if len(both) > memory else both
            h = _layer(mine, h, both)
        found.append(h)
    return np.concatenate(found)


def _layer(w: dict[str, Array], h: Array, both: Array) -> Array:
    num, seen, width = len(h), len(both), SPEC.dim // HEADS
    q, k, v = (
        (x @ w[f"attention.{name}.weight"].T).reshape(-1, HEADS, width)
        for name, x in (("query", h), ("key", both), ("value", both))
    )
    u, v_bias = (
        w[f"attention.position.{name}_bias"].reshape(HEADS, width)
        for name in ("content", "distance")
    )
    mixed = np.zeros((num, HEADS, width))
    for i in range(num):
        at = seen - num + i  # the query's own place among memory and segment
        distances = at - np.arange(at + 1)
        angles = distances[:, None] / 10_000.0 ** (np.arange(0, SPEC.dim, 2) / SPEC.dim)
        # Vectors of distances are kept in float32.
        sines = np.concatenate((np.sin(angles), np.cos(angles)), -1).astype(np.float32)
        r = (sines @ w["attention.position.distance.weight"].T).reshape(-1, HEADS, width)
        for head in range(HEADS):
            keys = k[: at + 1, head]
            scores = keys @ (q[i, head] + u[head]) + r[:, head] @ (q[i, head] + v_bias[head])
            shares = np.exp((scores - scores.max()) / math.sqrt(width))
            mixed[i, head] = shares / shares.sum() @ v[: at + 1, head]
    h = _norm(w, "attention", h + mixed.reshape(num, -1) @ w["attention.out.weight"].T)
    up = np.maximum(h @ w["feedforward.up.weight"].T + w["feedforward.up.bias"], 0)
    down = up @ w["feedforward.down.weight"].T + w["feedforward.down.bias"]
    return _norm(w, "feedforward", h + down)


def _norm(w: dict[str, Array], branch: str, x: Array) -> Array:
    normed: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPS)
    weight, bias = (w[f"residual.norms.{branch}.{name}"] for name in ("weight", "bias"))
    y: Array = normed * weight + bias
    return y


def test_a_text_read_at_once_is_read_segment_by_segment() -> None:
    model = drawn(SPEC)
    with torch.no_grad():
        found = model.hidden(tokens()).numpy()
    for row, hidden in zip(tokens().numpy(), found, strict=True):
        np.testing.assert_allclose(hidden, by_the_paper(model, row), rtol=1e-9, atol=1e-9)
        shorter = by_the_paper(model, row, MEMORY - 1)
        np.testing.assert_allclose(hidden[:SEGMENT], shorter[:SEGMENT], rtol=1e-9, atol=1e-9)
        assert np.abs(hidden - shorter).max() > 1e-3


def test_xlnets_memory_is_this_one(tmp_path: Path) -> None:
    """XLNet with attn_type "uni", reading segments with its `mems`, is the causal model of its file under this mask."""
    library = pytest.importorskip("tests.hf.library")
    theirs = library.randomise(library.build("xlnet", attn_type="uni", mem_len=MEMORY))
    loaded = hf.load(library.save(theirs, tmp_path / "xlnet"))
    spec = loaded.spec.override(
        "attention.mask.kind=segment_memory",
        f"attention.mask.size={SEGMENT}",
        f"attention.mask.memory={MEMORY}",
    )
    ours = build(spec).eval()
    ours.load_state_dict(loaded.model.state_dict())
    with torch.no_grad():
        mems, expected = None, []
        for piece in tokens().split(SEGMENT, 1):
            out = theirs(input_ids=piece, mems=mems, use_mems=True)
            mems = out.mems
            expected.append(out.logits)
        found = ours(tokens()).logits
        longer = loaded.model(tokens()).logits
    torch.testing.assert_close(found, torch.cat(expected, 1), atol=2e-5, rtol=1e-5)
    assert float((longer - torch.cat(expected, 1)).abs().max()) > 1e-2
