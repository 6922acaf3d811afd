"""Spikes: compared runs that end far above the others of their variant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from archwright.lab.procedure.constants import SPIKE, SPIKE_FLOOR

WITHIN = 0.6827
"""Share of a normal distribution within one standard deviation."""


@dataclass(frozen=True)
class Spikes:
    """Compared runs that ended far above the others of their variant."""

    k: float
    """Power of their learning rate."""
    seeds: tuple[int, ...]
    """Seeds that spiked."""
    compared: int
    """Number of seeds compared at that learning rate."""
    halved: bool
    """True if all seeds of the variant were then trained again at half of it."""


def spiked(losses: Mapping[str, Sequence[float]]) -> dict[str, list[int]]:
    """Return the indices of spikes among the losses of each variant with any.

    A spike lies more than SPIKE (1 + 3 / f) s above its variant's median. s is the quantile WITHIN of the absolute
    deviations from the medians, times n / (n - 0.8) for the n runs of a variant, pooled over variants, but at least
    SPIKE_FLOOR of the loss. It has f degrees of freedom, and up to 30 % of spikes hardly change it. With normal losses
    at most 0.2 % of looks find a spike. NaN is a failed run, no spike.
    """
    finite = {n: [x for x in values if not math.isnan(x)] for n, values in losses.items()}
    medians = {name: median(values) for name, values in finite.items() if len(values) > 2}
    if not medians:
        return {}
    deviations = [
        len(finite[name]) / (len(finite[name]) - 0.8) * abs(x - middle)
        for name, middle in medians.items()
        for x in finite[name]
    ]
    scale, freedom = float(np.quantile(deviations, WITHIN)), len(deviations) - len(medians)
    spikes = {}
    for name, middle in medians.items():
        limit = SPIKE * (1 + 3 / freedom) * max(scale, SPIKE_FLOOR * abs(middle))
        if indices := [i for i, x in enumerate(losses[name]) if x > middle + limit]:
            spikes[name] = indices
    return spikes


def lowered(k: float, ratio: float) -> float:
    """Return the power of half a learning rate, to a hundredth."""
    return round(k - math.log(2) / math.log(ratio), 2)
