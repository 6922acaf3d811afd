"""Optimizers that need complete matrices, for parameters that are sharded across ranks."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archwright.optim.eager import EagerOptimizer


class Shards:
    """Shards of an optimizer's parameters; in this class, complete parameters on one rank.

    Attributes:
        num_batches: number of batches of complete parameters that are processed in parallel, one per rank.
    """

    num_batches = 1

    def mapped(
        self,
        parameters: Sequence[Tensor],
        own: Sequence[Tensor],
        work: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
    ) -> list[Tensor]:
        """Apply `work` to complete tensors of one shape; return the local shards of the results.

        Args:
            own: local shards of the tensors, such as momenta of `parameters`.
            work: function of a batch [number, *shape] in `dtype`, independent for each tensor.
        """
        batch = own[0].new_empty(len(own), *own[0].shape, dtype=dtype)
        for row, tensor in zip(batch, own, strict=True):
            row.copy_(tensor)  # casts to `dtype`
        return [*work(batch)]

    def shape(self, parameter: Tensor) -> torch.Size:
        """Return the shape of the complete parameter."""
        return parameter.shape


class WholeMatrices(EagerOptimizer):
    """Optimizer with updates that depend on complete matrices, not only on single elements.

    Attributes:
        shards: local shards of the parameters.
    """

    shards = Shards()
