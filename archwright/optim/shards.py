"""Optimizers that look at matrices as a whole, where processes hold parts of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archwright.optim.eager import EagerOptimizer


class Shards:
    """What an optimizer holds of parameters that are cut up over processes; here, all of each.

    Attributes:
        num_batches: how many batches of whole parameters are worked on at once, each by another process.
    """

    num_batches = 1

    def mapped(
        self,
        parameters: Sequence[Tensor],
        own: Sequence[Tensor],
        work: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> list[Tensor]:
        """Apply `work` to whole tensors of one shape, such as momenta of `parameters`; return what the optimizer holds
        of the results.

        Args:
            own: what it holds of the tensors.
            work: takes and gives [number, *shape] in `dtype`, each tensor by itself.
        """
        whole = own[0].new_empty(len(own), *own[0].shape, dtype=dtype)
        for row, tensor in zip(whole, own, strict=True):
            row.copy_(tensor)
        return [*work(whole)]

    def shape(self, parameter: Tensor) -> torch.Size:
        """Return the shape of the whole parameter."""
        return parameter.shape


class WholeMatrices(EagerOptimizer):
    """An optimizer whose update of a number depends on more than that number's gradient and state.

    Attributes:
        shards: what it holds of each parameter, by which it asks for the whole.
    """

    shards = Shards()
