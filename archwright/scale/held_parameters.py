"""What a process holds of the parameters of a model that is cut up, as probes look at it."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from archwright.scale.shards import ModelShards

Look = Callable[[str, Tensor], None]
"""Sees what this process holds of a gradient, with its name."""


class HeldParameters:
    """What this process holds of a model's parameters, and sums over what all hold.

    Args:
        looks: where what sees gradients is kept.
    """

    def __init__(self, shards: ModelShards, looks: list[Look]) -> None:
        self._shards, self._looks = shards, looks

    def named(self) -> Mapping[str, Tensor]:
        return self._shards.held()

    def numel(self, name: str) -> int:
        return self._shards.shape_of(name).numel()

    def watch_gradients(self, look: Look) -> Callable[[], None]:
        self._looks.append(look)
        return partial(self._looks.remove, look)

    def add_up(self, found: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not found:  # in all processes, as of a step without an update
            return found
        # What several processes hold alike counts once.
        own = [x.double() * (self._shards.block(name).copy == 0) for name, x in found.items()]
        total = torch.stack(own)
        dist.all_reduce(total)
        return dict(zip(found, total, strict=True))
