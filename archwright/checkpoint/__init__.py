"""Saving and loading: files on disk, and surviving a crash.

Saves and resumes any torch module with any optimizers, without the trainer. Nothing here unpickles:
tensors are safetensors files, the rest is JSON. Importing this room does not import torch.
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
