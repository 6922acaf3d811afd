"""The reference: attention as its formula says, one dense matrix of scores."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.parts.masks import View


def eager(
    query: Tensor, key: Tensor, value: Tensor, view: View, scale: float, dropout: float
) -> Tensor:
    """softmax(scale * q k^T + mask) v, with the softmax in float32 or wider."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [b, heads, t, d]
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = (q @ k.transpose(-1, -2)) * scale
    wide = scores if scores.dtype == torch.float64 else scores.float()
    weights = wide.masked_fill(~view.dense, -torch.inf).softmax(-1)
    weights = F.dropout(weights.to(v.dtype), dropout)
    return (weights @ v).transpose(1, 2)
