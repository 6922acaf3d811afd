"""Parameters and FLOPs against closed formulas, and against what torch counts while it computes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from archwright.classic.spec.longformer import Longformer, LongformerAttention
from archwright.data.batches import TextLengths
from archwright.model import build
from archwright.model.model import Decoder
from archwright.planning.cost import (
    active_parameters,
    flops_per_token,
    forward_flops,
    parameters_by_part,
    run_flops_per_token,
)
from archwright.planning.memory import WHOLE_LOGITS, cache_bytes, least_memory, total_memory
from archwright.spec.attention import SoftmaxAttention
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.run_spec import RunSpec


def small(*changes: str) -> Decoder:
    spec = load("modern").override("dim=64", "num_layers=3", "context_length=32", "vocab_size=128")
    return build(spec.override("attention.num_heads=4", "attention.num_kv_heads=2", *changes))


def test_parameters_by_part() -> None:
    assert parameters_by_part(small()) == {
        "embedding": 128 * 64,
        "layers.residual.norms.attention": 3 * 64,
        "layers.residual.norms.feedforward": 3 * 64,
        "layers.attention.query": 3 * 64 * 64,
        "layers.attention.key": 3 * 64 * 32,
        "layers.attention.value": 3 * 64 * 32,
        "layers.attention.out": 3 * 64 * 64,
        "layers.feedforward.gate": 3 * 64 * 192,
        "layers.feedforward.up": 3 * 64 * 192,
        "layers.feedforward.down": 3 * 64 * 192,
        "norm": 64,
        "head": 128 * 64,
    }


@pytest.mark.parametrize("name", ["modern", "textbook"])
def test_the_parts_are_the_whole(name: str) -> None:
    model = build(load(name), device="meta")
    assert sum(parameters_by_part(model).values()) == model.num_parameters()
    assert ("head" in parameters_by_part(model)) == (not model.spec.head.tied)


def test_flops_by_hand() -> None:
    """3 * (2 * weights + 4 * dim of all heads * mean number of visible keys), layer by layer."""
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192) + 128 * 64
    keys = (1 + 32) / 2
    assert flops_per_token(small(), 32) == pytest.approx(3 * (2 * weights + 3 * 4 * 64 * keys))


EXPERTS = (
    "feedforward.kind=experts",
    "feedforward.num_experts=6",
    "feedforward.expert.hidden_dim=32",
    "feedforward.expert.bias=true",
    "feedforward.shared=added",
    "feedforward.shared_hidden_dim=48",
)


def test_experts_cost_what_a_token_meets() -> None:
    """Two of six experts beside the shared one and the router; all six are stored."""
    model = small(*EXPERTS)
    assert {k: n for k, n in parameters_by_part(model).items() if "feedforward" in k} == {
        "layers.residual.norms.feedforward": 3 * 64,
        "layers.feedforward.router": 3 * 6 * 64,
        **dict.fromkeys(
            ("layers.feedforward.experts.gate", "layers.feedforward.experts.up"),
            3 * 6 * (64 + 1) * 32,
        ),
        "layers.feedforward.experts.down": 3 * 6 * (32 + 1) * 64,
        **dict.fromkeys(
            ("layers.feedforward.shared.gate", "layers.feedforward.shared.up"), 3 * (64 + 1) * 48
        ),
        "layers.feedforward.shared.down": 3 * (48 + 1) * 64,
    }
    unused = 3 * 4 * (2 * (64 + 1) * 32 + (32 + 1) * 64)
    assert active_parameters(model) == model.num_parameters() - unused
    feedforward = 6 * 64 + 2 * 3 * 64 * 32 + 3 * 64 * 48
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32 + feedforward) + 128 * 64
    keys = (1 + 32) / 2
    assert flops_per_token(model, 32) == pytest.approx(3 * (2 * weights + 3 * 4 * 64 * keys))


def test_a_dense_model_is_all_active() -> None:
    assert active_parameters(small()) == small().num_parameters()


def test_a_window_sees_less() -> None:
    pairs = sum(min(8, position + 1) for position in range(32))
    full, windowed = (
        flops_per_token(small(*changes), 32)
        for changes in ([], ["attention.mask.kind=window", "attention.mask.size=8"])
    )
    assert full - windowed == pytest.approx(3 * 3 * 4 * 64 * (32 * 33 / 2 - pairs) / 32)


def test_a_tied_head_is_computed_all_the_same() -> None:
    assert flops_per_token(small("head.tied=true"), 32) == flops_per_token(small(), 32)


def test_layers_that_share_parameters_are_computed_each() -> None:
    assert flops_per_token(small("layers.shared=true"), 32) == flops_per_token(small(), 32)


def test_without_attention_length_does_not_matter() -> None:
    spec = load("modern").override("dim=64", "num_layers=3", "context_length=32")
    model = build(spec.override("attention.kind=none"))
    assert flops_per_token(model, 8) == flops_per_token(model, 32)


@pytest.mark.parametrize("name", ["modern", "textbook", "latent"])
def test_torch_counts_the_same(name: str) -> None:
    """torch counts dense attention, both halves of the mask, so that difference is added."""
    length = 32
    base = load("modern").override(*LATENT) if name == "latent" else load(name)
    spec = base.override("dim=64", "num_layers=2", f"context_length={length}")
    model = build(spec.override("vocab_size=128")).use_kernel("eager")
    tokens = torch.randint(0, 128, (2, length))
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens).logits
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    width = 4 * (24 + 12) if name == "latent" else 2 * 64
    hidden_by_mask = 3 * 2 * 2 * width * (length**2 - length * (length + 1) / 2) / length
    counted = counter.get_total_flops() / tokens.numel()
    assert counted == pytest.approx(flops_per_token(model, length) + hidden_by_mask, rel=1e-3)


def test_a_meta_model_costs_the_same() -> None:
    spec = load("modern")
    meta = build(spec, device="meta")
    assert flops_per_token(meta, 256) > 6 * 0.8 * meta.num_parameters()


LATENT = (
    "attention.kind=latent",
    "attention.num_heads=4",
    "attention.query_rank=24",
    "attention.kv_rank=20",
    "attention.nope_head_dim=16",
    "attention.rope_head_dim=8",
    "attention.value_head_dim=12",
)


def test_latent_attention_by_hand() -> None:
    """Maps of x, from the latents and to the stream; keys of 16 + 8 and values of 12 in four heads."""
    spec = load("modern").override("dim=64", "num_layers=3", "context_length=32", "vocab_size=128")
    model = build(spec.override(*LATENT))
    attention = 64 * (24 + 20 + 8) + 24 * 4 * 24 + 20 * 4 * (16 + 12) + 4 * 12 * 64
    weights = 3 * (attention + 3 * 64 * 192) + 128 * 64
    expected = 3 * (2 * weights + 3 * 2 * 4 * (24 + 12) * (1 + 32) / 2)
    assert flops_per_token(model, 32) == pytest.approx(expected)


def test_values_of_another_width_by_hand() -> None:
    """Values and what leaves the heads are 24 wide, keys 16; of queries there are twice as many."""
    attention = 64 * (4 * 16 + 2 * 16 + 2 * 24) + 4 * 24 * 64
    weights = 3 * (attention + 3 * 64 * 192) + 128 * 64
    expected = 3 * (2 * weights + 3 * 2 * 4 * (16 + 24) * (1 + 32) / 2)
    assert flops_per_token(small("attention.value_head_dim=24"), 32) == pytest.approx(expected)


@pytest.mark.parametrize("mask", ["causal", "window"])
def test_a_cache_holds_what_is_planned(mask: str) -> None:
    """Beside what a cache does hold, which has one slot more for each row and layer."""
    wide = ("attention.value_head_dim=24",)
    for words, width in (((), 2 * 2 * 16), (wide, 2 * (16 + 24)), (LATENT, 20 + 8)):
        spec = small().spec.override(*words, f"attention.mask.kind={mask}")
        model = build(spec.override(*(["attention.mask.size=70"] if mask == "window" else [])))
        cache = model.new_cache()
        model(torch.zeros(2, 90).long(), cache=cache)
        tokens = 70 if mask == "window" else 90
        assert cache_bytes(model, 90, itemsize=4) == 3 * tokens * width * 4
        assert cache.num_bytes == 2 * 3 * (tokens + 1) * width * 4


def test_the_least_memory() -> None:
    model = build(ModelSpec(dim=64, num_layers=1, context_length=32, vocab_size=128), device="meta")
    found = least_memory(model, 10)
    assert found.model == 16 * model.num_parameters()
    assert found.logits == 10 * 32 * 128 * 4
    assert found.activations == 10 * 32 * 64 * 2
    assert found.total == found.model + found.logits + found.activations
    assert least_memory(model, 10, whole_logits=False) == found
    many = least_memory(model, 10**6, whole_logits=False)
    assert many.logits == WHOLE_LOGITS < least_memory(model, 10**6).logits


def test_there_is_memory() -> None:
    assert 5e8 < total_memory("cpu") < 1e14


def test_flops_of_two_stacks_are_those_of_the_products_by_hand() -> None:
    """A source of 20 tokens, of which each is read by the encoder, and a target of 10."""
    model = build(
        load("modern").override(
            *("encoder.kind=stack", "encoder.num_layers=3", "cross_attention.kind=softmax"),
            *("dim=64", "num_layers=2", "vocab_size=128", "attention.num_heads=4"),
            *("encoder.attention.num_heads=4", "cross_attention.num_heads=4"),
            *("feedforward.hidden_dim=96", "encoder.feedforward.hidden_dim=96"),
        ),
        device="meta",
    )
    dim, hidden, source, target, vocab = 64, 96, 20, 10, 128
    of_attention = 4 * dim * dim
    grouped = 2 * dim * dim + 2 * dim * dim // 2  # 2 heads of 4 for keys and values
    feedforward = 3 * dim * hidden
    encoder = 3 * (of_attention + feedforward) * source
    decoder = 2 * (grouped + 2 * dim * dim + feedforward) * target
    memory = 2 * 2 * dim * dim * source
    head = dim * vocab * target
    scores = 3 * 2 * dim * source * source
    scores += 2 * 2 * dim * target * (target + 1) / 2 + 2 * 2 * dim * target * source
    expected = 6 * (encoder + decoder + memory + head + scores) / source
    assert flops_per_token(model, source, target) == pytest.approx(expected, rel=1e-12)


def test_flops_of_documents_are_those_of_their_squared_lengths() -> None:
    """3 * (2 * weights * n + 4 * dim * n (n + 1) / 2) for each document of n tokens; of windows an upper bound."""
    n = np.random.default_rng(0).integers(1, 400, 300)
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192) + 128 * 64
    expected = 6 * weights * n.sum() + 3 * 3 * 4 * 64 * (n * (n + 1) / 2).sum()
    lengths = TextLengths((n**2).sum() / n.sum(), target=1.0)
    run = RunSpec(model=small().spec)
    assert run_flops_per_token(run, small(), lengths) * n.sum() == pytest.approx(expected, 1e-12)
    windowed = small("attention.mask.kind=window", "attention.mask.size=50")
    one_by_one = sum(int(k) * flops_per_token(windowed, int(k)) for k in n)
    bound = run_flops_per_token(run, windowed, lengths) * n.sum()
    assert one_by_one < bound < 1.01 * one_by_one


def test_documents_of_45_tokens_in_windows_of_4096() -> None:
    """A fifth of the FLOPs of whole windows, at this width."""
    run = RunSpec(model=small("context_length=4096").spec)
    whole = run_flops_per_token(run, small())
    weights = 3 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192) + 128 * 64
    found = run_flops_per_token(run, small(), TextLengths(45.0, target=1.0))
    assert found == pytest.approx(6 * weights + 3 * 3 * 4 * 64 * 46 / 2)
    assert found < 0.2 * whole


@pytest.mark.parametrize("preset", ["longformer-base", "bigbird-base", "led-base"])
def test_pairs_of_long_texts_are_those_of_their_masks(preset: str) -> None:
    """Counted pair by pair; queries of global tokens have those of a window, too."""
    spec, length = load(preset).resolved(), 1500
    stack = spec.encoder_model or spec
    model = build(spec, device="meta")
    part = "encoder.layers.attention" if spec.encoder_model else "layers.attention"
    found = forward_flops(model, length, 64)[part] / stack.num_layers
    attention = stack.layer(0).attention
    assert isinstance(attention, SoftmaxAttention | LongformerAttention)
    at = torch.arange(length)
    if isinstance(attention.mask, Longformer):
        near = (at[:, None] - at).abs() <= attention.mask.radius
        num_pairs = float((near | (at[:, None] < 1) | (at < 1)).sum())
    else:
        block, last = at // 64, (length - 1) // 64
        near = (block[:, None] - block).abs() <= 1
        ends = (block == 0) | (block == last)
        seen = near | ends | ends[:, None]
        # Three random blocks for each of 64 queries in all but two blocks.
        num_pairs = float(seen.sum()) + 3 * 64 * 64 * (last - 1)
    assert num_pairs < 0.75 * length**2
    assert found * length == pytest.approx(4 * stack.dim * num_pairs, rel=3e-3)
