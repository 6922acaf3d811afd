"""Reference kernel: one dense matrix of scores."""

import torch.nn.functional as F
from torch import Tensor

from archwright.parts.kernels import costs
from archwright.parts.kernels.scores import ScoreMods
from archwright.parts.leaves import leaf
from archwright.parts.masks import AttentionMask


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, without heads, positions or a mask of its own.

    Shapes: q [..., t, d], k [..., s, d], v [..., s, e], mask [..., t, s]: True if a query may attend to a key. The
    softmax is computed in float32 or float64.
    Source: Vaswani et al., 2017, equation 1.
    """
    hidden = None if mask is None else ~mask
    # [..., t, s]
    weights = ScoreMods(scale=query.shape[-1] ** -0.5).weights(query @ key.mT, hidden, None)
    return weights.to(value.dtype) @ value


@leaf(costs.eager)
def eager(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> Tensor:
    """softmax(scale * q k^T + mask) v, with the softmax in float32 or float64; see `ScoreMods`."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [b, heads, t, d]
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    bias = None if scores.bias is None else scores.bias.block(0, q.shape[2], 0, k.shape[2])
    hidden = None if mask.is_full else ~mask.dense
    # [b, heads, t, s]
    weights = scores.weights(q @ k.transpose(-1, -2), hidden, bias).to(v.dtype)
    # [b, t, heads, e]
    return (F.dropout(weights, scores.dropout) @ v).transpose(1, 2)
