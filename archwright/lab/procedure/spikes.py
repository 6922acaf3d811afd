"""Spikes: compared runs that end far above the others of their variant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from archwright.lab.procedure.constants import SPIKE, SPIKE_FLOOR

NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


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

    A spike lies more than SPIKE s above its variant's median, s = NORMAL times the median absolute deviation from the
    medians, pooled over variants and corrected for so few losses, at least SPIKE_FLOOR of the variant's median. NaN is
    a failed run, no spike.
    """
    above = {}
    for name, values in losses.items():
        found = np.asarray(values, np.float64)
        number = int(np.isfinite(found).sum())
        if number > 2:
            middle = float(np.nanmedian(found))
            above[name] = (found - middle, middle, number / (number - 0.8))
    if not above:
        return {}
    pooled = np.concatenate([factor * np.abs(x) for x, _, factor in above.values()])
    scale = NORMAL * float(np.nanmedian(pooled))
    places = {
        name: np.flatnonzero(x > SPIKE * max(scale, SPIKE_FLOOR * abs(middle))).tolist()
        for name, (x, middle, _) in above.items()
    }
    return {name: found for name, found in places.items() if found}


def lowered(k: float, ratio: float) -> float:
    """Return the power of half a learning rate, to a hundredth."""
    return round(k - math.log(2) / math.log(ratio), 2)
