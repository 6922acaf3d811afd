"""Bytes that a device sends in a step of training, by what they are exchanged for."""

from archwright.planning.memory import PER_ACTIVATION
from archwright.planning.micro_batch import Batch
from archwright.planning.split import Split
from archwright.planning.splits import share
from archwright.planning.stages import PER_WEIGHT, Stage

PER_WEIGHT_SENT = 2
"""Bytes of a weight that FSDP gathers."""


def exchanged(
    stage: Stage, split: Split, checkpointing: str, batch: Batch, length: int
) -> dict[str, float]:
    """Return the bytes that a device of a stage sends in a step, for texts of `length` tokens.

    Each of n devices that exchange what makes N bytes in all sends N (n - 1) / n to gather it, and as much to add it up
    and keep a share (Rajbhandari et al., 2019, section 7); adding up what all keep takes both.

        data      DDP and ZeRO-1 add gradients up once a step, 4 bytes each, and give the sums or the new weights back;
                  ZeRO-2 adds them up behind each micro-batch, as it keeps sharded sums alone (Rajbhandari et al.,
                  2019, section 5.2), and gives the new weights back once; FSDP, too, adds them up behind each
                  micro-batch, and gathers weights in 16 bits before each forward and each backward pass
        tensor    for each branch two sums of s h, of activations and of their gradients (Shoeybi et al., 2019, figure
                  4); with sequence parallelism as many bytes, and one gathering more (Korthikanti et al., 2022,
                  section 4.2.2)
        pipeline  s h to a neighbour, and as much back (Narayanan et al., 2021, section 3.2)
        context   keys and values of the others, in both passes, and their gradients
        experts   each token to its experts and back, in both passes

    What layers exchange is exchanged again where they are computed again, be it in part.
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
    # Gradients that are kept in shards have no whole to be summed in, so that those of each pass are added up at once.
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
    """Return the share of what devices exchange that each sends."""
    return 1 - 1 / devices
