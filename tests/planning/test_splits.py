"""Splits over devices against closed formulas and published setups: what each device has, and what it sends."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from archwright.model import build
from archwright.planning.activations import CHECKPOINTING
from archwright.planning.exchange import exchanged
from archwright.planning.plans import Plan, plan
from archwright.planning.split import Batch, Split, largest_micro, parse_split, problems, splits
from archwright.planning.stages import Gathers, Needs, layers_by_stage, optimizer_bytes
from archwright.planning.training_memory import held, micro_batches_kept, setup
from archwright.planning.workload import workload
from archwright.spec.errors import UserError
from archwright.spec.read import load, load_run
from archwright.spec.run_spec import RunSpec

LENGTH = 2048


def planned(name: str, *changes: str, **asked: object) -> Plan:
    return plan(load_run(name).override(*changes), workload(**asked))  # type: ignore[arg-type]


def needs_of(name: str, *changes: str, length: int = LENGTH) -> Needs:
    run = RunSpec(model=load(name).override(*changes))
    return Needs(run, build(run.model, device="meta"), length)


@pytest.fixture(scope="module")
def llama() -> Needs:
    return needs_of("llama-3-8b")


@pytest.fixture(scope="module")
def gpt() -> Needs:
    return needs_of("gpt-3-175b")


@pytest.fixture(scope="module")
def mixtral() -> Needs:
    return needs_of("mixtral-8x7b")


def test_stages_have_layers_in_order() -> None:
    """Each sixth layer has no window; stages of two layers have none or one of these."""
    stages = needs_of("gemma-3-1b").stages(13)
    expected = [{0: 1, 1: 1} if place % 3 == 2 else {0: 2} for place in range(13)]
    assert [dict(stage.layers) for stage in stages] == expected


@pytest.mark.parametrize("pipeline", [1, 2, 8, 31])
def test_shards_of_all_devices_are_the_whole(llama: Needs, pipeline: int) -> None:
    split = Split(4 * pipeline, "fsdp", pipeline=pipeline)
    stages = llama.stages(pipeline)
    assert sum(stage.num_layers for stage in stages) == 32
    whole = sum(4 * held(stage.weights, split, sharded=True) for stage in stages)
    assert whole == pytest.approx(llama.parameters, rel=1e-12)
    moments = sum(4 * held(s.weights, split, sharded=True, optimizer=True) for s in stages)
    assert moments == pytest.approx(8 * llama.parameters, rel=1e-12)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_tensor_parallelism_repeats_norms_alone(llama: Needs, tensor: int) -> None:
    (stage,) = llama.stages(1)
    whole = tensor * held(stage.weights, Split(tensor, tensor=tensor), sharded=False)
    norms = (2 * 32 + 1) * 4096
    assert whole == pytest.approx(llama.parameters + (tensor - 1) * norms, rel=1e-12)


def test_fewer_heads_of_keys_than_devices_are_held_by_several(llama: Needs) -> None:
    (stage,) = llama.stages(1)
    found = held(stage.weights, Split(16, tensor=16), sharded=False)
    keys, norms = 2 * 32 * 4096 * 8 * 128, (2 * 32 + 1) * 4096
    rest = llama.parameters - keys - norms
    assert found == pytest.approx(rest / 16 + keys / 8 + norms, rel=1e-12)


def test_latents_are_made_by_each_device() -> None:
    needs = needs_of("deepseek-v2-lite")
    spec, (stage,) = needs.model.spec, needs.stages(1)
    maps = spec.num_layers * spec.dim * (512 + 64)  # of the latent and the rotary key
    routers = (spec.num_layers - 1) * spec.dim * 64
    norms = (2 * spec.num_layers + 1) * spec.dim + spec.num_layers * 512
    repeated = maps + routers + norms
    found = held(stage.weights, Split(2, tensor=2), sharded=False)
    assert found == pytest.approx((needs.parameters + repeated) / 2, rel=1e-12)


def test_a_tied_table_stands_on_both_ends() -> None:
    needs = needs_of("llama-3.2-1b")
    split = Split(4, pipeline=4)
    whole = sum(held(stage.weights, split, sharded=False) for stage in needs.stages(4))
    assert whole == needs.parameters + 128256 * 2048


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-2", "mixtral-8x7b", "reformer", "t5-base"])
def test_one_device_is_no_split(name: str) -> None:
    run = load_run(name)
    model = build(run.model, device="meta")
    length = run.model.context_length
    needs = Needs(run, model, length)
    for way in (setup(needs, Split(1), name, texts=4.0) for name in CHECKPOINTING):
        memory = way.memory
        assert memory.weights == memory.gradients == 4 * model.num_parameters()
        assert memory.optimizer == optimizer_bytes(run, model)
        layers = needs.stages(1)[0].layers
        found = needs.activations.of(layers, way.checkpointing, 1, sequence=True)
        assert memory.activations == found.kept + found.again > 0
        assert (memory.gathered, way.exchange, way.bubble) == (0, {}, 0)


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize("pipeline", [1, 8])
def test_activations_are_those_of_the_paper(gpt: Needs, tensor: int, pipeline: int) -> None:
    """s b h L (10 + 24 / t + 5 a s / (h t)), on the first stage of however many, and with sequence parallelism
    s b h L (34 + 5 a s / h) / t (Korthikanti et al., 2022, equations 2, 4 and 5). Ours keep no scores, 5 a s / (h t);
    masks of dropout have 16 bits each, not 8, and the stream that enters both norms has 32: 2 + 4 more."""
    s, h, num_layers = LENGTH, 12288, 96
    first = gpt.stages(pipeline)[0]
    kept = micro_batches_kept(Split(pipeline, pipeline=pipeline), 0, 64)
    assert kept * first.num_layers == num_layers
    whole, shared = (
        kept * gpt.activations.of(first.layers, "none", tensor, sequence=sequence).kept
        for sequence in (False, True)
    )
    assert whole == pytest.approx(s * h * num_layers * (10 + 24 / tensor + 6), rel=2e-3)
    assert shared == pytest.approx(s * h * num_layers * (34 + 6) / tensor, rel=2e-3)


@pytest.mark.parametrize("tensor", [1, 8])
def test_results_of_maps_that_are_shared_by_rows_are_whole(gpt: Needs, tensor: int) -> None:
    """In selective recomputation, each device keeps its parts of the two sums for all tokens."""
    first, numbers = gpt.stages(8)[0], 2 * LENGTH * 12288
    whole, shared = (
        gpt.activations.of(first.layers, "selective", tensor, sequence=sequence).kept
        / (first.num_layers * numbers)
        for sequence in (False, True)
    )
    # What enters the layer has 32 bits, as has log Z of each of 96 heads.
    of_heads = 8 + 96 * 4 / (2 * 12288)
    assert whole == pytest.approx(2 + of_heads / tensor + 2)
    assert shared == pytest.approx((2 + of_heads) / tensor + 2)


def test_what_is_planned_has_the_activations_of_its_fullest_stage(gpt: Needs) -> None:
    way = setup(gpt, Split(64, "fsdp", tensor=8, pipeline=8), "none", texts=64.0)
    # All devices of a tensor-parallel group keep the 16-bit input of both branches, 4 bytes, for all tokens.
    per_layer = 40 / 8 + 4 * 7 / 8
    assert way.memory.activations == pytest.approx(per_layer * LENGTH * 12288 * 96, rel=2e-3)
    half = setup(gpt, Split(64, "fsdp", tensor=8, pipeline=4, context=2), "none", texts=64.0)
    keys = LENGTH / 2 * 2 * 2 * 12288 / 8 * 96  # of the other device's tokens
    assert half.memory.activations == pytest.approx(way.memory.activations / 2 + keys)


def test_stages_keep_fewer_texts_towards_the_end() -> None:
    split = Split(4, pipeline=4)
    assert [micro_batches_kept(split, stage, 16) for stage in range(4)] == [4, 3, 2, 1]
    assert [micro_batches_kept(split, stage, 2) for stage in range(4)] == [2, 2, 2, 1]
    assert micro_batches_kept(Split(1), 0, 16) == 1


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaved_stages_keep_more_texts(chunks: int) -> None:
    """1 + (p - 1) / (p v) times as many as 1F1B on the first stage (Narayanan et al., 2021, section 2.2.2)."""
    split = Split(4, pipeline=4, chunks=chunks)
    assert micro_batches_kept(split, 0, 64) == pytest.approx(4 * (1 + 3 / (4 * chunks)))
    assert micro_batches_kept(split, 0, 2) == 2
    assert micro_batches_kept(split, 3, 64) == ((chunks - 1) * 4 + 1) / chunks


@pytest.mark.parametrize("stages", range(1, 13))
def test_stages_differ_by_a_layer_and_the_ends_have_less(stages: int) -> None:
    for num_layers in range(stages, 40):
        found = layers_by_stage(num_layers, stages)
        assert sum(found) == num_layers
        assert max(found) - min(found) <= 1
        if min(found) < max(found):
            assert found[-1] == min(found)
    assert layers_by_stage(126, 16) == [7, *[8] * 14, 7]


@pytest.mark.parametrize(
    ("data", "formula"),
    [
        ("ddp", lambda p, n: 16 * p),
        ("zero1", lambda p, n: 8 * p + 8 * p / n),
        ("zero2", lambda p, n: 4 * p + 12 * p / n),
        ("fsdp", lambda p, n: 16 * p / n),
    ],
)
def test_levels_of_zero(llama: Needs, data: str, formula) -> None:  # type: ignore[no-untyped-def]
    """Rajbhandari et al., 2019, figure 1, with K = 8 and 4 bytes for a weight and its gradient."""
    memory = setup(llama, parse_split(data, 64), "full", texts=64.0).memory
    state = memory.weights + memory.gradients + memory.optimizer
    assert state == pytest.approx(formula(llama.parameters, 64), rel=1e-12)


def test_experts_are_spread_over_devices_that_read_other_texts(mixtral: Needs) -> None:
    (stage,) = mixtral.stages(1)
    experts = 32 * 8 * 3 * 4096 * 14336
    rest = mixtral.parameters - experts
    assert held(stage.weights, Split(8, experts=8), sharded=False) == rest + experts / 8
    sharded = held(stage.weights, Split(64, "fsdp", experts=8), sharded=True)
    assert sharded == pytest.approx(mixtral.parameters / 64, rel=1e-12)


def bytes_sent(needs: Needs, split: Split, checkpointing: str = "none", micro: int = 1):  # type: ignore[no-untyped-def]
    stage, batch = needs.stages(split.pipeline, split.chunks)[0], Batch(3.0, micro)
    gathers = Gathers.of(needs.run, split.pipeline)
    sent = exchanged(stage, split, checkpointing, batch, needs.length, gathers, 8)
    return {name: each.total for name, each in sent.items()}


def test_gradients_are_added_up_between_devices(llama: Needs) -> None:
    """A ring of n sends 2 (n - 1) / n of what is added up. What is kept in shards is added up behind each of three
    texts: ZeRO-2 gives weights back once, FSDP gathers 2 bytes of layers twice a text, 2 of the head once, and 4 of
    the embedding and the last norm once."""
    table = 128256 * 4096
    fsdp = 3 * (8 * llama.parameters - 2 * table)
    every = {name: n * llama.parameters for name, n in (("ddp", 8), ("zero1", 8), ("zero2", 16))}
    for data, each in (every | {"fsdp": fsdp}).items():
        sent = bytes_sent(llama, parse_split(data, 8))
        assert sent == {"data": pytest.approx(each * 7 / 8)}, data


def test_the_dtype_of_gathered_weights_is_the_setting(llama: Needs) -> None:
    """scale.param_dtype=float32 gathers 4 bytes of all; scale.reshard=false gathers all but the embedding once a
    step. Autocast then keeps
    the 16-bit copies of all matrices."""
    table, norm = 128256 * 4096, 4096
    layers = llama.parameters - 2 * table - norm
    for key, of_layers, of_head, of_norm, copied in (
        ("scale.param_dtype=float32", 4 + 4 + 4, 4 + 4, 4 + 4, layers - 2 * 32 * norm + table),
        ("scale.reshard=false", 2 / 3 + 4, 2 / 3 + 4, 4 / 3 + 4, 0),
    ):
        needs = Needs(RunSpec(model=llama.model.spec).override(key), llama.model, LENGTH)
        whole = of_layers * layers + of_head * table + of_norm * norm + (4 + 4) * table
        sent = bytes_sent(needs, parse_split("fsdp", 8))
        assert sent == {"data": pytest.approx(3 * whole * 7 / 8)}, key
        memory = setup(needs, Split(8, "fsdp"), "full", texts=8.0).memory
        assert memory.copies == 2 * copied, key


def test_what_is_added_up_behind_each_micro_batch(llama: Needs) -> None:
    """Three texts are two micro-batches of two, and one of four; what follows from tokens stays."""
    p, table = llama.parameters, 128256 * 4096
    for micro, number in ((1, 3), (2, 2), (4, 1)):
        fsdp = (8 * p - 2 * table) * number
        for data, each in (("ddp", 8 * p), ("zero2", (4 * number + 4) * p), ("fsdp", fsdp)):
            sent = bytes_sent(llama, parse_split(data, 8), micro=micro)
            assert sent == {"data": pytest.approx(each * 7 / 8)}, (data, micro)
    ways = (bytes_sent(llama, Split(8, tensor=4, context=2), micro=n) for n in (1, 2))
    first, second = ({k: v for k, v in sent.items() if k != "data"} for sent in ways)
    assert first == second


def test_a_short_context_is_read_many_texts_at_once() -> None:
    """FSDP sends 8 bytes of each weight but an eighth for each of 62 micro-batches of 16 texts of 512 tokens, which
    takes less than the products; with one text at a time it would take more than twice as long as they."""
    asked = {"devices": 8, "split": "fsdp", "context": 512}
    found = planned("llama-3.2-1b", micro_batch=16, **asked)
    sent = 8 * found.counts.total * 7 / 8
    assert found.training.exchange_bytes == {"data": pytest.approx(62 * sent)}
    alone = planned("llama-3.2-1b", micro_batch=1, **asked).training
    assert alone.exchange_bytes == {"data": pytest.approx(977 * sent)}
    assert alone.exchange is not None
    assert found.training.exchange is not None
    assert alone.exchange > 2 * alone.step.least > 10 * found.training.exchange


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("llama-3.2-1b", {"devices": 8, "split": "fsdp", "context": 512}),
        ("llama-3.2-1b", {"devices": 8, "context": 4096}),
        ("gpt-2", {"devices": 2, "hardware": "rtx-4090"}),
        ("gpt-2", {"devices": 64, "batch": "256k"}),
        ("llama-3-8b", {"devices": 64, "split": "fsdp,tensor=2", "batch": "16M"}),
    ],
)
def test_the_largest_micro_batch_that_fits(name: str, asked: dict[str, Any]) -> None:
    """Twice as many texts take twice the activations, which do not fit, or are more than a group of devices has."""
    found = planned(name, **asked)
    way = found.setup
    assert way is not None
    assert way.batch.texts == found.workload.batch_tokens / found.context / way.split.ranks
    assert way.memory.total <= found.workload.memory
    assert way.batch.micro <= way.batch.texts
    assert math.log2(way.batch.micro).is_integer()
    more = way.memory.total + way.memory.activations
    assert more > found.workload.memory or 2 * way.batch.micro > way.batch.texts
    alone = planned(name, **asked, micro_batch=1).setup
    assert alone is not None
    if alone.split == way.split and alone.checkpointing == way.checkpointing:
        times = way.memory.activations / alone.memory.activations
        assert times == pytest.approx(way.batch.micro)


@pytest.mark.parametrize("pipeline", [2, 4, 8])
def test_stages_have_four_micro_batches_each(pipeline: int) -> None:
    """Huang et al., 2019, section 2.3: from 4 on for each stage waiting is negligible."""
    found = planned("llama-3.2-1b", devices=16, context=2048, split=f"pipeline={pipeline},fsdp")
    assert found.setup is not None
    batch = found.setup.batch
    assert batch.micro > 1
    assert batch.number >= 4 * pipeline
    assert found.setup.bubble == pytest.approx(
        (pipeline - 1) / math.ceil(batch.texts / batch.micro)
    )
    assert largest_micro(64, pipeline, lambda micro: True) == 64 // (4 * pipeline)


def test_computing_again_where_links_would_take_longer() -> None:
    """Few activations let more texts through at once, so that FSDP gathers less often: over the links of an RTX 4090
    that is worth a third more FLOPs, over those of an H100 nothing."""
    asked = {"devices": 64, "context": 2048, "split": "fsdp"}
    slow = planned("llama-3-8b", hardware="rtx-4090", **asked)
    assert slow.setup is not None
    assert slow.setup.checkpointing == "full"
    one = planned("llama-3-8b", hardware="rtx-4090", micro_batch=1, **asked)
    assert one.setup is not None
    seconds = 8 * one.counts.total * 63 / 64 * one.setup.batch.number / 32e9
    assert slow.training.bound * 4 / 3 < seconds
    assert planned("llama-3-8b", **asked).setup.checkpointing == "none"  # type: ignore[union-attr]


def test_what_fsdp_gathers() -> None:
    """In 16 bits a layer, its gradient and the next layer, and in 32 the previous layer's gradients on their way. The
    table, which is also the head, and the last norm stay in 32 bits, with their gradient, and with that of the loss or
    what is on its way of them; autocast copies the table. With a head of its own, the largest is that with gradients of
    all chunks and of one, or the embedding's gradient on its way."""
    needs = needs_of("llama-3.2-1b")
    layer = 2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192 + 2 * 2048
    around = 128256 * 2048 + 2048
    memory = setup(needs, Split(8, "fsdp"), "none", texts=8.0).memory
    assert memory.gathered == (2 + 2 + 2 + 4) * layer + 12 * around
    assert memory.copies == 2 * 128256 * 2048
    eight = setup(needs_of("llama-3-8b"), Split(8, "fsdp"), "none", texts=8.0).memory
    assert eight.gathered == (2 + 2 + 4) * 128256 * 4096 + 12 * 4096
    assert eight.copies == 0
    assert setup(needs, Split(8, "zero2"), "none", texts=8.0).memory.gathered == 4 * (
        layer + around
    )


def test_experts_that_are_not_gathered_are_cast(mixtral: Needs) -> None:
    """Eight devices with an expert of each layer: the backward pass reads it in 16 bits, cast again where all is
    computed again."""
    for checkpointing, layers in (("none", 32), ("selective", 1), ("full", 1)):
        way = setup(mixtral, Split(8, "fsdp", experts=8), checkpointing, texts=8.0)
        assert way.memory.copies == layers * 2 * 3 * 4096 * 14336


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3-8b"])
def test_copies_are_what_autocast_keeps(name: str) -> None:
    """Of torch, what a forward pass under autocast saves with the shape of a weight."""
    run = RunSpec(model=load(name).tiny().override("vocab_size=512", "context_length=32"))
    model = build(run.model)
    shapes = {tuple(p.shape) for p in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def save(t: torch.Tensor) -> torch.Tensor:
        base = t if t._base is None else t._base
        if t.dtype == torch.bfloat16 and {tuple(t.shape), tuple(t.shape)[::-1]} & shapes:
            saved[base.data_ptr()] = base
        return t

    with (
        torch.autograd.graph.saved_tensors_hooks(save, lambda t: t),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        model(torch.randint(0, 512, (1, 32))).logits.sum()
    memory = setup(Needs(run, model, 32), Split(1), "none", texts=1.0).memory
    assert memory.copies == sum(t.nbytes for t in saved.values())


def test_a_model_does_not_fit_without_its_copy_in_16_bits() -> None:
    """16 + 2 bytes of each of 1.24B weights leave nothing for activations in 90 % of 24 GB."""
    found = planned("llama-3.2-1b", hardware="rtx-4090", devices=1, context=4096)
    assert found.setup is None
    norms = (2 * 16 + 1) * 2048
    assert found.smallest.memory.copies == 2 * (found.counts.total - norms)


@pytest.mark.parametrize(
    ("split", "texts", "micro", "why"),
    [
        (Split(64, "fsdp"), 64.0, 1, ""),
        (Split(64, "fsdp"), 63.0, 1, "few sequences"),
        (Split(64, "fsdp"), 127.0, 2, "few sequences"),
        (Split(64), 64.0, 1, "memory"),
        (Split(64, tensor=8, pipeline=8), 6.0, 1, "pipeline bubble"),
    ],
)
def test_why_a_way_does_not_fit(
    llama: Needs, split: Split, texts: float, micro: int, why: str
) -> None:
    work = replace(workload(devices=64, context=LENGTH), batch_tokens=texts * LENGTH)
    way = setup(llama, split, "full", texts, micro)
    assert work.why_not(way) == why
    asked = replace(work, split=Split(64, tensor=8, pipeline=8))
    assert asked.why_not(way) == (why if why != "pipeline bubble" else "")


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"micro_batch": 0}, "micro-batch: found 0; expected 1 or more sequences"),
        (
            {"micro_batch": 62, "split": "fsdp"},
            "micro-batch: found 62; expected at most 61, the sequences of a step for a group of devices",
        ),
        (
            {"micro_batch": 1000},
            "micro-batch: found 1,000; expected at most 488, the sequences of a step for a group of devices",
        ),
    ],
)
def test_a_micro_batch_that_cannot_be_is_one_line(asked: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        planned("llama-3-8b", devices=8, context=8192, **asked)
    assert error.value.lines == (line,)


def test_four_sums_of_activations_for_each_layer(gpt: Needs) -> None:
    """Shoeybi et al., 2019, section 3: two all-reduces forward and two backward, of s h numbers in 16 bits."""
    of_one = 2 * 7 / 8 * LENGTH * 12288 * 2
    sent = bytes_sent(gpt, Split(8, tensor=8, sequence=False))
    assert sent == {"tensor": pytest.approx(3 * 96 * 4 * of_one)}
    for checkpointing in ("selective", "full"):  # layers gather again what they compute again
        again = bytes_sent(gpt, Split(8, tensor=8, sequence=False), checkpointing)
        assert again == {"tensor": pytest.approx(3 * 96 * 6 * of_one)}
    parts = bytes_sent(gpt, Split(8, tensor=8))  # a gathering and a scattering in place of each sum
    assert parts == {"tensor": pytest.approx(3 * 96 * 4 * of_one)}


def test_stages_send_what_stands_between_them(gpt: Needs) -> None:
    stages = gpt.stages(8)
    split = Split(64, tensor=8, pipeline=8)
    sent = [
        exchanged(stage, split, "none", Batch(3.0), LENGTH, Gathers(), 8)["pipeline"]
        for stage in stages
    ]
    once = 3 * LENGTH * 12288 * 2  # all tokens, by each device of a tensor-parallel group
    assert sent == [(0, number * once) for number in (1, *[2] * 6, 1)]
    buffers = setup(gpt, split, "full", texts=64.0).memory.gathered
    alone = setup(gpt, replace(split, data="zero1"), "full", texts=64.0).memory.gathered
    assert buffers - alone == pytest.approx(64 * 2 * LENGTH * 12288 * 2)  # of stages in the middle


def test_keys_and_values_pass_between_parts_of_a_text(llama: Needs) -> None:
    """Forward as such, backward as gradients, and once more where they are computed again."""
    keys = 32 * 2 * 8 * 128 * LENGTH * 2
    for checkpointing, times in (("none", 2), ("full", 3)):
        sent = bytes_sent(llama, Split(4, context=4), checkpointing)
        assert sent["context"] == pytest.approx(3 * times * keys * 3 / 4)
    parts, whole = (
        setup(llama, split, "none", texts=1.0).memory.activations
        for split in (Split(4, context=4), Split(4, "fsdp"))
    )
    assert parts - whole / 4 == pytest.approx(keys * 3 / 4)  # of the other devices


def test_tokens_go_to_their_experts_and_back(mixtral: Needs) -> None:
    sent = bytes_sent(mixtral, Split(8, experts=8))
    once = 32 * 2 * 4096 * LENGTH * 2 * 7 / 8
    assert sent["experts"] == pytest.approx(3 * 4 * once)
    experts = 32 * 8 * 3 * 4096 * 14336
    assert sent["data"] == pytest.approx(8 * (mixtral.parameters - experts) * 7 / 8)


@pytest.mark.parametrize(
    ("context", "split"),
    [(8192, "tensor=8,pipeline=16,fsdp"), (131072, "tensor=8,pipeline=16,context=16,fsdp")],
)
def test_llama_3_405b_fits_as_published(context: int, split: str) -> None:
    """16,384 H100s, 16M tokens a step; 7 layers on the first and last stage, 8 on others (Grattafiori et al., 2024,
    table 4 and section 3.3.2). They computed no activation again, with a stream in 16 bits, fused activations, and
    inputs of branches that are gathered again; here activations then take twice as much as there is room for."""
    asked = {"devices": 16384, "context": context, "batch": str(2**24)}
    found = planned("llama-3-405b", split=split, **asked)
    assert found.setup is not None
    assert found.setup.checkpointing == "full"
    least_again = setup(
        needs_of("llama-3-405b", length=context), parse_split(split, 16384), "none", 2**24 / context
    )
    assert 80e9 < least_again.memory.total < 2.1 * 80e9
    assert found.setup.layers == (7, *[8] * 14, 7)
    assert found.setup.split.ranks == 2**14 // math.prod(found.setup.split.axes.values())
    memory = found.setup.memory
    assert memory.total < 80e9
    state = memory.weights + memory.gradients + memory.optimizer
    # Stages have 7 or 8 of 126 layers, on an eighth of whose devices each norm stands.
    assert state == pytest.approx(16 * found.counts.total / 126 * 8 / 1024, rel=0.06)
    texts = 2**24 / context / found.setup.split.ranks
    assert found.setup.bubble == pytest.approx(15 / texts)


def test_deepseek_v3_fits_as_published() -> None:
    """2,048 H800s of 80 GB: 16 stages, experts over 64 devices, ZeRO-1, no tensor parallelism, 15,360 texts of 4096
    tokens a step (DeepSeek-AI, 2024, sections 3.2 and 4.2)."""
    batch = str(15360 * 4096)
    asked = {"devices": 2048, "context": 4096, "batch": batch}
    found = planned("deepseek-v3", split="pipeline=16,experts=64,zero1", **asked)
    assert found.setup is not None
    assert found.setup.split.name == "ZeRO-1, pipeline-parallel 16, expert-parallel 64"
    assert found.setup.memory.total < 80e9


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt-2", "albert-base", "t5-base"])
@pytest.mark.parametrize("devices", [1, 6, 64])
def test_ways_that_are_looked_at_cut_the_model_evenly(name: str, devices: int) -> None:
    needs = needs_of(name)
    found = [*splits(devices, needs.degrees)]
    assert found[0] == Split(devices)
    assert len({*found}) == len(found)
    for split in found:
        assert split.replicas * split.tensor * split.pipeline == devices
        assert split.ranks * split.context == split.replicas
        assert not [*problems(split, needs.model, LENGTH)]


def test_the_order_of_ways(llama: Needs) -> None:
    """Inside a server first, then FSDP, then stages, and parts of a text last."""
    degrees = replace(llama.degrees, pipeline=(2, 4), context=(2,))
    names = [split.name for split in splits(64, degrees)]
    assert names == [
        "DDP",
        *(f"DDP, tensor-parallel {n}" for n in (2, 4, 8)),
        "FSDP",
        *(f"HSDP, shard {n}" for n in (8, 16, 32)),
        *(f"FSDP, tensor-parallel {n}" for n in (2, 4, 8)),
        *(f"FSDP, tensor-parallel 8, {stages}" for stages in STAGES),
        "FSDP, tensor-parallel 8, context-parallel 2",
        *(
            f"FSDP, tensor-parallel 8, {before}, context-parallel 2{chunks}"
            for before, _, chunks in (stages.partition(", 2 ") for stages in STAGES)
            for chunks in (", 2 chunks a stage" if chunks else "",)
        ),
    ]


STAGES = (
    "pipeline-parallel 2",
    "pipeline-parallel 4",
    "pipeline-parallel 2, 2 chunks a stage",
    "pipeline-parallel 4, 2 chunks a stage",
)


def test_the_first_way_that_fits_is_named() -> None:
    found = planned("llama-3-8b", devices=64, context=8192)
    names = {way.split.name: not found.workload.why_not(way) for way in found.ways}
    assert names["DDP"] is False
    assert found.setup is not None
    assert found.setup.split.name == next(name for name, fits in names.items() if fits)
    assert planned("llama-3.2-1b", devices=64, context=8192).setup.split.name == "DDP"  # type: ignore[union-attr]


def test_stages_that_mostly_wait_are_taken_only_when_asked_for() -> None:
    asked = {"devices": 64, "context": 8192, "batch": "16k"}
    assert planned("llama-3.2-1b", **asked).setup is None
    found = planned("llama-3.2-1b", split="tensor=8,pipeline=8", **asked)
    assert found.setup is not None
    assert found.training.bubble > 3


DIVISOR = "expected a number that goes into"
MISTAKES = [
    ("llama-3-8b", 336, "tensor=7", f"{DIVISOR} the 32 heads of attention.query, such as 4"),
    ("llama-3-8b", 64, "pipeline=64", "expected at most 32, the number of layers"),
    ("llama-3-8b", 64, "experts=8", "expected 1, as none of the 32 layers has experts"),
    ("mixtral-8x7b", 48, "experts=3", f"{DIVISOR} the 8 experts of a layer, such as 2"),
    (
        "mixtral-8x7b",
        12,
        "experts=8",
        f"{DIVISOR} the 12 devices with the same part of the model, such as 6",
    ),
    ("llama-3-8b", 48, "context=3", f"{DIVISOR} the 8,192 tokens of a sequence, such as 2"),
    ("albert-base", 4, "pipeline=4", "expected 1, as layers share their weights"),
    ("bart-base", 4, "pipeline=4", "expected 1, as stages of an encoder-decoder are not planned"),
]
"""A model, devices, a split, and what was expected in its place."""


@pytest.mark.parametrize(("name", "devices", "split", "line"), MISTAKES)
def test_a_split_that_cuts_a_model_unevenly_is_one_line(
    name: str, devices: int, split: str, line: str
) -> None:
    with pytest.raises(UserError) as error:
        planned(name, devices=devices, split=split)
    assert error.value.lines == (f"split: found {split}; {line}",)


@pytest.mark.parametrize(
    ("split", "line"),
    [
        (
            "tensor=16",
            'found "tensor=16", whose groups have 16 devices; expected groups that go in',
        ),
        ("tensr=8", 'found "tensr=8"; expected tensor=N, pipeline=N, context=N, experts=N, ddp, '),
        ("tensor=0", 'found "tensor=0"; expected tensor=N'),
        ("tensor=8,tensor=4", 'found "tensor=4" behind another of its kind; expected one'),
        ("", 'found ""; expected tensor=N'),
    ],
)
def test_a_split_that_cannot_be_read_is_one_line(split: str, line: str) -> None:
    with pytest.raises(UserError) as error:
        workload(devices=8, split=split)
    (found,) = error.value.lines
    assert found.startswith(f"split: {line}")
    assert ("Did you mean" in found) == (split == "tensr=8")


def test_a_split_is_called_as_it_is_asked_for() -> None:
    assert parse_split("tensor=2,no-sequence,zero2", 8) == Split(
        8, "zero2", tensor=2, sequence=False
    )
    assert parse_split("ddp", 8).name == "DDP"
    split = parse_split("fsdp,experts=4,context=2,pipeline=2,tensor=2", 16)
    assert (
        split.name
        == "FSDP, tensor-parallel 2, pipeline-parallel 2, context-parallel 2, expert-parallel 4"
    )
    assert [*split.axes] == ["tensor", "pipeline", "context", "experts"]
