"""Tensor parallelism of parts: the sizes that ranks split, such as the number of heads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import nn


@dataclass(frozen=True)
class TensorParallel:
    """Sizes of a part that ranks split; the results of all ranks add up to the part's result.

    `Linear.cut` defines the split of each map: by columns if it reads x, by rows if it writes into the residual stream.
    All tensors except split maps and `per_head` are replicated.

    Shoeybi et al., 2019, Megatron-LM, section 3.
    """

    sizes: Mapping[str, int]
    """Sizes to split by their name in the spec, such as `num_heads`. An attribute of the part with this name contains
    the number on one rank."""
    per_head: Mapping[str, int] = field(default_factory=dict)
    """Axis of heads by the name of a parameter or buffer outside of `Linear` maps."""
    splits_values: bool = False
    """True if values that cross layers are split like the heads, in all layers that exchange them."""


@runtime_checkable
class Parallel(Protocol):
    """Part with tensor parallelism; None if this configuration does not support it."""

    @property
    def tensor_parallel(self) -> TensorParallel | None: ...


def parallel_of(part: nn.Module) -> TensorParallel | None:
    """Return the tensor parallelism of a part; None if it has none."""
    return part.tensor_parallel if isinstance(part, Parallel) else None
