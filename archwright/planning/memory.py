"""Lower bound of training memory, and available memory."""

from dataclasses import dataclass
from pathlib import Path

import torch

from archwright.model.model import Decoder
from archwright.spec.objectives import Objective

PER_PARAMETER = 16
"""Bytes: weight, gradient and AdamW's two moments in float32."""
PER_LOGIT = 4
"""Bytes: a logit and its gradient, each in 16 bits; or a logit in float32."""
WHOLE_LOGITS = 2**28
"""Bytes of float32 logits above which a loss is computed in chunks by default."""
PER_ACTIVATION = 2
"""Bytes: a value in 16 bits."""
CGROUP = Path("/sys/fs/cgroup")
"""Folder with a container's limits."""
BEYOND = 2**30
"""Tokens that fill every window."""


@dataclass(frozen=True)
class LeastMemory:
    """Lower bound of the bytes of a training step. Actual use is several times higher."""

    model: int
    """Bytes of weights, gradients and moments."""
    logits: int
    """Bytes of the logits of a micro-batch."""
    activations: int
    """Bytes of the layer inputs of a micro-batch."""

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.model + self.logits + self.activations


def least_memory(model: Decoder, rows: int, *, whole_logits: bool = True) -> LeastMemory:
    """Return the minimum bytes of a step on `rows` full sequences. Meta models are allowed."""
    logits = logit_bytes(model, rows)
    # Streams that enter each layer, or those that leave the last of reversible ones.
    residual = model.spec.residual
    vectors = residual.streams * (1 if residual.is_reversible else model.spec.num_layers)
    tokens = rows * model.spec.context_length
    values = tokens * model.spec.dim * vectors
    return LeastMemory(
        model.num_parameters() * PER_PARAMETER,
        logits if whole_logits else min(logits, WHOLE_LOGITS),
        values * PER_ACTIVATION,
    )


def cache_bytes(model: Decoder, length: int, itemsize: int = 2) -> int:
    """Return the bytes of a cache for `length` tokens, with numbers of `itemsize` bytes."""
    own = (mixer for mixer in model.mixers() if mixer.reads_state_of is None)
    return sum(mixer.state_bytes(length, itemsize) for mixer in own)


def cache_bytes_per_token(model: Decoder) -> int:
    """Return the bytes of a token in a 16-bit cache before any window is full."""
    return cache_bytes(model, 2) - cache_bytes(model, 1)


def cache_bytes_per_later_token(model: Decoder) -> int:
    """Return the bytes of a token in a 16-bit cache after all windows are full."""
    return (cache_bytes(model, 2 * BEYOND) - cache_bytes(model, BEYOND)) // BEYOND


def writes(model: Decoder, objective: Objective) -> bool:
    """True if the model supports a cache and the objective is causal."""
    return model.can_cache and objective.causal


def logit_bytes(model: Decoder, rows: int) -> int:
    """Return the bytes of float32 logits of `rows` full sequences."""
    assert model.spec.vocab_size != "auto"
    tokens = rows * model.spec.context_length
    return tokens * model.spec.vocab_size * PER_LOGIT


def total_memory(device: str) -> int:
    """Return the total bytes of memory of the machine or its GPU."""
    import psutil

    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(psutil.virtual_memory().total)


def free_memory(device: str) -> int:
    """Return the free bytes of memory of the machine or its GPU."""
    import psutil

    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    free = int(psutil.virtual_memory().available)
    try:  # below the limit of a container (cgroup v2)
        most, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    # The kernel evicts cached files when memory is needed.
    return min(free, max(0, most - used + int(stat.get("inactive_file", 0))))
