"""One-line errors for exhausted memory."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from archwright.spec.errors import UserError


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Replace exceptions of exhausted memory by one with remedies.

    Raises:
        UserError: Memory is exhausted in the block.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # includes errors of GPUs
        # The CPU allocator raises plain RuntimeErrors.
        is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not is_memory and not re.search("can't allocate memory|bad_alloc", str(error)):
            raise
        raise UserError(
            "batch_size: a step does not fit into memory; lower batch_size or "
            "model.context_length, raise grad_accum_steps, take machine.activation_checkpointing=selective or full, or "
            "machine.loss=chunked, share it with more processes by scale.shard, or make the model smaller (--tiny)"
        ) from error
