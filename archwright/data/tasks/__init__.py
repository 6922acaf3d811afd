"""Samplers of synthetic tasks."""

from archwright.data.tasks.base import Example, Sampler
from archwright.data.tasks.k_hop import KHopSampler
from archwright.data.tasks.markov import MarkovSampler
from archwright.data.tasks.mqar import MQARSampler
from archwright.data.tasks.needle import NeedleSampler
from archwright.data.tasks.selective_copy import SelectiveCopySampler
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
