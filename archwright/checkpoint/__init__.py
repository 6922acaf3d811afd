"""Crash-safe checkpoints of any torch module and optimizers, independent of the trainer.

Nothing is unpickled: tensors are in safetensors files, everything else is JSON. Importing this room does
not import torch.
"""

from archwright.checkpoint.steps import (
    complete,
    latest,
    load,
    remove_after,
    remove_stale,
    save,
    use_latest,
    verify,
)
from archwright.checkpoint.weights import (
    Opened,
    load_model,
    read_metadata,
    read_model,
    take_weights,
    write_model,
)
from archwright.files import DamagedError

__all__ = [
    "DamagedError",
    "Opened",
    "complete",
    "latest",
    "load",
    "load_model",
    "read_metadata",
    "read_model",
    "remove_after",
    "remove_stale",
    "save",
    "take_weights",
    "use_latest",
    "verify",
    "write_model",
]
