"""The texts that go through a model at once, of those that devices read in a step of training."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from archwright.planning.split import Split

PER_STAGE = 4
"""Micro-batches for each stage of a pipeline from which on waiting is negligible (Huang et al., 2019, section 2.3)."""


@dataclass(frozen=True)
class Batch:
    """What a group of devices reads in a step: texts, a micro-batch at a time, whose gradients are added up."""

    texts: float
    micro: int = 1
    """Texts of a micro-batch; the last one may have fewer."""

    @property
    def number(self) -> int:
        """How many micro-batches there are."""
        return math.ceil(self.texts / self.micro)


def share_of(texts: float, split: Split) -> float:
    """Return the texts of a step that each group of devices reads, or one where there are more groups."""
    return max(1.0, texts / split.ranks)


def largest_micro(share: float, pipeline: int, fits: Callable[[int], bool]) -> int:
    """Return the largest micro-batch that fits, a power of two of at most `share` texts; 1 where none does. With a
    pipeline there are at least `PER_STAGE` for each stage, or as many as there are texts."""
    most = share if pipeline == 1 else share / (PER_STAGE * pipeline)
    powers = range(1, math.floor(math.log2(most)) + 1)
    return 1 << bisect_left(powers, True, key=lambda power: not fits(2**power))
