"""Saving and loading: files on disk, and surviving a crash.

Saves and resumes any torch module with any optimizers, without the trainer. Nothing here unpickles:
tensors are safetensors files, the rest is JSON. Importing this room does not import torch.
"""

from archwright.checkpoint.parts import Stored
from archwright.checkpoint.steps import (
    Snapshot,
    begin,
    check,
    complete,
    drop_old,
    finish,
    give_up,
    latest,
    load,
    names_of,
    parts_of,
    remove_after,
    remove_stale,
    save,
    take,
    take_part,
    use_latest,
    verify,
    write,
    write_begun,
    write_part,
)
from archwright.checkpoint.weights import (
    Opened,
    Values,
    check_model,
    load_model,
    read_metadata,
    read_model,
    sources,
    take_weights,
    write_model,
)
from archwright.files import DamagedError

__all__ = [
    "DamagedError",
    "Opened",
    "Snapshot",
    "Stored",
    "Values",
    "begin",
    "check",
    "check_model",
    "complete",
    "drop_old",
    "finish",
    "give_up",
    "latest",
    "load",
    "load_model",
    "names_of",
    "parts_of",
    "read_metadata",
    "read_model",
    "remove_after",
    "remove_stale",
    "save",
    "sources",
    "take",
    "take_part",
    "take_weights",
    "use_latest",
    "verify",
    "write",
    "write_begun",
    "write_model",
    "write_part",
]
