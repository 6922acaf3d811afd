"""The run folder: all that is kept of a training, and the only way in which rooms hand it on.

Reading a run folder does not import torch.
"""

from archwright.runs.folder import RUNS, RunFolder, find
from archwright.runs.lock import Holder

__all__ = ["RUNS", "Holder", "RunFolder", "find"]
