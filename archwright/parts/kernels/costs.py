"""Costs of softmax attention: FLOPs from the mask, saved tensors from the kernel."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from archwright.parts.kernels.scores import Bias, ScoreMods
from archwright.parts.leaves import LeafCosts
from archwright.parts.masks import AttentionMask, pairs


def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of fused attention, which saves queries, keys, values, results and log Z."""
    batch, length, heads, _ = query.shape
    out = _meta(query, batch, length, heads, value.shape[-1])
    log_z = torch.empty(batch, heads, length, dtype=torch.float32, device="meta")
    saved = (query, key, value, out, log_z)
    return _costs(query, key, value, mask, scores, out, saved, is_saved=True)


def eager(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of the reference, which also saves all weights and one copy of keys and values per head."""
    batch, length, heads, _ = query.shape
    keys = key.shape[1]
    # [batch, length, heads, value_dim], heads first in memory
    out = _meta(query, batch, heads, length, value.shape[-1]).transpose(1, 2)
    wide = torch.promote_types(query.dtype, torch.float32)
    weights = torch.empty(batch, heads, length, keys, dtype=wide, device="meta")
    saved: list[Tensor] = [query, weights]
    if value.dtype != wide or scores.dropout:
        saved.append(_meta(value, *weights.shape))
    if scores.dropout:
        saved.append(_meta(value, *weights.shape))  # factors, 0 or 1 / (1 - dropout)
    if not mask.is_full:
        heads_of_mask = mask.pattern.num_heads
        saved.append(torch.empty(heads_of_mask, length, keys, dtype=torch.bool, device="meta"))
    saved += [_meta(x, batch, keys, heads, x.shape[-1]) for x in (key, value)]  # also of one group
    if scores.softcap is not None:
        saved.append(torch.empty_like(weights))  # tanh(s / softcap)
    costs = _costs(query, key, value, mask, scores, out, saved)
    # Scores are written and read by the softmax; weights are written and read by the product with values.
    return costs._replace(num_bytes=costs.num_bytes + 4 * weights.numel() * query.element_size())


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of torch's fused kernels, or of the reference if scores have a soft-cap."""
    formula = fused if scores.softcap is None else eager
    return formula(query, key, value, mask, scores)


def blockwise(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of attention in blocks of queries, which also saves the weights of visible pairs."""
    if mask.kept is not None:
        return sdpa(query, key, value, mask, scores)
    costs = fused(query, key, value, mask, scores)
    pairs_of_heads = query.shape[0] * query.shape[2] * round(visible_pairs(mask))
    weights = _meta(query, pairs_of_heads)
    return costs._replace(kept=(*costs.kept[:-1], weights), is_saved=False)


def _costs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    scores: ScoreMods,
    out: Tensor,
    saved: Any,
    *,
    is_saved: bool = False,
) -> LeafCosts:
    width = query.shape[-1] + value.shape[-1]
    flops = 2.0 * query.shape[0] * query.shape[2] * width * visible_pairs(mask)
    inputs: list[Tensor] = [] if scores.sinks is None else [scores.sinks]
    for bias in _biases(scores.bias):
        flops += vars(bias).get("flops", 0.0)
        inputs += [x for x in vars(bias).values() if isinstance(x, Tensor) and x.requires_grad]
    size = sum(x.numel() * x.element_size() for x in (query, key, value, out))
    return LeafCosts(flops, float(size), out, saved, is_saved=is_saved, inputs=inputs)


def visible_pairs(mask: AttentionMask) -> float:
    """Return the number of visible (query, key) pairs per row, averaged over heads.

    Padding and document boundaries are ignored.
    """
    at, keys = mask.layout, mask.keys_at.length
    if mask.is_full or mask.given is not None:
        return float(at.length * keys)
    if mask.kept is not None:  # few queries, so that the mask itself is small
        return float(mask.dense.sum().item()) / (mask.dense.shape[0] * mask.dense.shape[1])
    # All queries see additional keys, such as block sums.
    return pairs(mask.pattern, at.length) + at.length * (keys - at.length)


def _biases(bias: Any) -> Iterator[Any]:
    """Yield a bias and its nested biases."""
    if bias is None:
        return
    yield bias
    for part in vars(bias).values():
        if isinstance(part, Bias) and not isinstance(part, AttentionMask):
            yield from _biases(part)


def _meta(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")
