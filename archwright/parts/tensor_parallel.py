"""What a part says of itself, so that processes may share it by its heads or its columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn


@dataclass(frozen=True)
class TensorParallel:
    """What processes may share of a part: each computes with its share, and their results add up to the part's.

    Maps say how they are cut (`Linear.cut`): those that read x by columns, those that write into the stream by rows.
    All that is neither a cut map's nor `per_head` is whole in each process.

    Shoeybi et al., 2019, Megatron-LM, section 3.
    """

    sizes: Mapping[str, int]
    """What is shared out, by its name in the spec: heads, hidden values. Where the part has an attribute of that name,
    it is the number in a process."""
    per_head: Mapping[str, int] = field(default_factory=dict)
    """Parameters and buffers that are no map's and have numbers of their own for each head, with the axis of heads."""


@runtime_checkable
class Parallel(Protocol):
    """A part that says what processes may share of it; None: nothing."""

    @property
    def tensor_parallel(self) -> TensorParallel | None: ...


def parallel_of(part: nn.Module) -> TensorParallel | None:
    """Return what a part says of itself; None where it says nothing."""
    return part.tensor_parallel if isinstance(part, Parallel) else None
