"""Models that no library has, beside their papers: the whole tiny model, computed anew in NumPy from the
formulas that were published (`plain_papers.py`), and with one detail of them changed."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from archwright.model import build
from archwright.spec.read import load
from archwright.testing.case import enlarged
from tests.model.plain_papers import (
    Array,
    Paper,
    Weights,
    banded,
    block_sparse,
    dynamic_tanh,
    embedding_skip,
    gated,
    gated_values,
    gegelu,
    gelu,
    gelu_tanh,
    layer_norm,
    linear,
    plain,
    relu,
    rms_norm,
    rope,
    scaled_values,
    silu,
    sinusoids,
    t5_bias,
    transformer_xl,
)

LENGTH = 40
"""Longer than any window, and far enough for distances that share a bucket."""


def of_2017(w: Weights, length: int) -> Array:
    return sinusoids(np.arange(length), w["embedding.weight"].shape[1], by_turns=True)


def learned(w: Weights, length: int) -> Array:
    table: Array = w["position.table.weight"][:length]
    return table


TEXTBOOK = Paper(
    wiring="post", embedding_scale=8.0, added=of_2017, feedforward=plain(relu)
)  # section 3; 8 = sqrt(64), section 3.4
GPT_3 = Paper(added=learned, sees=banded(8))  # section 2.1
GOPHER = Paper(norm=rms_norm, bias=transformer_xl())  # section 3.1
LAMDA = Paper(norm=rms_norm, eps=1e-6, bias=t5_bias(), feedforward=gated(gelu_tanh))  # section 3
PALM = Paper(
    wiring="parallel",
    kv_heads=1,
    turn=rope(1e4),
    feedforward=gated(silu),
    logit_scale=64**-0.5,
)  # sections 2 and 5
PHI_3_SMALL = Paper(
    kv_heads=2,
    embedding_scale=10.0,
    turn=rope(1e6),
    sees=block_sparse(1, 16, 8, step=2),
    scale=lambda width: 1 / width,
    feedforward=gegelu(20.0),
    logit_scale=1 / 8,
)  # section 2, and the published code, which moves columns by max(1, stride // heads)
QWEN = Paper(
    norm=rms_norm, eps=1e-6, turn=rope(1e4), feedforward=gated(silu)
)  # section 2.3; what it does to longer texts (section 2.4) begins beyond 2,048 tokens

MODERN = Paper(kv_heads=1, norm=rms_norm, turn=rope(1e4), feedforward=gated(silu))

BASES = dict.fromkeys(
    ("DyT", "skip from the embedding", "value embeddings", "gated value embeddings"), "modern"
)
"""Presets that models are made from which are none themselves."""

CHANGED = {
    # So that groups of heads are more than one, and logits have the factor that small models are without.
    "phi-3-small": ["attention.num_kv_heads=2", "head.logit_divisor=8"],
    "DyT": ["norm.kind=dyt"],
    "value embeddings": [
        "attention.num_kv_heads=2",
        "layer_kinds.looks.attention.value_embedding.kind=scaled",
        'layers.cycle=["default", "looks"]',
    ],
    "gated value embeddings": ["attention.num_kv_heads=2", "attention.value_embedding.kind=gated"],
    "skip from the embedding": ["residual.embedding_skip=true"],
}
"""What is changed of the presets."""

PAPERS = {
    "textbook": TEXTBOOK,
    "gpt-3-175b": GPT_3,
    "gopher-280b": GOPHER,
    "chinchilla-70b": GOPHER,
    "lamda-137b": LAMDA,
    "palm-540b": PALM,
    "phi-3-small": PHI_3_SMALL,
    "qwen-14b": QWEN,
    "DyT": replace(MODERN, norm=dynamic_tanh),
    "value embeddings": replace(MODERN, kv_heads=2, values=scaled_values),
    "gated value embeddings": replace(MODERN, kv_heads=2, values=gated_values(32)),
    "skip from the embedding": replace(MODERN, from_embedding=embedding_skip),
}


def swapped(w: Weights, at: str, x: Array) -> Array:
    """The function on the wrong half of a gated feed-forward."""
    hidden = linear(w, f"{at}.gate", x) * silu(linear(w, f"{at}.up", x))
    return linear(w, f"{at}.down", hidden)


FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("textbook", "norms before the branches", {"wiring": "pre"}),
    ("textbook", "an embedding as it is", {"embedding_scale": 1.0}),
    ("textbook", "GELU", {"feedforward": plain(gelu)}),
    (
        "textbook",
        "positions from 1",
        {"added": lambda w, n: sinusoids(np.arange(1, n + 1), 64, by_turns=True)},
    ),
    (
        "textbook",
        "sines, then cosines",
        {"added": lambda w, n: sinusoids(np.arange(n), 64, by_turns=False)},
    ),
    ("gpt-3-175b", "a band of one key more", {"sees": banded(9)}),
    ("gpt-3-175b", "the band in the other layers", {"sees": banded(8, first=0)}),
    ("gpt-3-175b", "exact GELU", {"feedforward": plain(gelu)}),
    (
        "gpt-3-175b",
        "positions from 1",
        {"added": lambda w, n: w["position.table.weight"][1 : n + 1]},
    ),
    ("gopher-280b", "LayerNorm", {"norm": layer_norm}),
    ("gopher-280b", "no content bias", {"bias": transformer_xl(u=0.0)}),
    ("gopher-280b", "no distance bias", {"bias": transformer_xl(v=0.0)}),
    ("gopher-280b", "distances to the other side", {"bias": transformer_xl(sign=-1)}),
    ("gopher-280b", "sines and cosines by turns", {"bias": transformer_xl(by_turns=True)}),
    ("gopher-280b", "ReLU", {"feedforward": plain(relu)}),
    ("chinchilla-70b", "no relative positions", {"bias": None}),
    ("lamda-137b", "buckets that end sooner", {"bias": t5_bias(max_distance=64)}),
    ("lamda-137b", "half of the buckets, as in an encoder", {"bias": t5_bias(num_buckets=16)}),
    ("lamda-137b", "SwiGLU", {"feedforward": gated(silu)}),
    ("lamda-137b", "no scale, as in T5", {"scale": lambda width: 1.0}),
    ("palm-540b", "RMSNorm", {"norm": rms_norm}),
    ("palm-540b", "branches one after the other", {"wiring": "pre"}),
    ("palm-540b", "GEGLU", {"feedforward": gated(gelu_tanh)}),
    ("palm-540b", "logits as they are", {"logit_scale": 1.0}),
    ("palm-540b", "another base", {"turn": rope(1e6)}),
    ("phi-3-small", "the usual scale", {"scale": lambda width: width**-0.5}),
    ("phi-3-small", "an embedding as it is", {"embedding_scale": 1.0}),
    ("phi-3-small", "logits as they are", {"logit_scale": 1.0}),
    ("phi-3-small", "no one beside the linear half", {"feedforward": gegelu(20.0, plus=0.0)}),
    ("phi-3-small", "nothing cut", {"feedforward": gegelu(np.inf)}),
    ("phi-3-small", "the other layers dense", {"sees": block_sparse(1, 16, 8, step=2, first=1)}),
    ("phi-3-small", "heads that see alike", {"sees": block_sparse(1, 16, 8, step=0)}),
    ("phi-3-small", "columns that move by one block", {"sees": block_sparse(1, 16, 8)}),
    ("phi-3-small", "heads that take keys by turns", {"by_groups": False}),
    ("phi-3-small", "columns a block too late", {"sees": block_sparse(1, 16, 8, step=2, ahead=0)}),
    ("phi-3-small", "one local block more", {"sees": block_sparse(1, 17, 8, step=2)}),
    ("phi-3-small", "all layers dense", {"sees": block_sparse(1, LENGTH, 8)}),
    ("qwen-14b", "the function on the other half", {"feedforward": swapped}),
    ("qwen-14b", "another base", {"turn": rope(1e6)}),
    ("qwen-14b", "LayerNorm", {"norm": layer_norm}),
    (
        "DyT",
        "alpha as it was",
        {"norm": lambda x, weight, bias, eps, alpha: weight * np.tanh(0.5 * x) + bias},
    ),
    ("DyT", "no offset", {"norm": lambda x, weight, bias, eps, alpha: weight * np.tanh(alpha * x)}),
    ("value embeddings", "values of x alone", {"values": None}),
    ("value embeddings", "a plain sum", {"values": lambda w, at, v, rows, x: v + rows}),
    (
        "value embeddings",
        "heads by turns",
        {"values": lambda w, at, v, rows, x: scaled_values(w, at, v, rows[::-1], x)},
    ),
    ("gated value embeddings", "values of x alone", {"values": None}),
    ("gated value embeddings", "half the gate", {"values": gated_values(32, factor=1.0)}),
    (
        "gated value embeddings",
        "the gates of other heads",
        {"values": lambda w, at, v, rows, x: gated_values(32)(w, at, v[::-1], rows[::-1], x)[::-1]},
    ),
    ("skip from the embedding", "no skip", {"from_embedding": None}),
    (
        "skip from the embedding",
        "the stream as it is",
        {"from_embedding": lambda w, at, x, x0: x + w[f"{at}.embedding_skip.second"] * x0},
    ),
]
"""Of a model, what is wrong, and the detail of the paper that is."""


@cache
def run(name: str) -> tuple[Weights, Array, Array]:
    """Return a tiny model's weights, a text, and what the model makes of it, all in float64."""
    spec = load(BASES.get(name, name)).tiny().override("vocab_size=256", *CHANGED.get(name, ()))
    model = enlarged(build(spec), 0, 1.5)
    if name == "phi-3-small":  # so that the cut of hidden values is met
        with torch.no_grad():
            for n, parameter in model.named_parameters():
                if n.endswith(("gate.weight", "feedforward.up.weight")):
                    parameter.mul_(6)
    tokens = torch.randint(256, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(tokens).logits
    weights = {n: value.double().numpy() for n, value in model.state_dict().items()}
    return weights, tokens[0].numpy(), found[0].numpy()


def error(paper: Paper, name: str) -> float:
    """Return the largest difference between a paper's logits and the model's, over their spread."""
    weights, tokens, found = run(name)
    return float(np.abs(paper.logits(weights, tokens) - found).max() / found.std())


@pytest.mark.parametrize("name", PAPERS)
def test_a_model_is_what_its_paper_says(name: str) -> None:
    """The model takes angles in float32, also in float64; all else differs by rounding."""
    turns = name not in {"gpt-3-175b", "lamda-137b"}
    assert error(PAPERS[name], name) < (1e-5 if turns else 1e-9)


@pytest.mark.parametrize(
    ("name", "fault", "changed"), FAULTS, ids=[f"{n}: {f}" for n, f, _ in FAULTS]
)
def test_a_detail_that_is_wrong_is_seen(name: str, fault: str, changed: dict[str, Any]) -> None:
    assert error(replace(PAPERS[name], **changed), name) > 2e-4


MAPS = {"query", "key", "value", "out", "up", "down"}

BIASED: dict[str, set[str]] = {
    "textbook": MAPS | {"norm"},
    "gpt-3-175b": MAPS | {"norm"},
    "gopher-280b": MAPS,
    "chinchilla-70b": MAPS,
    "lamda-137b": set(),
    "palm-540b": set(),
    "phi-3-small": MAPS | {"gate", "norm"},
    "qwen-14b": {"query", "key", "value"},
    "DyT": {"norm"},
    "value embeddings": set(),
    "gated value embeddings": set(),
    "skip from the embedding": set(),
}
"""What has a bias: nothing in PaLM (section 2), queries, keys and values in Qwen (section 2.3)."""

UNTIED = {"lamda-137b", "qwen-14b", *BASES}
"""Heads with a table of their own: Qwen's section 2.3 says so."""


@pytest.mark.parametrize("name", PAPERS)
def test_biases_and_tables_are_those_of_the_paper(name: str) -> None:
    """What the formulas above take as they find it."""
    weights, *_ = run(name)
    biased = [n.split(".") for n in weights if n.endswith(".bias")]
    assert {"norm" if {"norm", "norms"} & {*n} else n[-2] for n in biased} == BIASED[name]
    tied = np.array_equal(weights["embedding.weight"], weights["head.weight"])
    assert tied == (name not in UNTIED)
