"""Training memory per device, and bytes sent, by parallelism and activation checkpointing."""

from dataclasses import asdict, dataclass
from math import inf

from archwright.model.model import Decoder
from archwright.planning.memory import PER_ACTIVATION, WHOLE_LOGITS
from archwright.planning.split import DATA, Batch, Split, largest_micro, share
from archwright.planning.stages import PER_WEIGHT, Kind, Needs, Stage, Weights
from archwright.spec.run_spec import RunSpec

PER_COPY = 2
"""Bytes of a weight in 16 bits, as FSDP gathers it."""
PER_GATHERED = 2 * PER_COPY + PER_WEIGHT
"""Bytes per weight of a layer gathered by FSDP: this layer and the next in 16 bits, and the gradient."""
PER_GATHERED_AROUND = PER_COPY + PER_WEIGHT
"""Bytes per weight outside layers, which FSDP holds with its gradient until the backward pass ends."""
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
    exchange: dict[str, float]
    """Bytes sent per device and step, by kind of parallelism."""
    layers: tuple[int, ...]
    """Number of layers of each stage."""
    bubble: float
    """Idle time over compute time of a device: (p - 1) / m with p stages and m micro-batches (Narayanan et al., 2021,
    section 2.2.1)."""


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
) -> Setup:
    """Return a setup with `texts` sequences per step, and its costs on the most loaded device.

    Args:
        micro: sequences per micro-batch; None: the largest number that fits into `memory` bytes per device.
    """
    stages, share = needs.stages(split.pipeline), split.share_of(texts)

    def fullest(batch: Batch) -> TrainingMemory:
        memories = (
            stage_memory(needs, stage, split, checkpointing, kept, batch.micro)
            for at, stage in enumerate(stages)
            for kept in (micro_batches_kept(split.pipeline, at, batch.number),)
        )
        return max(memories, key=lambda memory: memory.total)

    if micro is None:
        micro = largest_micro(
            share, split.pipeline, lambda n: fullest(Batch(share, n)).total <= memory
        )
    batch = Batch(share, micro)
    sent = [exchanged(stage, split, checkpointing, batch, needs.length) for stage in stages]
    return Setup(
        split,
        checkpointing,
        batch,
        fullest(batch),
        max(sent, key=lambda sizes: sum(sizes.values())),
        tuple(stage.num_layers for stage in stages),
        (split.pipeline - 1) / batch.number,
    )


def micro_batches_kept(pipeline: int, stage: int, number: int) -> int:
    """Return the micro-batches in flight at a stage of 1F1B (Narayanan et al., 2021, section 2.2.1)."""
    return min(pipeline - stage, number)


def stage_memory(
    needs: Needs, stage: Stage, split: Split, checkpointing: str, micro_batches: int, micro: int
) -> TrainingMemory:
    """Return the memory per device of a stage with micro-batches of `micro` sequences in flight."""
    level = DATA.index(split.data)  # each level shards one thing more
    tensor = split.tensor
    of_text = needs.activations.of(stage.layers, checkpointing, tensor, sequence=split.sequence)
    # FSDP casts only the current and the next layer, and gathers the weights that devices share in 16 bits.
    of_layers = split.data == "fsdp" and split.replicas > 1
    cast = {
        kind: number
        for kind, number in (stage.largest if of_layers else stage.weights).items()
        if kind.is_cast and not (of_layers and _is_shared(kind, split))
    }
    per_weight, per_weight_around = {
        "fsdp": (PER_GATHERED, PER_GATHERED_AROUND),
        "zero2": (PER_WEIGHT, PER_WEIGHT),
    }.get(split.data, (0, 0))
    layer, around = (
        held({k: n for k, n in weights.items() if _is_shared(k, split)}, split, sharded=False)
        for weights in (stage.largest, stage.around)
    )
    tokens, keys = micro * needs.length / split.context, stage.most_keys_on_a_device(tensor)
    of_texts = PER_ACTIVATION * tokens * (split.context - 1) * keys
    return TrainingMemory(
        weights=PER_WEIGHT * held(stage.weights, split, sharded=level >= 3),
        gradients=PER_WEIGHT * held(stage.weights, split, sharded=level >= 2),
        optimizer=held(stage.weights, split, sharded=level >= 1, optimizer=True),
        copies=(2 if of_layers else 1) * PER_COPY * held(cast, split, sharded=False),
        gathered=per_weight * layer + per_weight_around * around + of_texts,
        activations=(micro_batches * of_text.kept + of_text.again) * micro / split.context,
        logits=min(micro * stage.logits / split.context, WHOLE_LOGITS) / tensor,
    )


def held(weights: Weights, split: Split, *, sharded: bool, optimizer: bool = False) -> float:
    """Return the weights of a stage per device, or their optimizer bytes. `sharded` divides by replicas."""
    return sum(
        (kind.optimizer if optimizer else 1)
        * number
        * share(kind.blocks, split.tensor)
        / (split.replicas if sharded else split.experts if kind.is_expert else 1)
        for kind, number in weights.items()
    )


def _is_shared(kind: Kind, split: Split) -> bool:
    """True if devices with the same part of the model have the same weights of a kind."""
    return split.replicas > (split.experts if kind.is_expert else 1)


def exchanged(
    stage: Stage, split: Split, checkpointing: str, batch: Batch, length: int
) -> dict[str, float]:
    """Return bytes sent per step by one device of a pipeline stage.

    On n devices with N bytes in total, an all-gather or a reduce-scatter sends N (n - 1) / n per device, and an
    all-reduce sends twice this amount (Rajbhandari et al., 2019, section 7). Below, s is `length` and h the width.

        data      DDP: one all-reduce of float32 gradients per step. ZeRO-1: the same bytes for a reduce-scatter of
                  gradients and an all-gather of weights. ZeRO-2: a reduce-scatter per micro-batch, since only shards
                  of sums are stored (Rajbhandari et al., 2019, section 5.2), and an all-gather per step. FSDP: a
                  reduce-scatter per micro-batch, and all-gathers of 16-bit weights before each pass
        tensor    two all-reduces of s h per branch, for activations and gradients (Shoeybi et al., 2019, figure 4).
                  Sequence parallelism adds one all-gather (Korthikanti et al., 2022, section 4.2.2)
        pipeline  s h to each neighbour, activations forward and gradients back (Narayanan et al., 2021, section 3.2)
        context   keys and values of other devices in both passes, and their gradients
        experts   tokens to experts and back in both passes

    Recomputation, full or selective, repeats the communication of the layers.
    """
    tokens, again = length / split.context, checkpointing != "none"
    stream = tokens / (split.tensor if split.sequence else 1)
    per_token = batch.texts * PER_ACTIVATION
    keys = stage.keys_on_a_device(split.tensor)
    # Sharded gradients have no full buffer to accumulate in, so each pass reduces its gradients.
    reduced = batch.number if split.data in ("zero2", "fsdp") else 1
    gathered = 2 * PER_COPY * batch.number if split.data == "fsdp" else PER_WEIGHT
    weights = sum(
        number * share(kind.blocks, split.tensor) / devices * _to_others(split.replicas // devices)
        for kind, number in stage.weights.items()
        for devices in (split.experts if kind.is_expert else 1,)
    )
    summed = stage.branch_width * ((5 if split.sequence else 4) + 2 * again)
    routed = stage.sent_to_experts * (4 + 2 * again)
    sizes = {
        "data": (PER_WEIGHT * reduced + gathered) * weights,
        "tensor": per_token * tokens * summed * _to_others(split.tensor),
        "pipeline": per_token * stream * stage.dim * stage.num_neighbours,
        "context": per_token * length * keys * (3 + again) * _to_others(split.context),
        "experts": per_token * stream * routed * _to_others(split.experts),
    }
    return {name: size for name, size in sizes.items() if size}


def _to_others(devices: int) -> float:
    """Return the share of the bytes that one device sends."""
    return 1 - 1 / devices
