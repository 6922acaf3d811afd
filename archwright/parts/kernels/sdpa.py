"""torch's scaled_dot_product_attention: flash and memory-efficient kernels where they exist."""

import torch.nn.functional as F
from torch import Tensor

from archwright.parts.masks import View


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, view: View, scale: float, dropout: float
) -> Tensor:
    """The same as the reference, through torch's fused kernels."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [b, heads, t, d]
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if view.is_plain_causal else view.dense,
        is_causal=view.is_plain_causal,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.transpose(1, 2)
