"""Bytes that a device sends per step, inside its server and to other servers, by kind of parallelism."""

from collections.abc import Iterator, Sequence
from math import gcd
from typing import NamedTuple

from archwright.planning.memory import PER_ACTIVATION
from archwright.planning.split import Batch, Split, share
from archwright.planning.stages import PER_WEIGHT, Gathers, Stage, Weights

SERVER = 8
"""Devices per server, if no hardware says otherwise."""


class Sent(NamedTuple):
    """Bytes sent by one device."""

    inside: float = 0.0
    """To devices of its server."""
    between: float = 0.0
    """To other servers."""

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.inside + self.between


class Group(NamedTuple):
    """Devices of one axis of the grid, numbered as ranks; the ranks of a server are consecutive."""

    size: int
    stride: int
    """Distance of neighbours."""
    server: int
    """Devices per server."""

    @property
    def members(self) -> int:
        """Devices of the group in one server; an uneven group counts as if it had fewer."""
        if self.size * self.stride <= self.server and self.server % (self.size * self.stride) == 0:
            return self.size
        return 1 if self.server % self.stride else gcd(self.size, self.server // self.stride)

    def gather(self, number: float) -> Sent:
        """Return what an all-gather or a reduce-scatter of `number` bytes sends.

        Devices with the same place in k servers exchange their 1 / m of the bytes, then the m devices of a server
        exchange the rest, so that each byte enters a server once: number (k - 1) / (k m) between servers, and
        number (m - 1) / m inside. Rings over several network adapters send as much.
        """
        m, k = self.members, self.size // self.members
        return Sent(number * (m - 1) / m, number * (k - 1) / (k * m))

    def scatter(self, number: float) -> Sent:
        """Return what an all-to-all sends, if each device has equal parts of `number` bytes for all."""
        n, m = self.size, self.members
        return Sent(number * (m - 1) / n, number * (n - m) / n)

    def pass_on(self, number: float, neighbours: int) -> Sent:
        """Return what a device of a chain sends to its neighbours, at the end of a server if the chain goes on."""
        across = neighbours if self.members == 1 else min(neighbours, 1)
        across = 0 if self.members == self.size else across
        return Sent(number * (neighbours - across), number * across)


def exchanged(
    stage: Stage,
    split: Split,
    checkpointing: str,
    batch: Batch,
    length: int,
    gathers: Gathers,
    server: int,
) -> dict[str, Sent]:
    """Return bytes sent per step by one device of a pipeline stage.

    On n devices with N bytes in total, an all-gather or a reduce-scatter sends N (n - 1) / n per device, and an
    all-reduce sends twice this amount (Rajbhandari et al., 2019, section 7). Below, s is `length` and h the width.

        data      DDP: one all-reduce of float32 gradients per step. ZeRO-1: the same bytes for a reduce-scatter of
                  gradients and an all-gather of weights. ZeRO-2: a reduce-scatter per micro-batch, since only shards
                  of sums are stored (Rajbhandari et al., 2019, section 5.2), and an all-gather per step. FSDP: a
                  reduce-scatter per micro-batch, and all-gathers of layers before each pass, or with pipelines once
                  per step, and of embedding and head once. HSDP: in addition, an all-reduce of shards between
                  replicas per step, or per micro-batch if a device has several runs of layers
        tensor    an all-gather and a reduce-scatter of s h per branch, or one all-reduce, for activations and for
                  gradients (Shoeybi et al., 2019, figure 4; Korthikanti et al., 2022, section 4.2.2)
        pipeline  s h to each neighbour, activations forward and gradients back (Narayanan et al., 2021, section 3.2)
        context   keys and values of other devices, and their gradients
        experts   tokens to experts and back in both passes

    Recomputation, full or selective, repeats the communication of the layers.
    """
    again, stream = checkpointing != "none", batch.texts * PER_ACTIVATION * length / split.context
    tensor, ranks = split.tensor, split.tensor * split.replicas
    server = split.devices if split.devices <= server else server
    keys = stage.keys_on_a_device(tensor) * split.context
    summed = stage.branch_width * (4 + 2 * again)
    experts = Group(split.experts, tensor, server)
    sizes = {
        "data": _added_up(_of_weights(stage, split, batch, gathers, server)),
        "tensor": Group(tensor, 1, server).gather(stream * summed),
        "pipeline": Group(split.pipeline, ranks, server).pass_on(
            stream * stage.dim, stage.num_neighbours
        ),
        "context": Group(split.context, tensor, server).gather(stream * keys * (2 + again)),
        "experts": experts.scatter(stream * stage.sent_to_experts * (4 + 2 * again)),
    }
    return {name: sent for name, sent in sizes.items() if sent.total}


def _of_weights(
    stage: Stage, split: Split, batch: Batch, gathers: Gathers, server: int
) -> Iterator[Sent]:
    """Yield what gradients and weights of each kind send."""
    size, tensor = gathers.itemsize, split.tensor
    # Sharded gradients have no full buffer to accumulate in, so each pass reduces its gradients.
    number = batch.number
    gathered = number if gathers.times > 1 else 1
    units: Sequence[tuple[Weights, float]] = {
        "ddp": [(stage.weights, 2 * PER_WEIGHT)],
        "zero1": [(stage.weights, 2 * PER_WEIGHT)],
        "zero2": [(stage.weights, PER_WEIGHT * number + PER_WEIGHT)],
        "fsdp": [
            (stage.of_layers, size * gathers.times * gathered + PER_WEIGHT * number),
            (stage.head, size * gathered + PER_WEIGHT * number),
            (stage.embedding, 2 * PER_WEIGHT * number),
            (stage.rest, PER_WEIGHT * (gathered + number)),
        ],
    }[split.data]
    for weights, per_weight in units:
        for kind, amount in weights.items():
            own = split.experts if kind.is_expert else 1
            held = amount * share(kind.blocks, tensor) / own
            shards = split.shards // own
            yield Group(shards, tensor * own, server).gather(per_weight * held)
            if split.copies > 1:
                times = number if split.chunks > 1 else 1
                replicas = Group(split.copies, tensor * split.shards, server)
                yield replicas.gather(2 * PER_WEIGHT * times * held / shards)


def _added_up(all_sent: Iterator[Sent]) -> Sent:
    sent = [*all_sent]
    return Sent(sum(each.inside for each in sent), sum(each.between for each in sent))
