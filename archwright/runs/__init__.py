"""Run folders: the files of a training run, and the only interface through which rooms share runs.

Reading a run folder does not import torch.
"""

from archwright.runs.folder import RUNS, RunFolder, find
from archwright.runs.lock import Holder

__all__ = ["RUNS", "Holder", "RunFolder", "find"]
