"""Crash-safe checkpoints of any torch module and optimizers, independent of the trainer.

Nothing is unpickled: tensors are in safetensors files, everything else is JSON. Importing this room does
not import torch.
"""

from archwright.checkpoint.steps import complete as complete
from archwright.checkpoint.steps import latest as latest
from archwright.checkpoint.steps import load as load
from archwright.checkpoint.steps import remove_after as remove_after
from archwright.checkpoint.steps import remove_stale as remove_stale
from archwright.checkpoint.steps import save as save
from archwright.checkpoint.steps import use_latest as use_latest
from archwright.checkpoint.steps import verify as verify
from archwright.checkpoint.weights import Opened as Opened
from archwright.checkpoint.weights import load_model as load_model
from archwright.checkpoint.weights import read_metadata as read_metadata
from archwright.checkpoint.weights import read_model as read_model
from archwright.checkpoint.weights import take_weights as take_weights
from archwright.checkpoint.weights import write_model as write_model
from archwright.files import DamagedError as DamagedError
