"""Bytes sent per device in a training step, by kind of parallelism."""

from archwright.planning.memory import PER_ACTIVATION
from archwright.planning.micro_batch import Batch
from archwright.planning.split import Split
from archwright.planning.splits import share
from archwright.planning.stages import PER_WEIGHT, Stage

PER_WEIGHT_SENT = 2
"""Bytes per weight gathered by FSDP."""


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
    sizes = {
        "data": _data(stage, split, batch.number),
        "tensor": per_token
        * tokens
        * stage.branch_width
        * ((5 if split.sequence else 4) + 2 * again)
        * _to_others(split.tensor),
        "pipeline": per_token * stream * stage.dim * stage.num_neighbours,
        "context": per_token * length * keys * (3 + again) * _to_others(split.context),
        "experts": per_token
        * stream
        * stage.sent_to_experts
        * (4 + 2 * again)
        * _to_others(split.experts),
    }
    return {name: size for name, size in sizes.items() if size}


def _data(stage: Stage, split: Split, passes: int) -> float:
    # Sharded gradients have no full buffer to accumulate in, so each pass reduces its gradients.
    gradients = PER_WEIGHT * (passes if split.data in ("zero2", "fsdp") else 1)
    weights = 2 * PER_WEIGHT_SENT * passes if split.data == "fsdp" else PER_WEIGHT
    per_weight = gradients + weights
    return sum(
        per_weight
        * number
        * share(kind.blocks, split.tensor)
        / devices
        * _to_others(split.replicas // devices)
        for kind, number in stage.weights.items()
        for devices in (split.experts if kind.is_expert else 1,)
    )


def _to_others(devices: int) -> float:
    """Return the share of the bytes that one device sends."""
    return 1 - 1 / devices
