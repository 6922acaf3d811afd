"""Optimizers that look at matrices as a whole, where processes hold parts of them."""

import torch
from torch import Tensor

from archwright.optim.eager import EagerOptimizer


class Shards:
    """What an optimizer holds of parameters that are cut up over processes; here, all of each."""

    def whole(self, parameter: Tensor, own: Tensor) -> Tensor:
        """Return all of a tensor of which the optimizer holds `own`, as of `parameter`."""
        return own

    def own(self, parameter: Tensor, whole: Tensor) -> Tensor:
        """Return of a whole tensor what the optimizer holds."""
        return whole

    def shape(self, parameter: Tensor) -> torch.Size:
        """Return the shape of the whole parameter."""
        return parameter.shape


class WholeMatrices(EagerOptimizer):
    """An optimizer whose update of a number depends on more than that number's gradient and state.

    Attributes:
        shards: what it holds of each parameter, by which it asks for the whole.
    """

    shards = Shards()
