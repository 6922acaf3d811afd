"""Training memory per device, and bytes sent, by parallelism and activation checkpointing."""

from dataclasses import asdict, dataclass
from math import inf

from archwright.model.model import Decoder
from archwright.planning.exchange import SERVER, Sent, exchanged
from archwright.planning.memory import PER_ACTIVATION, WHOLE_LOGITS
from archwright.planning.split import DATA, Batch, Split, largest_micro, share
from archwright.planning.stages import PER_WEIGHT, Gathers, Kind, Needs, Stage, Weights
from archwright.spec.run_spec import RunSpec

PER_COPY = 2
"""Bytes of a weight in 16 bits."""
USABLE = 0.9
"""Usable share of a device's memory; the rest is for kernels and fragmentation."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device; weights, gradients and optimizer are counted, other fields estimated."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    """Bytes of 16-bit weights, which autocast stores from the forward pass to the backward pass."""
    gathered: float
    """Bytes of temporary data from other devices: layers, gradients, and keys and values."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class Setup:
    """Parallelism, checkpointing and batch of a training run, with costs on the most loaded device."""

    split: Split
    checkpointing: str
    batch: Batch
    """Sequences per group of devices and step."""
    memory: TrainingMemory
    sent: dict[str, Sent]
    """Bytes sent per device and step, by kind of parallelism, inside its server and to others."""
    layers: tuple[int, ...]
    """Number of layers of each stage."""
    bubble: float
    """Idle time over compute time of a device: (p - 1) / (v m) with p stages, v chunks and m micro-batches
    (Narayanan et al., 2021, section 2.2.2)."""

    @property
    def exchange(self) -> dict[str, float]:
        """Bytes sent per device and step, by kind of parallelism."""
        return {name: sent.total for name, sent in self.sent.items()}

    @property
    def inside(self) -> float:
        """Bytes sent per device and step inside its server."""
        return sum(sent.inside for sent in self.sent.values())

    @property
    def between(self) -> float:
        """Bytes sent per device and step to other servers."""
        return sum(sent.between for sent in self.sent.values())


def split_one(
    run: RunSpec,
    model: Decoder,
    checkpointing: str,
    rows: int = 1,
    *,
    whole_logits: bool = False,
    narrow: bool = True,
) -> float:
    """Return the bytes of training on one device with micro-batches of `rows` sequences.

    Args:
        narrow: autocast to 16 bits; otherwise activations have 32 bits.
    """
    needs = Needs(run, model, model.spec.context_length, narrow=narrow)
    memory = setup(needs, Split(1), checkpointing, rows, rows).memory
    total = memory.total + (rows * needs.logits - memory.logits if whole_logits else 0)
    return total if narrow else total - memory.copies


def setup(
    needs: Needs,
    split: Split,
    checkpointing: str,
    texts: float,
    micro: int | None = 1,
    memory: float = inf,
    server: int = SERVER,
) -> Setup:
    """Return a setup with `texts` sequences per step, and its costs on the most loaded device.

    Args:
        server: devices per server.
        micro: sequences per micro-batch; None: the largest number that fits into `memory` bytes per device.
    """
    stages, share = needs.stages(split.pipeline, split.chunks), split.share_of(texts)
    gathers = Gathers.of(needs.run, split.pipeline)

    def fullest(batch: Batch) -> TrainingMemory:
        memories = (
            stage_memory(needs, stage, split, checkpointing, kept, batch, gathers)
            for at, stage in enumerate(stages)
            for kept in (micro_batches_kept(split, at, batch.number),)
        )
        return max(memories, key=lambda memory: memory.total)

    if micro is None:
        micro = largest_micro(
            share, split.pipeline, lambda n: fullest(Batch(share, n)).total <= memory
        )
    batch = Batch(share, micro)
    sent = [
        exchanged(stage, split, checkpointing, batch, needs.length, gathers, server)
        for stage in stages
    ]
    return Setup(
        split,
        checkpointing,
        batch,
        fullest(batch),
        max(sent, key=lambda sizes: sum(each.total for each in sizes.values())),
        tuple(stage.num_layers for stage in stages),
        (split.pipeline - 1) / (split.chunks * batch.number),
    )


def micro_batches_kept(split: Split, stage: int, number: int) -> float:
    """Return the micro-batches in flight at a stage of 1F1B, interleaved or not (Narayanan et al., 2021, section 2.2).

    Before its first backward pass, a stage of v chunks reads (v - 1) p + 2 (p - 1 - stage) times a chunk.
    """
    pipeline, chunks = split.pipeline, split.chunks
    if chunks == 1:
        return min(pipeline - stage, number)
    return min(((chunks - 1) * pipeline + 2 * (pipeline - 1 - stage) + 1) / chunks, number)


def stage_memory(
    needs: Needs,
    stage: Stage,
    split: Split,
    checkpointing: str,
    micro_batches: float,
    batch: Batch,
    gathers: Gathers,
) -> TrainingMemory:
    """Return the memory per device of a stage with a number of micro-batches in flight."""
    level = DATA.index(split.data)  # each level shards one thing more
    micro, of_texts = batch.micro, batch.micro / split.context
    of_text = needs.activations.of(
        stage.layers, checkpointing, split.tensor, sequence=split.sequence
    )
    # All tensor-parallel devices read all tokens in each branch, and all context-parallel devices all keys.
    tokens = PER_ACTIVATION * needs.length * of_texts
    whole = tokens * stage.branch_width * (1 - 1 / split.tensor) * split.sequence
    keys = tokens * stage.keys_on_a_device(split.tensor) * (split.context - 1)
    of_one = (whole + keys) / stage.num_layers
    # torch's pipelines have a buffer for what each micro-batch brings.
    has_buffers = split.pipeline > 1 and split.scale is not None
    received = tokens * stage.dim * stage.num_neighbours * batch.number * has_buffers
    kept = micro_batches * (of_text.kept * of_texts + (whole + keys) * (checkpointing == "none"))
    return TrainingMemory(
        weights=PER_WEIGHT * held(stage.weights, split, sharded=level >= 3),
        gradients=PER_WEIGHT * held(stage.weights, split, sharded=level >= 2),
        optimizer=held(stage.weights, split, sharded=level >= 1, optimizer=True),
        copies=PER_COPY * _cast(stage, split, checkpointing, gathers),
        gathered=_gathered(stage, split, gathers) + received,
        activations=kept + of_text.again * of_texts + of_one * (checkpointing != "none"),
        logits=min(micro * stage.logits / split.context, WHOLE_LOGITS) / split.tensor,
    )


def _cast(stage: Stage, split: Split, checkpointing: str, gathers: Gathers) -> float:
    """Return the number of weights that autocast copies, and keeps until the backward pass."""
    if split.data != "fsdp" or split.replicas == 1 or gathers.itemsize == PER_WEIGHT:
        return held({k: n for k, n in stage.weights.items() if k.is_cast}, split, sharded=False)
    # Gathered layers and head need no copy. Experts are cast at each call, so in recomputation one layer at a time.
    rest = {k: n for k, n in stage.rest.items() if k.is_cast}
    layers = stage.of_layers if checkpointing == "none" else stage.largest
    own = {k: n for k, n in layers.items() if k.is_cast and not _is_shared(k, split)}
    return held(rest, split, sharded=False) + held(own, split, sharded=False)


def _gathered(stage: Stage, split: Split, gathers: Gathers) -> float:
    """Return the bytes of gathered weights, their gradients, and the gradients' sums in 32 bits.

    With FSDP, the largest of: a layer with its gradient, the next layer, and the sum of the previous one; the head with
    the gradients of one chunk and of all; the gradient of the embedding and its sum. Other weights are gathered in 32
    bits until the backward pass ends. ZeRO-2 buffers gradients.
    """
    every, layer, embedding, head, rest = (
        held({k: n for k, n in weights.items() if _is_shared(k, split)}, split, sharded=False)
        for weights in (stage.of_layers, stage.largest, stage.embedding, stage.head, stage.rest)
    )
    if split.data == "zero2":
        return PER_WEIGHT * (layer + embedding + head + rest)
    if split.data != "fsdp":
        return 0.0
    size = gathers.itemsize
    stays, moves = (every, 0.0) if gathers.times == 1 else (0.0, 2 * layer)
    of_layer = size * moves + (size + PER_WEIGHT) * layer
    ends = max((2 * size + PER_WEIGHT) * head, 2 * PER_WEIGHT * embedding)
    return size * stays + max(of_layer, ends) + 3 * PER_WEIGHT * rest


def held(weights: Weights, split: Split, *, sharded: bool, optimizer: bool = False) -> float:
    """Return the weights of a stage per device, or their optimizer bytes. `sharded` divides by replicas."""
    return sum(
        (kind.optimizer if optimizer else 1)
        * number
        * share(kind.blocks, split.tensor)
        / (split.shards if sharded else split.experts if kind.is_expert else 1)
        for kind, number in weights.items()
    )


def _is_shared(kind: Kind, split: Split) -> bool:
    """True if devices that shard a copy have the same weights of a kind."""
    return split.shards > (split.experts if kind.is_expert else 1)
