"""Plans against published figures and formulas of their own."""

import json
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from archwright.cli.listings import published_costs
from archwright.model import build
from archwright.model.model import Decoder
from archwright.optim.groups import build_optimizers
from archwright.parts.leaves import watched
from archwright.parts.masks import pairs
from archwright.parts.mixers import AttentionMixer
from archwright.planning.activations import CHECKPOINTING, LayerActivations
from archwright.planning.advice import advice
from archwright.planning.cost import (
    counted,
    flops_per_token,
    forward_flops,
    forward_flops_by_part,
    next_token_flops,
    run_flops_per_token,
)
from archwright.planning.memory import cache_bytes, cache_bytes_per_later_token, writes
from archwright.planning.model_costs import model_costs
from archwright.planning.plans import Plan, plan
from archwright.planning.serving import serving, weights_by_share, weights_read
from archwright.planning.stages import layers_of, optimizer_bytes
from archwright.planning.workload import workload
from archwright.spec.errors import UserError
from archwright.spec.hardware import load_hardware
from archwright.spec.read import load, load_run, preset_names
from archwright.spec.scale_down import tiny
from tests.planning.test_exact import pair_flops, without_scans
from tests.tiny import ROOT, surroundings


def planned(name: str, *changes: str, **asked: object) -> Plan:
    run = load_run(name)
    return plan(run.override(*changes), workload(**asked))  # type: ignore[arg-type]


@pytest.mark.sampled(fast=4)
@pytest.mark.parametrize("name", preset_names("models"))
def test_listed_costs_are_those_of_plans(name: str) -> None:
    costs, found = published_costs()[name], planned(name, devices=1)
    assert costs["cache_per_token"] == found.record()["kv_cache_bytes_per_token"]
    assert costs.get("state_per_sequence") == (found.record()["state_bytes_per_text"] or None)
    assert costs["flops_per_token"] == pytest.approx(found.flops_per_token, rel=1e-9)
    memory = found.smallest.memory
    assert costs["training_memory"] == memory.weights + memory.gradients + memory.optimizer


def test_what_keeps_no_cache_lists_none() -> None:
    """Encoders, which no objective teaches to go on, and Reformer, some of whose layers keep nothing."""
    costs = published_costs()
    for name in ("bert-base", "modernbert-base", "electra-base", "longformer-base", "reformer"):
        assert costs[name]["cache_per_token"] is None, name
    for name in ("t5-small", "llama-3-8b"):
        assert costs[name]["cache_per_token"], name


def test_which_models_write() -> None:
    """As the listing has them, and a plan."""
    for name in ("bert-base", "reformer", "t5-small", "modern"):
        run = load_run(name)
        model = build(run.model, device="meta")
        expected = name in ("t5-small", "modern")
        assert writes(model, run.objective) == planned(name, devices=1).writes == expected, name
        cache = model_costs(run.model, run.objective).cache_per_token
        assert (cache is not None) == expected, name


def test_states_of_recurrences() -> None:
    """Eight layers of eight states of 64 x 64 in float32, and three tokens before a convolution of 3 x 512 channels."""
    layer = 8 * 64 * 64 * 4 + 3 * (3 * 512) * 2
    per_token = 2 * 2 * 128 * 2  # two layers of keys and values in two heads of 64
    for name, state, growth in (
        ("modern", 0, 4 * per_token),
        ("gated-deltanet", 8 * layer, 0),
        ("hybrid-3-1", 6 * layer, per_token),
    ):
        for context in (1024, 2**20):
            record = planned(name, context=context, devices=1).record()
            assert record["state_bytes_per_text"] == state, name
            assert record["kv_cache_bytes_per_token"] == growth, name
            assert record["cache_bytes_per_text"] == state + context * growth, name
        costs = model_costs(load(name), load_run(name).objective)
        assert (costs.state_per_sequence, costs.cache_per_token) == (state or None, growth), name


def test_gpt_3() -> None:
    """3.14e23 FLOPs for 300B tokens (Brown et al., 2020, table D.1), which leaves scores out."""
    found = planned("gpt-3-175b", tokens="300B")
    scores = found.forward_flops["attention between tokens"] / sum(found.forward_flops.values())
    assert found.training.flops * (1 - scores) == pytest.approx(3.14e23, rel=0.01)
    assert found.training.flops == pytest.approx(3.14e23, rel=0.02)


def test_llama_3_405b() -> None:
    """3.8e25 FLOPs for 15.6T tokens, at 38 to 43 % of the peak, and in use for more than 90 % of the time
    (Grattafiori et al., 2024, sections 3.2, 3.3.2 and 3.3.4); 30.84M hours of H100s (model card of Llama 3.1)."""
    asked = {"tokens": "15.6T", "context": 8192, "batch": "16M", "devices": 16384}
    found = planned("llama-3-405b", mfu="0.38-0.43", **asked)
    assert found.training.flops == pytest.approx(3.8e25, rel=0.05)
    hours = found.training.device_hours
    assert hours.least < 30.84e6 < hours.most / 0.9


@pytest.mark.parametrize(
    ("name", "tokens", "hours", "share"),
    [
        ("llama-3-8b", "15T", 1.3e6, 0.167),
        ("llama-3-70b", "15T", 6.4e6, 0.296),
        ("llama-3-405b", "15.6T", 30.84e6, 0.358),
    ],
)
def test_utilisation_that_model_cards_imply(
    name: str, tokens: str, hours: float, share: float
) -> None:
    """Hours of H100s by the model cards of Llama 3 and 3.1, for all that was computed; docs/planning.md has the shares.
    The two smaller models took longer than at 30 % of the peak, the largest did not."""
    found = planned(name, tokens=tokens, context=8192)
    implied = found.training.flops / (hours * 3600 * 989.4e12)
    assert implied == pytest.approx(share, abs=0.0006)
    assert (hours > found.training.device_hours.most) == (share < 0.3)
    text = (ROOT / "docs" / "planning.md").read_text("utf-8")
    assert f"| {100 * share:.1f} % |" in text


def test_no_training_is_planned_in_8_bit_integers() -> None:
    """Serving takes the peak of integers, training that of 16 bits."""
    asked = {"hardware": "h200", "devices": 8, "context": 4096}
    wide, narrow = (planned("llama-3-8b", precision=p, **asked) for p in ("bf16", "int8"))
    assert narrow.training == wide.training
    assert narrow.setup == wide.setup
    assert narrow.serving is not None
    assert wide.serving is not None
    assert narrow.serving.weight_bytes == wide.serving.weight_bytes / 2
    assert narrow.record()["training_precision"] == "bf16"
    assert narrow.record()["operators"]["training"] is None
    fp8 = planned("llama-3-8b", precision="fp8", **asked)
    assert fp8.training.bound == pytest.approx(wide.training.bound * 989.4e12 / 1978.9e12)


def test_deepseek_v3() -> None:
    """2.664M hours of H800s, which compute as H100s do, for 14.8T tokens, and 2.788M with what follows
    (DeepSeek-AI, 2024, table 1). The share of the peak is not published: it is between a quarter and a half of the
    peak in 16 bits."""
    found = planned("deepseek-v3", tokens="14.8T", context=4096, devices=2048, mfu="0.25-0.5")
    assert found.counts.active == pytest.approx(37e9, rel=0.02)
    assert found.training.device_hours.least < 2.664e6 < 2.788e6 < found.training.device_hours.most


def test_caches() -> None:
    """Llama 3 70B: 2 * 80 layers * 8 heads * 128 in 16 bits. DeepSeek-V2: 93.3 % less than DeepSeek 67B
    (DeepSeek-AI, 2024, abstract and figure 1)."""
    assert planned("llama-3-70b").kv_cache_bytes_per_token == 320 * 1024
    assert planned("llama-3-70b", "model.attention.num_kv_heads=1").kv_cache_bytes_per_token == (
        40 * 1024
    )
    dense, latent = (planned(n).kv_cache_bytes_per_token for n in ("deepseek-67b", "deepseek-v2"))
    # 67B keeps its cache in 16 bits, V2 in 6 (section 3.2.3).
    assert 1 - latent * 6 / 16 / dense == pytest.approx(0.933, abs=0.002)


NAMES = preset_names("models")


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("name", NAMES)
def test_torch_counts_the_same_of_every_preset(name: str) -> None:
    """Of dense attention all pairs are counted there, so they are here; of one text, as tables of distances are mapped
    once for all of a batch. In float64 experts are products of their own, which torch counts."""
    length = 32
    spec = load(name).tiny().override("vocab_size=256", f"context_length={length}")
    model = build(spec).double().use_kernel("eager").eval()
    tokens = torch.randint(0, 256, (1, length))
    with FlopCounterMode(display=False) as counter, torch.no_grad(), watched(without_scans):
        model(*(tokens,) * (1 if spec.encoder.is_none else 2))
    by_part = forward_flops(model, length)
    hidden = sum(
        pair_flops(mixer) * (length - pairs(mixer.pattern.value, length) / length)
        for layer in model.all_layers
        for mixer in layer.mixers().values()
        if isinstance(mixer, AttentionMixer)
    )
    found = counter.get_total_flops() / tokens.numel()
    by_part.pop("layers.recurrence", None)  # scans
    assert found == pytest.approx(sum(by_part.values()) + hidden, rel=0.01)


@pytest.mark.parametrize("name", ["llama-3-70b", "deepseek-v3", "gemma-3-27b", "gpt-oss-20b"])
def test_parts_are_the_whole(name: str) -> None:
    model = build(load(name), device="meta")
    parts = forward_flops_by_part(model, 4096)
    assert 3 * sum(parts.values()) == pytest.approx(flops_per_token(model, 4096), rel=1e-12)
    assert parts.keys() - {"attention between tokens"} <= counted(model).parts.keys() | {"head"}


@pytest.mark.parametrize("name", ["modern", "gemma-3-1b", "llama-4-scout"])
def test_tokens_one_by_one_cost_what_the_text_does(name: str) -> None:
    model = build(load(name).tiny(), device="meta")
    alone = sum(next_token_flops(model, n) for n in range(1, 41))
    assert alone == pytest.approx(40 * flops_per_token(model, 40) / 3, rel=1e-9)


@pytest.mark.parametrize("name", ["t5-small", "bart-base"])
def test_torch_counts_the_same_of_a_token_behind_a_source(name: str) -> None:
    """What reads the source did so before: the encoder, and the maps of keys and values that the decoder has of it."""
    length = 24
    spec = load(name).tiny().override("vocab_size=256", f"context_length={length}")
    model = build(spec).use_kernel("eager").eval()
    source, text = torch.randint(0, 256, (2, 1, length))
    with torch.no_grad():
        cache = model.new_cache()
        with FlopCounterMode(display=False) as first:
            model(source, text[:, :1], cache=cache)
        model(None, text[:, 1:-1], cache=cache)
        with FlopCounterMode(display=False) as last:
            model(None, text[:, -1:], cache=cache)
    prefill = length * sum(forward_flops(model, length, 1).values())
    assert first.get_total_flops() == pytest.approx(prefill, rel=1e-9)
    assert last.get_total_flops() == pytest.approx(next_token_flops(model, length), rel=1e-9)


NARROW = ("attention.kv_rank=32", "attention.nope_head_dim=1", "attention.value_head_dim=1")
"""A latent from which keys and values of fewer than 32 tokens are made again, as that takes less."""


CACHING = ["modern", "gemma-3-1b", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3"]


@pytest.mark.parametrize(
    ("name", "changes", "length"),
    [*((name, (), n) for name in CACHING for n in (2, 24, 300)), ("deepseek-v3", NARROW, 24)],
)
def test_torch_counts_the_same_of_a_token_behind_a_cache(
    name: str, changes: tuple[str, ...], length: int
) -> None:
    spec = load(name).tiny().override("vocab_size=256", "context_length=300", *changes)
    model = build(spec).double().use_kernel("eager").eval()
    text = torch.randint(0, 256, (1, length))
    with torch.no_grad():
        cache = model.new_cache()
        model(text[:, :-1], cache=cache)
        with FlopCounterMode(display=False) as counter:
            model(text[:, -1:], cache=cache)
    assert counter.get_total_flops() == pytest.approx(next_token_flops(model, length), rel=1e-9)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_an_optimizer_keeps_what_is_planned(kind: str) -> None:
    run = load_run("modern").override(f"optimizer.kind={kind}")
    run = run.override("model.dim=64", "model.num_layers=2", "model.vocab_size=128")
    model = build(run.model)
    optimizers = build_optimizers(model, run.optimizer)
    model(torch.zeros(1, 8).long()).logits.sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    kept = sum(
        value.numel() * value.element_size()
        for optimizer in optimizers.values()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    assert optimizer_bytes(run, model) == kept


def test_activations_of_gpt_are_those_of_the_paper() -> None:
    """34 bytes for each of s * h without scores (Korthikanti et al., 2022, equation 2 without 5 a s / h); here masks of
    dropout take 2 more, and the stream in 32 bits takes 2 more for each norm. Its input remains if all is computed
    again, next to one layer."""
    spec = load("gpt-3-175b")
    model = build(spec, device="meta")
    layer = 2048 * spec.dim
    expected = {
        "none": 40 * spec.num_layers,
        "full": 4 * spec.num_layers + 36,
        # Input, queries, keys and values, attention, and results of the other maps; in one layer, results of two norms,
        # the stream between them, two masks of dropout, and the activation.
        "selective": 24 * spec.num_layers + 4 + 4 + 4 + 8,
    }
    for checkpointing, number in expected.items():
        assert activation_bytes(model, 2048, checkpointing) == pytest.approx(
            number * layer, rel=2e-3
        )


def activation_bytes(
    model: Decoder, length: int, checkpointing: str, target_length: int | None = None
) -> float:
    """Return the bytes that a sequence leaves for the backward pass on one device."""
    layers = Counter(kind for *_, kind in layers_of(model))
    found = LayerActivations(model, length, target_length or length)
    return sum(found.of(layers, checkpointing, 1, sequence=True))


class Alive(TorchDispatchMode):
    """Counts the bytes of tensors that exist next to weights."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = {p.untyped_storage()._cdata for p in weights}
        self.storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                kept = x.untyped_storage()
                self.storages[kept._cdata] = weakref.ref(kept), kept.nbytes()
        return out

    @property
    def num_bytes(self) -> int:
        known = self.storages.items()
        return sum(n for key, (x, n) in known if x() is not None and key not in self.weights)


@pytest.mark.parametrize("name", ["gpt-2", "llama-3-8b", "gemma-3-1b", "mixtral-8x7b", "bart-base"])
@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_layers_keep_in_training_what_is_planned(name: str, checkpointing: Any) -> None:
    """What is added by each of some more layers."""
    length, kept, planned = 64, [], []
    for layers in (2, 4):
        spec = tiny(load(name)).override(f"num_layers={layers}", f"context_length={length}")
        if not spec.encoder.is_none:
            spec = spec.override(f"encoder.num_layers={layers}")
        model = build(spec).use_kernel("sdpa").checkpoint_activations(checkpointing).eval()
        tokens = torch.arange(2 * length).view(2, length) % 50
        given = {} if spec.encoder.is_none else {"decoder_tokens": tokens}
        with Alive(model.parameters()) as alive, torch.autocast("cpu", torch.bfloat16):
            out = model.hidden(tokens, **given)
        kept.append(alive.num_bytes)
        planned.append(activation_bytes(model, length, checkpointing))
        del out  # and what it keeps for its backward pass
    found = (kept[1] - kept[0]) / 2  # of two texts
    more = 1 / 16 if name == "mixtral-8x7b" else 0.01  # rows that experts are filled up with
    assert found == pytest.approx(planned[1] - planned[0], rel=more)


def test_state_per_device_is_16_bytes_a_parameter_over_its_shards() -> None:
    found = planned("llama-3-70b", hardware="h200", devices=64, context=8192, split="fsdp")
    assert found.setup is not None
    memory = found.setup.memory
    state = memory.weights + memory.gradients + memory.optimizer
    assert state == pytest.approx(16 * found.counts.total / 64)
    assert memory.total <= 0.9 * 141e9


def test_what_does_not_fit_says_so() -> None:
    found = planned("llama-3-70b", hardware="rtx-4090", devices=2, batch="64k")
    assert found.setup is None
    assert found.record()["fits"] is False
    assert found.serving is None
    assert next(iter(advice(found))).startswith("memory: at least ")


def test_more_devices_are_found_where_they_suffice() -> None:
    few = planned("llama-3-8b", devices=1, context=4096)
    assert few.setup is None
    assert few.fewest_devices is not None
    assert planned("llama-3-8b", devices=few.fewest_devices, context=4096).setup is not None
    half = planned("llama-3-8b", devices=max(1, few.fewest_devices // 2), context=4096)
    assert half.setup is None


def test_what_spares_layers_that_are_computed_again() -> None:
    """A way that fits without is taken, as it is faster; else more devices would help."""
    found = planned("llama-3-70b", hardware="h200", devices=64, context=8192)
    assert found.setup is not None
    assert (found.setup.split.name, found.setup.checkpointing) == (
        "FSDP, tensor-parallel 2",
        "selective",
    )
    assert not [each for each in advice(found) if "again" in each]
    (line,) = (each for each in advice(planned("llama-3-8b", devices=3)) if "again" in each)
    assert line.endswith("more devices, or shorter sequences, would spare that")


def test_layers_are_computed_again_where_links_are_slow() -> None:
    """Larger micro-batches gather weights less often."""
    asked = {"devices": 32, "context": 2048, "split": "fsdp"}
    slow = planned("llama-3-8b", hardware="rtx-4090", **asked)
    (line,) = (each for each in advice(slow) if "again" in each)
    assert line.startswith("communication: whole layers are computed again")
    assert "micro-batches have 8 sequences" in line
    assert "with checkpointing none 1 sequence fit" in line
    fast = planned("llama-3-8b", hardware="h200", **asked)
    assert not [each for each in advice(fast) if "again" in each]


def test_a_batch_with_too_few_texts() -> None:
    found = planned("llama-3.2-1b", devices=64, context=8192, batch="16k")
    assert found.setup is None
    assert next(iter(advice(found))).startswith(
        "batch: 1.95 sequences a step are too few for 64 devices"
    )


def test_a_step_has_a_text_at_least() -> None:
    """4M tokens where nobody says, or one text where that is longer."""
    assert planned("modern").workload.batch_tokens == 4e6
    longest = planned("modern", context=2**23)
    assert longest.workload.batch_tokens == longest.context == 2**23
    assert planned("modern", context=512, batch="512").training.steps > 0
    with pytest.raises(
        UserError, match='batch: found "4M"; expected at least the context, 8,388,608'
    ):
        planned("modern", context=2**23, batch="4M")


def test_the_roofline_by_hand() -> None:
    """Writing alone reads all weights but the embedding, and the cache; reading is bound by FLOPs."""
    found = planned("llama-3-8b", hardware="h100", devices=1, context=8192)
    assert found.serving is not None
    read = 2 * (found.counts.total - found.counts.parts["embedding"] - found.counts.parts["norms"])
    seconds = (read + 8192 * 2 * 32 * 8 * 128 * 2) / 3.35e12
    assert found.serving.decode_tokens_per_second == pytest.approx(1 / seconds)
    of_head = found.forward_flops["head"] * (
        1 - 1 / 8192
    )  # but for the last token nobody asks for logits
    prefill = 989.4e12 / (sum(found.forward_flops.values()) - of_head)
    assert found.serving.prefill_tokens_per_second == pytest.approx(prefill)
    batch = int((72e9 - 2 * found.counts.total) / (8192 * 128 * 1024))
    assert found.serving.largest_batch == batch


@pytest.mark.parametrize(
    ("name", "changes", "devices", "per_token", "times"),
    [
        ("llama-3-70b", (), 8, 2 * 80 * 8 * 128, 1),
        ("llama-3-70b", (), 4, 2 * 80 * 8 * 128, 1),
        ("llama-3-70b", ("attention.num_kv_heads=1",), 8, 2 * 80 * 128, 8),
        ("llama-3-70b", ("attention.num_kv_heads=2",), 8, 2 * 80 * 2 * 128, 4),
        ("deepseek-v2", (), 8, 60 * (512 + 64), 8),
        ("gpt-2", (), 8, 2 * 12 * 768, 2 / 12 * 8),
    ],
)
def test_caches_that_each_device_needs(
    name: str, changes: tuple[str, ...], devices: int, per_token: int, times: float
) -> None:
    """Each of eight devices has a head of keys and values, or all of a latent; of twelve heads some have two."""
    length = 1024
    model = build(load(name).override(*changes), device="meta")
    found = serving(model, load_hardware("h200"), length, "bf16", devices)
    assert found is not None
    cache = 2 * length * per_token * times
    assert found.devices == devices
    room = devices * 0.9 * 141e9 - found.weight_bytes
    assert found.largest_batch == int(room / cache)
    first, second = (1 / (speed / n) for n, speed in found.by_batch[:2])
    if name != "deepseek-v2":  # whose second text reads other experts
        assert second - first == pytest.approx(cache / (devices * 4.8e12), rel=1e-6)


def test_servers_share_the_layers_of_a_latent_cache() -> None:
    """On two servers each device has a whole latent of half the layers."""
    model = build(load("deepseek-v3"), device="meta")
    found = serving(model, load_hardware("h200"), 4096, "bf16", 16)
    assert found is not None
    assert found.devices == 16
    of_a_text = 8 * 2 * 4096 * 61 * (512 + 64)
    assert found.largest_batch == int((16 * 0.9 * 141e9 - found.weight_bytes) / of_a_text)


def test_a_copy_takes_the_devices_there_are_before_it_is_given_up() -> None:
    """Llama 3 405B takes 812 GB, and 4 GB for a text: more than 8 devices of 80 GB hold, and less than 12 do."""
    model, hardware = build(load("llama-3-405b"), device="meta"), load_hardware("h100")
    for devices, taken in ((8, None), (11, None), (12, 12), (15, 15), (16, 16), (64, 16)):
        found = serving(model, hardware, 8192, "bf16", devices)
        assert (None if found is None else found.devices) == taken, devices


def test_a_decoder_behind_a_source_by_hand() -> None:
    """T5-base writes with its decoder and its head, and reads a cache of its text and one of the source; its table is
    one with the head, whose product reads all of it."""
    found = planned("t5-base", hardware="h100", devices=1, context=512)
    assert found.serving is not None
    layer = 4 * 768**2 + 2 * 768**2 + 2 * 768 * 3072
    read = 2 * (12 * layer + 768 * 32128) + 512 * 12 * 2 * 2 * 768 * 2
    assert found.serving.decode_tokens_per_second == pytest.approx(3.35e12 / read)
    encoder = 12 * (2 * (4 * 768**2 + 2 * 768 * 3072) + 4 * 768 * 512)
    of_source = 12 * 2 * 2 * 768**2  # the decoder's maps of keys and values
    first = 12 * (2 * layer + 4 * 768 * (1 + 512)) + 2 * 768 * 32128
    computed = (512 * (encoder + of_source) + first) / 989.4e12
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 768**2 + layer) + 768 * 32128
    seconds = 2 * weights / 3.35e12
    assert seconds > computed
    assert found.serving.prefill_tokens_per_second == pytest.approx(512 / seconds)


def test_a_training_is_planned_with_the_targets_of_its_objective() -> None:
    """T5 fills in spans, whose targets are shorter than their sources; pairs may be equally long."""
    spans, pairs_ = planned("t5-small"), planned("t5-small", "objective.kind=sequence_to_sequence")
    assert (spans.target_length, pairs_.target_length) == (114, 512)
    run = load_run("t5-small")
    model = build(run.model, device="meta")
    assert spans.flops_per_token == pytest.approx(run_flops_per_token(run, model), rel=1e-12)
    assert pairs_.flops_per_token == pytest.approx(flops_per_token(model, 512), rel=1e-12)
    shorter, longer = (
        planned("t5-small", *changes, devices=1, micro_batch=1).smallest.memory
        for changes in ((), ("objective.kind=sequence_to_sequence",))
    )
    assert shorter.activations < longer.activations
    assert shorter.logits == pytest.approx(longer.logits * 114 / 512)


@pytest.mark.parametrize("checkpointing", CHECKPOINTING)
def test_what_a_short_target_leaves(checkpointing: str) -> None:
    """The decoder's part falls with the target but for keys and values of the source, so that the whole is
    linear in its length."""
    model = build(load("t5-small"), device="meta")
    least, half, most = (activation_bytes(model, 512, checkpointing, n) for n in (128, 256, 384))
    if checkpointing == "none":  # of one layer at a time that with most counts
        assert half - least == pytest.approx(most - half)
    assert activation_bytes(model, 512, checkpointing) > most > half > least


def test_weights_that_are_read() -> None:
    """A token reads two of eight experts; many tokens read all of them."""
    model = build(load("mixtral-8x7b"), device="meta")
    counts = counted(model)
    idle = counts.total - counts.active
    every = counts.total - counts.parts["embedding"] - counts.parts["norms"]
    by_share = weights_by_share(model)
    assert weights_read(by_share, 1) == every - idle
    assert weights_read(by_share, 2) == every - idle * 0.75
    assert weights_read(by_share, 10**4) == pytest.approx(every)


def test_time_energy_and_price_follow() -> None:
    found = planned("llama-3-8b", devices=8, tokens="1T", mfu="0.4", price=2.0).training
    hours = found.flops / (0.4 * 989.4e12) / 3600
    assert found.device_hours.least == found.device_hours.most == pytest.approx(hours)
    assert found.days.least == pytest.approx(hours / 8 / 24)
    assert found.cost is not None
    assert found.energy is not None
    assert found.cost.most == pytest.approx(2 * hours)
    assert found.energy.most == pytest.approx(0.7 * hours)
    assert planned("modern", tokens="20xparams").training.tokens == (
        20 * planned("modern").counts.total
    )


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"hardware": "h20"}, "hardware: found"),
        ({"devices": 0}, "devices: found 0; expected 1 to "),
        ({"tokens": "-1T"}, 'tokens: found "-1T"; expected a number such as 15T'),
        ({"tokens": "0"}, 'tokens: found "0"; expected'),
        ({"batch": "many"}, 'batch: found "many"; expected tokens of a step'),
        ({"context": 0}, "context: found 0; expected 1 to "),
        ({"mfu": "1.2"}, 'mfu: found "1.2"; expected a share'),
        ({"mfu": "0.5-0.4"}, 'mfu: found "0.5-0.4"; expected a share'),
        ({"price": -1.0}, "price: found -1; expected 0 to "),
        ({"precision": "bf61"}, 'precision: found "bf61"; h100 has '),
    ],
)
def test_what_cannot_be_asked_is_one_line(asked: dict[str, object], line: str) -> None:
    with pytest.raises(UserError) as error:
        workload(**asked)  # type: ignore[arg-type]
    (found,) = error.value.lines
    assert found.startswith(line)


def test_a_context_beyond_the_last_position() -> None:
    with pytest.raises(UserError, match="context: found 4096; expected at most 1024, where the"):
        planned("gpt-2", context=4096)
    assert planned("llama-3-8b", context=131072).context == 131072  # rotations go on


def test_caches_are_those_of_the_model() -> None:
    found = planned("gemma-3-27b", context=8192)
    model = build(load("gemma-3-27b"), device="meta")
    assert found.cache_bytes_per_text == cache_bytes(model, 8192)
    assert found.cache_bytes_per_text < 8192 * found.kv_cache_bytes_per_token  # windows end


def test_what_a_token_costs_when_windows_are_full() -> None:
    """Layers without a window alone: of 26 of gemma-3-1b four, of Mistral 7B none, of Llama 3 all."""
    full = {
        name: cache_bytes_per_later_token(build(load(name), device="meta"))
        for name in ("gemma-3-1b", "mistral-7b", "llama-3-8b")
    }
    assert full == {
        "gemma-3-1b": 4 * 2 * 256 * 2,
        "mistral-7b": 0,
        "llama-3-8b": 32 * 2 * 8 * 128 * 2,
    }


HUGE = """
import json, sys, time
start = time.process_time()
import torch
loading = time.process_time() - start
from archwright.cli import main
assert main(sys.argv[1:]) == 0
status = open("/proc/self/status").read()  # ru_maxrss would count the process that started this one
used = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps([time.process_time(), loading, used]), file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in other units")
def test_a_mixture_of_a_trillion_parameters_takes_no_memory() -> None:
    words = "plan deepseek-v3 num_layers=64 feedforward.num_experts=384 --json"
    done = subprocess.run(
        [sys.executable, "-c", HUGE, *words.split()],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings(),
        cwd=ROOT,
    )
    assert json.loads(done.stdout)["parameters"] > 1e12
    seconds, loading, num_bytes = json.loads(done.stderr.splitlines()[-1])
    assert num_bytes < 1e9
    # Processor time of the whole command: 1.9 s were measured on a quiet machine, of which import torch took 0.8.
    assert seconds < 10
    assert seconds - loading < 1.7 * loading


def test_palm() -> None:
    """46.2 % of the peak at 238.3k tokens/s on 6,144 TPU v4 of 275e12 FLOP/s, where attention counts all pairs
    (Chowdhery et al., 2022, section 4.1 and appendix B)."""
    found = planned("palm-540b", context=2048)
    per_token = found.flops_per_token + 3 * found.forward_flops["attention between tokens"]
    assert per_token * 238.3e3 / (6144 * 275e12) == pytest.approx(0.462, abs=0.01)
