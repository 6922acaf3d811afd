"""Run folders: files of training runs, and the interface between rooms.

Reading a run folder does not import torch.
"""

from archwright.runs.folder import RUNS, RunFolder, find
from archwright.runs.lock import Holder

__all__ = ["RUNS", "Holder", "RunFolder", "find"]
