"""What a plan sends over which links: against a simulation, and published runs."""

import itertools
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from archwright.model import build
from archwright.planning.exchange import Group
from archwright.planning.plans import Plan, plan
from archwright.planning.split import Split, parse_split
from archwright.planning.stages import Needs
from archwright.planning.training_memory import setup
from archwright.planning.workload import workload
from archwright.scale.fsdp import units
from archwright.spec.errors import UserError
from archwright.spec.hardware import load_hardware
from archwright.spec.read import load, load_run, preset_names
from archwright.spec.run_spec import RunSpec


def planned(name: str, *changes: str, **asked: object) -> Plan:
    return plan(load_run(name).override(*changes), workload(**asked))  # type: ignore[arg-type]


class Grid(NamedTuple):
    """Sizes of a grid of ranks, the outermost first, as scale/distributed.py makes its meshes."""

    pipeline: int
    copies: int
    shard: int
    context: int
    tensor: int

    def groups(self, axes: tuple[str, ...]) -> list[list[int]]:
        """Return the ranks of each group along some axes."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(itertools.product(*map(range, self))):
            others = (n for name, n in zip(self._fields, place, strict=True) if name not in axes)
            groups.setdefault((*others,), []).append(rank)
        return [*groups.values()]


GRIDS = [
    Grid(*sizes) for sizes in itertools.product((1, 2), (1, 2, 4), (1, 2, 4), (1, 2), (1, 2, 4))
]


def gathered_by_servers(ranks: list[int], server: int) -> dict[int, Counter[str]]:
    """Return what each device sends in an all-gather, in pieces of which each has one at first.

    Rings of devices with one place in all servers, then a ring inside each server, step by step.
    """
    sent: dict[int, Counter[str]] = {rank: Counter() for rank in ranks}
    has = {rank: {rank} for rank in ranks}
    servers: dict[int, list[int]] = {}
    for rank in ranks:
        servers.setdefault(rank // server, []).append(rank)
    across = [*map(list, zip(*servers.values(), strict=True))]
    for rings in (across, [*servers.values()]):
        for ring in rings:
            last = {rank: has[rank].copy() for rank in ring}
            for _ in range(len(ring) - 1):
                moved = {}
                for at, rank in enumerate(ring):
                    to = ring[(at + 1) % len(ring)]
                    sent[rank]["in" if rank // server == to // server else "out"] += len(last[rank])
                    moved[to] = last[rank]
                    has[to] = has[to] | last[rank]
                last = moved
    assert all(has[rank] == {*ranks} for rank in ranks)
    return sent


@pytest.mark.parametrize("server", [2, 4, 8])
def test_links_of_small_grids(server: int) -> None:
    """Each group of 72 grids of up to 128 ranks, step by step: an all-gather by rings, an all-to-all by pairs."""
    for grid in GRIDS:
        strides = {"tensor": 1, "context": grid.tensor, "shard": grid.tensor * grid.context}
        strides["copies"] = strides["shard"] * grid.shard
        strides["pipeline"] = strides["copies"] * grid.copies
        for axes in (("tensor",), ("context",), ("shard", "context"), ("copies",), ("pipeline",)):
            for ranks in grid.groups(axes):
                n, stride = len(ranks), min(strides[axis] for axis in axes)
                group = Group(n, stride, server)
                found = gathered_by_servers(ranks, server)
                inside, between = group.gather(1.0)
                for sent in found.values():
                    assert sent["in"] / n == pytest.approx(inside)
                    assert sent["out"] / n == pytest.approx(between)
                assert inside + between == pytest.approx(1 - 1 / n)  # as much as one ring of all
                pairs = Counter(a // server == b // server for a in ranks[:1] for b in ranks[1:])
                assert group.scatter(1.0) == pytest.approx((pairs[True] / n, pairs[False] / n))
                steps = [a // server != b // server for a, b in itertools.pairwise(ranks)]
                _, across = group.pass_on(1.0, 1)
                assert across == any(steps)


def test_no_way_of_gathering_sends_less_between_servers() -> None:
    """A server of m devices lacks (k - 1) / k of the bytes, and the others share the sending: (k - 1) / (k m) each."""
    for size, server in ((64, 8), (16, 4), (32, 8)):
        servers = size // server
        assert Group(size, 1, server).gather(1.0).between * server == pytest.approx(1 - 1 / servers)


@pytest.mark.sampled(fast=8)
@pytest.mark.parametrize("name", preset_names("models"))
def test_layers_that_are_gathered_alone_are_those_of_fsdp(name: str) -> None:
    model = build(load(name).tiny(), device="meta")
    assert Needs(RunSpec(model=model.spec), model, 32)._units == {*units(model)}


def test_a_gathering_needs_few_bytes_of_each_adapter() -> None:
    """Llama 3 70B, FSDP on 64 H100s, 4M tokens: per micro-batch 6 + 2 bytes of 68.5B weights of layers, 2 + 4 of the
    head's 1.05B, and 4 + 4 of the embedding's; 8 micro-batches of one text. Of 4.5 TB, 7/8 of 1/8 pass each adapter of
    50 GB/s, as a server of 8 gathers with 8 adapters at once: 9.8 s. If all bytes of a device passed its own adapter,
    this would be 89 s, but not even one ring through all servers needs that: it enters each server by one adapter, and
    NCCL has a ring for each. Compute takes 28 s at the peak, and 38 s as nothing less than full recomputation fits."""
    found = planned("llama-3-70b", devices=64, context=8192, split="fsdp")
    assert found.setup is not None
    assert (found.setup.checkpointing, found.setup.batch.number) == ("full", 8)
    table = 128256 * 8192
    layers = found.counts.total - 2 * table - 8192
    number = 8 * (8 * layers + 6 * table + 8 * (table + 8192))
    between, inside = number * 7 / 8 / 8, number * 7 / 8
    assert found.setup.between == pytest.approx(between)
    assert found.setup.inside == pytest.approx(inside)
    seconds = found.training.links
    assert seconds == pytest.approx(
        {"inside servers": inside / 450e9, "between servers": between / 50e9}
    )
    assert seconds["between servers"] == pytest.approx(9.8, abs=0.1)
    assert found.training.bound == pytest.approx(28.4, abs=0.1)
    assert found.training.compute == pytest.approx(28.4 * 4 / 3, abs=0.2)


def test_replicas_across_servers_send_gradients_once() -> None:
    """HSDP with shards inside a server: between servers 2 x 4 bytes of an eighth of the weights, 7/8 of them, a step;
    FSDP sends as much for each micro-batch."""
    needs = Needs(load_run("llama-3-8b"), build(load("llama-3-8b"), device="meta"), 8192)
    hsdp, fsdp = (
        setup(needs, parse_split(text, 64), "full", 512.0) for text in ("shard=8", "fsdp")
    )
    assert hsdp.batch.number == 8
    assert hsdp.between == pytest.approx(8 * needs.parameters / 8 * 7 / 8)
    table = 128256 * 4096
    assert fsdp.between == pytest.approx(8 * (hsdp.between - 2 * table * 7 / 64))
    assert hsdp.memory.weights == pytest.approx(4 * needs.parameters / 8)
    assert hsdp.split.scale == {"replicate": 8, "shard": 8}
    assert hsdp.split.name == "HSDP, shard 8"


LLAMA = {"devices": 16384, "context": 8192, "batch": str(2**24)}


def test_llama_3_405b_sends_what_is_published() -> None:
    """16M tokens a step on 16,384 H100s: tensor 8, pipeline 16, data 128, so 3.17e9 weights a device and 16
    micro-batches (Grattafiori et al., 2024, table 4). Without resharding and with one sum a step, a device sends
    2 or 4 bytes of each for weights and 4 for gradients: 3.17e9 x 6 = 19 to 3.17e9 x 8 = 25 GB. One layer a stage,
    8 chunks: a bubble of 15 / (8 x 16) = 11.7 % (section 3.3.2). archwright's trainer gathers once and adds up for
    each micro-batch: 3.17e9 x (2 + 16 x 4) = 209 GB, with the rest 4.35 s over an adapter of 50
    GB/s, more than the 2.6 s of compute."""
    found = planned("llama-3-405b", split="tensor=8,pipeline=16,chunks=8,zero1", **LLAMA)
    way = found.setup or found.smallest
    assert way.split.scale is None  # other trainers
    held = 405.85e9 / (8 * 16)
    assert held * 6 == pytest.approx(19e9, rel=0.01)
    assert 19e9 < way.sent["data"].between < 1.02 * held * 8
    assert way.sent["data"].inside == 0
    assert way.bubble == pytest.approx(15 / (8 * 16))
    assert way.layers == (7, *[8] * 14, 7)
    plain = planned("llama-3-405b", split="tensor=8,pipeline=16,fsdp", **LLAMA)
    assert plain.setup is not None
    assert plain.setup.split.scale == {"shard": 128, "tensor": 8, "pipeline": 16}
    assert plain.setup.bubble == 15 / 16
    assert plain.setup.sent["data"].total == pytest.approx(held * (2 + 16 * 4), rel=0.02)
    assert plain.training.links["between servers"] == pytest.approx(4.35, rel=0.03)
    hours = planned("llama-3-405b", tokens="15.6T", mfu="0.38-0.43", **LLAMA).training.device_hours
    assert hours.least < 30.84e6 < hours.most / 0.9


def test_deepseek_v3_routes_tokens_over_the_network() -> None:
    """2,048 H800s, 16 stages, experts over 64 devices, 120 texts of 4,096 tokens a step for each device: 491,520 tokens
    x 4 layers x 8 experts x 7,168 x 2 bytes, there and back in both passes, to 63 of 64 devices, and half as much again
    where all is computed again: 1.33 TB, of which 56 of 63 parts go to other servers. The report's trainer sends a
    token once to each of at most 4 servers, on average 3.5 others, in place of 8 experts, of which 7 are in other
    servers, the first time in fp8, and computes none of it again: 1.33 x 56/63 x 4/6 x 3.5/7 x 7/8 = 0.35 TB
    (DeepSeek-AI, 2024, sections 3.2.2 and 3.3.3)."""
    asked = {"devices": 2048, "context": 4096, "batch": str(15360 * 4096)}
    found = planned("deepseek-v3", split="pipeline=16,experts=64,zero1", **asked)
    assert found.setup is not None
    assert found.setup.checkpointing != "none"
    whole = 120 * 4096 * 4 * 8 * 7168 * 2 * 6
    assert found.setup.sent["experts"] == pytest.approx((whole * 7 / 64, whole * 56 / 64))
    assert found.setup.sent["experts"].total == pytest.approx(1.33e12, rel=0.01)
    published = found.setup.sent["experts"].between * 4 / 6 * 3.5 / 7 * 7 / 8
    assert published == pytest.approx(0.35e12, rel=0.02)
    hours = planned("deepseek-v3", tokens="14.8T", mfu="0.25-0.5", **asked).training.device_hours
    assert hours.least < 2.664e6 < hours.most


def test_bandwidths_of_published_servers() -> None:
    """An adapter of 400 Gbit/s for each of 8 GPUs of DGX H100, H200 and B200, of 200 for DGX A100 (data sheets)."""
    for name, gigabits in (("h100", 400), ("h200", 400), ("b200", 400), ("a100-80gb", 200)):
        device = load_hardware(name)
        assert device.network_bandwidth == gigabits / 8 * 1e9
        assert device.devices_per_server == 8
    assert load_hardware("rtx-4090").network_bandwidth == "none"


def test_own_hardware_by_keys(tmp_path: Path) -> None:
    """Values on top of a preset, or a file; without a network nothing is said of its time."""
    asked = {"devices": 64, "context": 2048, "split": "fsdp"}
    unknown = planned("llama-3-8b", hardware="rtx-4090", **asked)
    assert unknown.training.exchange is None
    assert unknown.training.links["between servers"] is None
    keys = ("network_bandwidth=25e9", "devices_per_server=4")
    found = planned("llama-3-8b", hardware="rtx-4090", hardware_keys=keys, **asked)
    way = found.setup
    assert way is not None
    assert found.training.links["between servers"] == pytest.approx(way.between / 25e9)
    assert way.between == pytest.approx(way.sent["data"].total / 63 * 64 * 15 / 16 / 4)
    own = tmp_path / "mine.toml"
    own.write_text(
        "memory_bytes = 40e9\ninterconnect_bandwidth = 1e11\n[peak_flops]\nbf16 = 2e14\n", "utf-8"
    )
    device = load_hardware(str(own))
    assert (device.name, device.peak("bf16"), device.network_bandwidth) == ("mine", 2e14, "none")
    assert device.evidence == found.workload.hardware.evidence == "given"
    with pytest.raises(UserError, match=r"hardware\.network_bandwith: unknown key\. Did you mean"):
        workload(hardware="h100", hardware_keys=["network_bandwith=1e9"])


@pytest.mark.parametrize(
    ("split", "keys"),
    [
        (Split(8), {"replicate": 8, "shard": 1}),
        (Split(8, "fsdp"), {"shard": 8}),
        (Split(16, "fsdp", shard=4, tensor=2), {"replicate": 2, "shard": 4, "tensor": 2}),
        (Split(8, "fsdp", experts=4, context=2), {"shard": 4, "context": 2, "expert": 4}),
        (
            Split(8, "fsdp", pipeline=2, chunks=2),
            {"shard": 4, "pipeline": 2, "pipeline_schedule": "interleaved_1f1b"},
        ),
        (Split(8, "zero1"), None),
        (Split(8, "fsdp", pipeline=2, chunks=4), None),
        (Split(8, experts=8), None),
    ],
)
def test_keys_of_the_trainer(split: Split, keys: dict[str, object] | None) -> None:
    assert split.scale == keys
    if keys is not None:
        RunSpec().override(*(f"scale.{name}={value}" for name, value in keys.items()))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "shard=8,ddp",
            'split: found "shard=8,ddp"; expected shard=N with fsdp, as ddp shards otherwise',
        ),
        ("chunks=2", "split: found chunks=2; expected pipeline=N beside it, with N of 2 or more"),
        (
            "pipeline=16,chunks=4",
            "split: found chunks=4; expected at most 2, for 32 layers on 16 stages",
        ),
        (
            "shard=8,experts=3",
            "split: found experts=3; expected 1, as none of the 32 layers has experts",
        ),
    ],
)
def test_a_split_that_cannot_be_is_one_line(text: str, line: str) -> None:
    with pytest.raises(UserError) as error:
        planned("llama-3-8b", devices=64, split=text)
    assert error.value.lines == (line,)
