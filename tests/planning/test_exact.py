"""What a plan counts is what is built, computed and allocated: masks, caches, random compositions."""

import os
from typing import Any

import pytest
import torch
from hypothesis import Phase, assume, given, settings
from torch.utils.flop_counter import FlopCounterMode

from archwright.classic.parts.disentangled import DisentangledAttention
from archwright.classic.parts.longformer import LongformerAttention
from archwright.model import build
from archwright.model.encoder_decoder import EncoderDecoder
from archwright.model.model import Decoder
from archwright.parts.leaves import Formula, watched
from archwright.parts.mixers import AttentionMixer
from archwright.parts.mixers.latent import LatentAttention
from archwright.parts.positions.relative import TransformerXL
from archwright.planning.cost import forward_flops
from archwright.planning.memory import cache_bytes
from archwright.planning.plans import plan
from archwright.planning.workload import workload
from archwright.spec.errors import UserError
from archwright.spec.masks import Mask
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load
from archwright.spec.run_spec import RunSpec
from tests.parts.test_masks import CHOICES, sees
from tests.strategies import model_specs, two_stack_specs

COMPOSITIONS = int(os.environ.get("COMPOSITIONS", "60"))
ROWS = 2


def brute_pairs(mask: Mask, length: int, num_heads: int, layer: int = 1) -> float:
    """Count the pairs that a mask allows, one by one by its sentence, in the mean of the heads."""
    places = range(length)
    allowed = sum(
        sees(mask, q, k, head, num_heads, length, layer)
        for head in range(num_heads)
        for q in places
        for k in places
    )
    return allowed / num_heads


@pytest.mark.parametrize("mask", CHOICES, ids=str)
def test_flops_between_tokens_are_those_of_the_allowed_pairs(mask: Mask) -> None:
    """Two products of a pair, of four heads of 16: 4 * 64 FLOPs, over two layers."""
    values = load("modern").model_dump() | {"dim": 64, "num_layers": 2, "context_length": 24}
    values["attention"] |= {"num_heads": 4, "num_kv_heads": 2, "mask": mask.model_dump()}
    found = plan(RunSpec(model=ModelSpec.model_validate(values | {"vocab_size": 64})), workload())
    between = found.forward_flops["attention between tokens"]
    assert between * 24 == pytest.approx(2 * 4 * 64 * brute_pairs(mask, 24, 4), rel=1e-12)


def agrees(spec: ModelSpec, model: Decoder, length: int, rel: float = 0.01) -> None:
    """Hold the plan of a model against what it is, what torch counts, and what its cache takes."""
    found = plan(RunSpec(model=spec), workload(context=length))
    assert found.counts.total == sum(p.numel() for p in model.parameters())
    assert sum(found.counts.parts.values()) == found.counts.total
    tokens = torch.zeros(ROWS, length, dtype=torch.long)
    texts = (tokens, tokens) if isinstance(model, EncoderDecoder) else (tokens,)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), watched(without_scans):
        model(*texts)
    by_part = forward_flops(model, length)
    assert sum(by_part.values()) == pytest.approx(sum(found.forward_flops.values()))
    # Scans do more than products, which torch does not count.
    scans = sum(n for part, n in by_part.items() if part.endswith("layers.recurrence"))
    planned = sum(found.forward_flops.values()) - scans + beside_the_plan(model, length)
    assert counter.get_total_flops() / tokens.numel() == pytest.approx(planned, rel=rel)
    if not model.can_cache or any(m.lookahead != 0 for m in model.masks.values()):
        return
    cache = model.new_cache()
    with torch.no_grad():
        model(*texts, cache=cache)
    assert found.cache_bytes_per_text == cache_bytes(model, length)
    assert cache.num_bytes == ROWS * (cache_bytes(model, length, 8) + spare_bytes(model, length))


def without_scans(leaf: Any, formula: Formula, args: Any, kwargs: Any) -> Any:
    """Return zeros in place of a scan, which does more than products; other leaves are called."""
    if not leaf.__name__.endswith("_scan"):
        return leaf(*args, **kwargs)
    results = formula(*args, **kwargs).results
    return tuple(torch.zeros(x.shape, dtype=x.dtype) for x in results)


def beside_the_plan(model: Decoder, length: int) -> float:
    """Return the FLOPs per token that the formula's plain code computes and a plan does not count: pairs that a mask
    hides; less what it computes once for all rows of a batch and not for each token, the maps of distances."""
    return sum(
        beside_the_plan_of(mixer, length)
        for layer in model.all_layers
        for mixer in layer.mixers().values()
        if isinstance(mixer, AttentionMixer)
    )


def beside_the_plan_of(mixer: AttentionMixer, length: int) -> float:
    """Return the same of a mixer, per token of a text."""
    pattern = mixer.pattern.value
    mask: Mask = pattern.spec  # type: ignore[attr-defined]
    layer = getattr(pattern, "layer", 1)  # of masks that differ by it
    shown = brute_pairs(mask, length, mixer.num_heads, layer) / length
    computed = float(length)
    if isinstance(mixer, LongformerAttention):  # queries of global tokens are answered twice
        few = range(min(length, mixer.num_global))
        near = mask.model_copy(update={"num_global": 0})
        heads = range(mixer.num_heads)
        seen = sum(
            k in few or sees(near, q, k, head, mixer.num_heads, length, layer)
            for head in heads
            for q in few
            for k in range(length)
        )
        shown += seen / mixer.num_heads / length
        computed += len(few)
    more: float = pair_flops(mixer) * (computed - shown)
    for module in mixer.modules():
        if isinstance(module, TransformerXL):
            number = (2 * length - 1) / length
            more -= 2 * module.distance.weight.numel() * number * (1 - 1 / ROWS)
    if isinstance(mixer, DisentangledAttention):
        first, last = mixer.rows(torch.tensor([1 - length, length - 1])).tolist()
        maps = 2 * mixer.spec.num_terms * mixer.num_heads * mixer.head_dim * mixer.dim
        more -= maps * (last - first + 1) / length * (1 - 1 / ROWS)
    return more


def pair_flops(mixer: AttentionMixer) -> float:
    """Return the FLOPs of all heads for a pair: its score, and its share of the value."""
    if isinstance(mixer, LatentAttention):
        return 2.0 * mixer.num_heads * (sum(mixer.widths) + mixer.value_dim)
    return 2.0 * mixer.num_heads * (mixer.head_dim + getattr(mixer, "value_dim", mixer.head_dim))


def spare_bytes(model: Decoder, length: int) -> int:
    """Return the bytes of a text's slots beyond its tokens: a growing cache begins with 64, a bounded one with as many
    as its mask reaches back, and each has one more, which holds nothing."""
    spare = 0
    for mixer in model.mixers():
        if isinstance(mixer, AttentionMixer) and mixer.kept_per_token:
            most = mixer.new_state(1).max_length
            tokens, slots = (length, 64) if most is None else (min(length, most), min(64, most))
            spare += (max(slots, tokens) + 1 - tokens) * mixer.kept_per_token * 8
    return spare


def legal(spec: ModelSpec) -> bool:
    try:
        spec.resolved()
    except UserError:
        return False
    return True


def untwisted(spec: ModelSpec) -> bool:
    """Tell whether no layer's global tokens ask for distances of their own, which are counted nowhere."""
    return not any(
        layer.attention.kind == "longformer" and layer.position.kind == "transformer_xl"
        for layer in spec.layers_by_kind.values()
    )


@pytest.mark.slow
@settings(max_examples=COMPOSITIONS * 3 // 4, phases=[Phase.generate])
@given(model_specs())
def test_random_compositions_cost_what_is_planned(spec: ModelSpec) -> None:
    assume(legal(spec) and untwisted(spec))
    agrees(spec, ready(spec), min(spec.context_length, 12))


@pytest.mark.slow
@settings(max_examples=COMPOSITIONS // 4, phases=[Phase.generate])
@given(two_stack_specs())
def test_random_compositions_of_two_stacks_cost_what_is_planned(spec: ModelSpec) -> None:
    assume(legal(spec) and untwisted(spec))
    agrees(spec, ready(spec), min(spec.context_length, 12))


def ready(spec: ModelSpec) -> Decoder:
    """Return a model of which torch counts every product: of experts in float64, and attention as its formula says."""
    return build(spec).double().use_kernel("eager").eval()
