"""Training memory per device, by parallelism and activation checkpointing."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from archwright.model.model import Decoder
from archwright.planning.activations import CHECKPOINTING
from archwright.planning.exchange import exchanged
from archwright.planning.memory import PER_ACTIVATION, WHOLE_LOGITS
from archwright.planning.micro_batch import Batch, largest_micro, share_of
from archwright.planning.split import DATA, Split
from archwright.planning.splits import share
from archwright.planning.stages import PER_WEIGHT, Kind, Needs, Stage, Weights
from archwright.spec.run_spec import RunSpec

PER_COPY = 2
"""Bytes of a weight in 16 bits."""
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


def setups_of(
    needs: Needs, split: Split, texts: float, memory: float, micro: int | None = None
) -> Iterator[Setup]:
    """Yield setups of a split with `texts` sequences per step, least recomputation first.

    Args:
        memory: usable bytes per device.
        micro: sequences per micro-batch; None: the largest number that fits.
    """
    for checkpointing in CHECKPOINTING:
        number = micro or _largest_micro(needs, split, checkpointing, texts, memory)
        yield setup(needs, split, checkpointing, texts, number)


def setup(needs: Needs, split: Split, checkpointing: str, texts: float, micro: int = 1) -> Setup:
    """Return a setup with micro-batches of `micro` sequences and its costs on the most loaded device."""
    stages = needs.stages(split.pipeline)
    batch = Batch(share_of(texts, split), micro)
    sent = [exchanged(stage, split, checkpointing, batch, needs.length) for stage in stages]
    return Setup(
        split,
        checkpointing,
        batch,
        _fullest(needs, split, checkpointing, batch),
        max(sent, key=lambda sizes: sum(sizes.values())),
        tuple(stage.num_layers for stage in stages),
        (split.pipeline - 1) / batch.number,
    )


def _largest_micro(
    needs: Needs, split: Split, checkpointing: str, texts: float, memory: float
) -> int:
    share = share_of(texts, split)

    def fits(micro: int) -> bool:
        return _fullest(needs, split, checkpointing, Batch(share, micro)).total <= memory

    return largest_micro(share, split.pipeline, fits)


def _fullest(needs: Needs, split: Split, checkpointing: str, batch: Batch) -> TrainingMemory:
    """Return the memory per device of the stage with most."""
    memories = [
        stage_memory(
            needs,
            stage,
            split,
            checkpointing,
            micro_batches_kept(split.pipeline, at, batch.number),
            batch.micro,
        )
        for at, stage in enumerate(needs.stages(split.pipeline))
    ]
    return max(memories, key=lambda memory: memory.total)


def micro_batches_kept(pipeline: int, stage: int, number: int) -> int:
    """Return the micro-batches in flight at a stage of 1F1B (Narayanan et al., 2021, section 2.2.1)."""
    return min(pipeline - stage, number)


def stage_memory(
    needs: Needs, stage: Stage, split: Split, checkpointing: str, micro_batches: int, micro: int
) -> TrainingMemory:
    """Return the memory per device of a stage with micro-batches of `micro` sequences in flight."""
    level = DATA.index(split.data)  # each level shards one thing more
    tokens, tensor = micro * needs.length / split.context, split.tensor
    of_text = needs.activations.of(stage.layers, checkpointing, tensor, sequence=split.sequence)
    return TrainingMemory(
        weights=PER_WEIGHT * held(stage.weights, split, sharded=level >= 3),
        gradients=PER_WEIGHT * held(stage.weights, split, sharded=level >= 2),
        optimizer=held(stage.weights, split, sharded=level >= 1, optimizer=True),
        copies=_copies(stage, split),
        gathered=_gathered(stage, split, tokens),
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


def _copies(stage: Stage, split: Split) -> float:
    """Return the bytes of 16-bit copies of weights. FSDP copies only the current and the next layer."""
    of_layers = split.data == "fsdp" and split.replicas > 1
    weights, number = (stage.largest, 2) if of_layers else (stage.weights, 1)
    # `_gathered` counts gathered copies.
    cast = {
        kind: count
        for kind, count in weights.items()
        if kind.is_cast and not (of_layers and _is_shared(kind, split))
    }
    return number * PER_COPY * held(cast, split, sharded=False)


def _gathered(stage: Stage, split: Split, tokens: float) -> float:
    """Return the bytes of temporary data from other devices."""
    per_weight, per_weight_around = {
        "fsdp": (PER_GATHERED, PER_GATHERED_AROUND),
        "zero2": (PER_WEIGHT, PER_WEIGHT),
    }.get(split.data, (0, 0))
    layer, around = (
        held({k: n for k, n in weights.items() if _is_shared(k, split)}, split, sharded=False)
        for weights in (stage.largest, stage.around)
    )
    keys = stage.most_keys_on_a_device(split.tensor)
    of_texts = PER_ACTIVATION * tokens * (split.context - 1) * keys
    return per_weight * layer + per_weight_around * around + of_texts


def _is_shared(kind: Kind, split: Split) -> bool:
    """True if devices with the same part of the model have the same weights of a kind."""
    return split.replicas > (split.experts if kind.is_expert else 1)
