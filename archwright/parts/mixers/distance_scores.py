"""Biases of attention scores that depend on the query token and the distance to the key."""

from dataclasses import dataclass

from torch import Tensor, nn

from archwright.parts.kernels.scores import Bias
from archwright.parts.registry import Registry
from archwright.spec import attention as spec


@dataclass(frozen=True)
class Together:
    """Sum of two biases of the same scores."""

    first: Bias
    second: Bias

    def block(self, first: int, stop: int, key_first: int, key_stop: int) -> Tensor:
        bounds = (first, stop, key_first, key_stop)
        return self.first.block(*bounds) + self.second.block(*bounds)


DISTANCE_SCORES = Registry(
    spec.DistanceScores,
    "(spec, dim, num_heads, two_way=...)",
    nn.Module,
    {},
)
"""Modules (x, view) -> bias (see `kernels/scores.py`), with the mixer's input x and its mask."""
