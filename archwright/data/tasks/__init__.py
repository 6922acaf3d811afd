"""Samplers of synthetic tasks."""

from archwright.data.tasks.base import Example, Sampler
from archwright.data.tasks.markov import MarkovSampler
from archwright.data.tasks.recall import (
    KHopSampler,
    MQARSampler,
    NeedleSampler,
    SelectiveCopySampler,
)
from archwright.parts.registry import Registry
from archwright.spec.tasks import MQAR, KHop, Markov, Needle, SelectiveCopy, Task

__all__ = ["TASKS", "Example", "Sampler"]

TASKS = Registry(
    Task,
    "(spec, length)",
    Sampler,
    {
        MQAR: MQARSampler,
        Markov: MarkovSampler,
        Needle: NeedleSampler,
        SelectiveCopy: SelectiveCopySampler,
        KHop: KHopSampler,
    },
)
"""Classes of `Sampler`, created from (spec, length), by task."""
