"""An attention from outside the package: the mean of the tokens of a document so far.

archwright train modern --parts running_mean.py model.attention.kind=running_mean model.position.kind=none
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

import archwright as aw
from archwright.parts.context import Context
from archwright.parts.linear import Linear
from archwright.parts.mixers import Mixer
from archwright.parts.sharing import LayerInfo
from archwright.spec.attention import Attention


class RunningMean(Attention):
    """out(mean of value(x_j) over the tokens j <= i of the same document)."""

    kind: Literal["running_mean"] = "running_mean"
    takes: ClassVar[frozenset[str]] = frozenset({"segment_ids", "padding_mask"})


class RunningMeanAttention(Mixer):
    """y_i = out(sum_j w_ij value(x_j) / sum_j w_ij), w_ij 1 where j <= i is a token of the same document, else 0."""

    def __init__(self, spec: RunningMean, dim: int, layer: LayerInfo) -> None:
        super().__init__()
        self.value = Linear(dim, dim)
        self.out = Linear(dim, dim, is_residual_output=True)

    def forward(
        self,
        x: Tensor,
        context: Context,
        state: Any = None,
        projected: Sequence[Tensor] | None = None,
    ) -> Tensor:
        layout = context.layout
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        if layout.segment_ids is not None:
            ids = layout.segment_ids
            seen = seen & (ids[:, :, None] == ids[:, None])  # [batch, i, j]
        if layout.padding_mask is not None:
            seen = seen & layout.padding_mask[:, None]
        weights = seen.to(x.dtype)
        mean = (weights @ self.value(x)) / weights.sum(-1, keepdim=True).clamp(min=1)
        out: Tensor = self.out(mean)
        return out


aw.register(RunningMean, RunningMeanAttention)
