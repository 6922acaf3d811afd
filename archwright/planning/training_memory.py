"""Bytes on each device while a model is trained, by how it is split and what is computed again."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from archwright.model.language_model import LanguageModel
from archwright.planning.activations import CHECKPOINTING, on_a_device
from archwright.planning.exchange import exchanged
from archwright.planning.memory import PER_ACTIVATION, WHOLE_LOGITS
from archwright.planning.split import DATA, Split
from archwright.planning.splits import share, splits
from archwright.planning.stages import PER_WEIGHT, Needs, Stage, Weights
from archwright.spec.run_spec import RunSpec

PER_GATHERED = 2 * 2 + 4
"""Bytes for each weight of a layer that FSDP gathers: in 16 bits, as well as the next one, and its gradient."""
USABLE = 0.9
"""Share of a device's memory that a plan fills; the rest is for kernels and what is lost between tensors."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one device; those of weights, gradients and optimizer are counted, others estimated."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    """Of what other devices have and is held for a while: layers, gradients, and keys and values."""
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class Setup:
    """A way to train, and what it takes on the device that takes most."""

    split: Split
    checkpointing: str
    memory: TrainingMemory
    exchange: dict[str, float]
    """Bytes that a device sends in a step, by what they are exchanged for."""
    layers: tuple[int, ...]
    """Of each stage."""
    bubble: float
    """Time that a device waits for other stages, over the time that it computes: (p - 1) / m with p stages and m texts
    one after another (Narayanan et al., 2021, section 2.2.1)."""


def split_one(run: RunSpec, model: LanguageModel, checkpointing: str) -> float:
    """Return the bytes of training on one device, with a text of the context at a time."""
    needs = Needs(run, model, model.spec.context_length)
    return setup(needs, Split(1), checkpointing, texts=1.0).memory.total


def setups(needs: Needs, devices: int, texts: float) -> Iterator[Setup]:
    """Yield ways to train on steps of `texts` texts, in the order of `splits`, each with least computed again first."""
    for split in splits(devices, needs.degrees):
        yield from setups_of(needs, split, texts)


def setups_of(needs: Needs, split: Split, texts: float) -> Iterator[Setup]:
    """Yield the ways to train with a split, by what is computed again."""
    for checkpointing in CHECKPOINTING:
        yield setup(needs, split, checkpointing, texts)


def setup(needs: Needs, split: Split, checkpointing: str, texts: float) -> Setup:
    """Return what a way to train takes on the device that takes most."""
    stages = needs.stages(split.pipeline)
    passes = max(1.0, texts / split.ranks)
    memories = [
        stage_memory(needs, stage, split, checkpointing, texts_kept(split.pipeline, at, passes))
        for at, stage in enumerate(stages)
    ]
    sent = [exchanged(stage, split, checkpointing, passes, needs.length) for stage in stages]
    return Setup(
        split,
        checkpointing,
        max(memories, key=lambda memory: memory.total),
        max(sent, key=lambda sizes: sum(sizes.values())),
        tuple(stage.num_layers for stage in stages),
        (split.pipeline - 1) / passes,
    )


def texts_kept(pipeline: int, stage: int, passes: float) -> int:
    """Return how many texts a stage keeps at once, which come one forward, one backward (Narayanan et al., 2021,
    section 2.2.1): the first as many as there are stages, the last one."""
    return max(1, min(pipeline - stage, int(passes)))


def stage_memory(
    needs: Needs, stage: Stage, split: Split, checkpointing: str, texts: int
) -> TrainingMemory:
    """Return the bytes on one device of a stage that keeps `texts` texts at once."""
    level = DATA.index(split.data)  # each level shards one thing more
    tokens, tensor = needs.length / split.context, split.tensor
    kept, again = (
        on_a_device(values[checkpointing], tensor, sequence=split.sequence)
        for values in (stage.kept, stage.again)
    )
    return TrainingMemory(
        weights=PER_WEIGHT * held(stage.weights, split, sharded=level >= 3),
        gradients=PER_WEIGHT * held(stage.weights, split, sharded=level >= 2),
        optimizer=held(stage.weights, split, sharded=level >= 1, optimizer=True),
        gathered=_gathered(needs, stage, split),
        activations=PER_ACTIVATION * tokens * (texts * kept + again),
        logits=min(stage.logits / split.context, WHOLE_LOGITS) / tensor,
    )


def held(weights: Weights, split: Split, *, sharded: bool, optimizer: bool = False) -> float:
    """Return how many weights a device has of a stage's, or how many bytes of the optimizer; `sharded`: those that
    devices with the same part of the model share out once more."""
    return sum(
        (kind.optimizer if optimizer else 1)
        * number
        * share(kind.blocks, split.tensor)
        / (split.replicas if sharded else split.experts if kind.is_expert else 1)
        for kind, number in weights.items()
    )


def _gathered(needs: Needs, stage: Stage, split: Split) -> float:
    """Return the bytes of what a device holds for a while of what others have."""
    per_weight = {"fsdp": PER_GATHERED, "zero2": PER_WEIGHT}.get(split.data, 0)
    shared = {  # experts of which a device has all that it needs are not gathered
        kind: number
        for kind, number in stage.largest.items()
        if split.replicas > (split.experts if kind.is_expert else 1)
    }
    found = per_weight * held(shared, split, sharded=False)
    if split.context > 1:
        keys = on_a_device(stage.most_keys, split.tensor, sequence=False)
        found += PER_ACTIVATION * needs.length * (1 - 1 / split.context) * keys
    return found
