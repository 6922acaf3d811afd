"""Checkpoints of the ecosystem, in and out."""

from archwright.hf.loading import Loaded as Loaded
from archwright.hf.loading import load as load
from archwright.hf.saving import save as save
