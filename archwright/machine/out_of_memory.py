"""Running out of memory, as one line of error."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from archwright.spec.errors import UserError


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn what Python and torch raise where memory runs out into what a user can do.

    Raises:
        UserError: memory ran out in the block.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # a GPU's error is a RuntimeError, too
        # The allocator of the CPU has no error of its own.
        known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not known and not re.search("can't allocate memory|bad_alloc", str(error)):
            raise
        raise UserError(
            "batch_size: a step does not fit into memory; lower batch_size or "
            "model.context_length, raise grad_accum_steps, take machine.activation_checkpointing=selective or full, or "
            "machine.loss=chunked, share it with more processes by scale.shard, or make the model smaller (--tiny)"
        ) from error
