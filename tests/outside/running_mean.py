"""An attention from outside the package: the mean of what a document said so far.

archwright train modern --parts running_mean.py model.attention.kind=running_mean model.position.kind=none
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

import archwright as aw
from archwright.parts.linear import Linear
from archwright.spec.attention import Attention


class RunningMean(Attention):
    """out(mean of value(x_j) over the tokens j <= i of the same document)."""

    kind: Literal["running_mean"] = "running_mean"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})


class RunningMeanAttention(nn.Module):
    """y_i = out(sum_j w_ij value(x_j) / sum_j w_ij), w_ij 1 where j <= i is a token of the same document, else 0."""

    def __init__(self, spec: RunningMean, dim: int) -> None:
        super().__init__()
        self.value = Linear(dim, dim)
        self.out = Linear(dim, dim, is_residual_output=True)

    def forward(
        self, x: Tensor, segment_ids: Tensor | None = None, padding_mask: Tensor | None = None
    ) -> Tensor:
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        if segment_ids is not None:
            seen = seen & (segment_ids[:, :, None] == segment_ids[:, None])  # [batch, i, j]
        if padding_mask is not None:
            seen = seen & padding_mask[:, None]
        weights = seen.to(x.dtype)
        mean = (weights @ self.value(x)) / weights.sum(-1, keepdim=True).clamp(min=1)
        out: Tensor = self.out(mean)
        return out

    def flops_per_token(self, length: int) -> float:
        """A multiplication and an addition for each pair of tokens and each coordinate."""
        return 2.0 * length * self.value.d_out


aw.register(RunningMean, RunningMeanAttention)
