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
    """Power of the learning rate they ran at."""
    seeds: tuple[int, ...]
    """Seeds that spiked."""
    compared: int
    """Seeds compared at that learning rate."""
    halved: bool
    """Whether all seeds of the variant were then trained again at half of it."""


def spiked(losses: Mapping[str, Sequence[float]]) -> dict[str, list[int]]:
    """Return the places of the spikes among the losses of each variant; variants without spikes are left out.

    A spike lies more than SPIKE (1 + 3 / f) s above its variant's median. s is the quantile WITHIN of the absolute
    deviations from the medians, times n / (n - 0.8) for the n runs of a variant, pooled over variants, but at least
    SPIKE_FLOOR of the loss. It has f degrees of freedom, and up to 30 % of spikes hardly change it. With normal losses
    at most 0.2 % of looks find a spike. NaN is a failed run, no spike.
    """
    known = {n: [x for x in values if not math.isnan(x)] for n, values in losses.items()}
    middles = {name: median(values) for name, values in known.items() if len(values) > 2}
    if not middles:
        return {}
    away = [
        len(known[name]) / (len(known[name]) - 0.8) * abs(x - middle)
        for name, middle in middles.items()
        for x in known[name]
    ]
    scale, freedom = float(np.quantile(away, WITHIN)), len(away) - len(middles)
    found = {}
    for name, middle in middles.items():
        limit = SPIKE * (1 + 3 / freedom) * max(scale, SPIKE_FLOOR * abs(middle))
        if places := [i for i, x in enumerate(losses[name]) if x > middle + limit]:
            found[name] = places
    return found


def lowered(k: float, ratio: float) -> float:
    """Return the power of half a learning rate, to a hundredth."""
    return round(k - math.log(2) / math.log(ratio), 2)
