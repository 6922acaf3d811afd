"""Micro-batches of a training step."""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from archwright.planning.split import Split

PER_STAGE = 4
"""Micro-batches per pipeline stage at which the bubble is negligible (Huang et al., 2019, section 2.3)."""


@dataclass(frozen=True)
class Batch:
    """Sequences per group of devices and step, with gradients accumulated over micro-batches."""

    texts: float
    micro: int = 1
    """Sequences per micro-batch; the last micro-batch may have fewer."""

    @property
    def number(self) -> int:
        """Number of micro-batches."""
        return math.ceil(self.texts / self.micro)


def share_of(texts: float, split: Split) -> float:
    """Return the sequences per group of devices and step, at least 1."""
    return max(1.0, texts / split.ranks)


def largest_micro(share: float, pipeline: int, fits: Callable[[int], bool]) -> int:
    """Return the largest power of two that fits, at most `share`, or 1.

    A pipeline gets at least `PER_STAGE` micro-batches per stage if `share` is large enough."""
    most = share if pipeline == 1 else share / (PER_STAGE * pipeline)
    powers = range(1, math.floor(math.log2(most)) + 1)
    return 1 << bisect_left(powers, True, key=lambda power: not fits(2**power))
