"""torch's scaled_dot_product_attention: flash and memory-efficient kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.parts.kernels import costs
from archwright.parts.kernels.eager import eager
from archwright.parts.kernels.scores import ScoreMods
from archwright.parts.leaves import leaf
from archwright.parts.masks import AttentionMask


@leaf(costs.sdpa)
def sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Reference attention by torch's fused kernels; scores with a soft-cap use `eager`."""
    if scores.softcap is not None:
        return eager(query, key, value, mask, scores)
    if query.shape[1] == 1 and mask.is_full and scores.plain:
        return _one_query(query, key, value, scores)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [b, heads, t, d]
    causal = mask.is_plain_causal and scores.plain
    attn_mask = None if causal or (mask.is_full and scores.plain) else _mask(q, k, mask, scores)
    if scores.sinks is not None:  # a further key and value, both zero, with the sink as score
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    if attn_mask is not None and q.device.type != "cpu" and q.shape[1] != k.shape[1]:
        # Flash kernels take no mask and efficient ones no groups, so torch would store all scores.
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        is_causal=causal,
        dropout_p=scores.dropout,
        scale=scores.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    # [b, t, heads, e]
    return out.transpose(1, 2)


def _one_query(query: Tensor, key: Tensor, value: Tensor, scores: ScoreMods) -> Tensor:
    """Return the attention of one query to all keys; the heads of a group are rows of one product."""
    q = query.unflatten(2, (key.shape[2], -1)).squeeze(1)  # [b, kv, group, d]
    # On a CPU, products of one row in 16 bits take three times as long as those of two.
    if q.shape[2] == 1 and q.device.type == "cpu" and q.itemsize == 2:
        q = torch.cat((q, q), 2)
    k, v = key.transpose(1, 2), value.transpose(1, 2)  # [b, kv, s, d or e]
    # [b, kv, group or 2, e]
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=scores.dropout, scale=scores.scale)
    # [b, 1, h, e]
    return out[:, :, : query.shape[2] // key.shape[2]].flatten(1, 2)[:, None]


def prepare_dense(mask: AttentionMask) -> None:
    """Compute the dense mask, unless kernels need none."""
    # With a bias, a plain causal mask becomes part of a compiled layer's graph.
    if not (mask.is_full or mask.is_plain_causal):
        _ = mask.dense


def _mask(q: Tensor, k: Tensor, mask: AttentionMask, scores: ScoreMods) -> Tensor:
    """Return the dense mask, or additive scores if there is a bias or a sink."""
    seen = mask.dense
    if scores.plain:
        return seen
    added = torch.zeros((), dtype=q.dtype, device=q.device)
    if scores.bias is not None:
        added = scores.bias.block(0, q.shape[2], 0, k.shape[2]).to(q.dtype)
    added = torch.where(seen, added, -torch.inf)
    if scores.sinks is None:
        return added
    sinks = scores.sinks.to(q.dtype)[:, None, None]
    shape = (added.shape[0], q.shape[1], q.shape[2])
    return torch.cat((added.expand(*shape, -1), sinks.expand(*shape, 1)), -1)
