"""Attention scores of sampled queries, computed from the inputs of any kernel."""

import torch
from torch import Tensor

from archwright.parts.kernels import ScoreMods
from archwright.parts.masks import AttentionMask

QUERIES = 128
"""Number of sampled queries: the last of a sequence, which see the most keys."""


def largest_logit(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> Tensor:
    """max of scale q k^T over heads, sampled queries and visible keys, before any cap."""
    logits = _products(query, key, view) * scores.scale
    return logits.masked_fill(_hidden(query, view), -torch.inf).amax()


def mean_entropy(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Mean of -sum_k p_k ln p_k over heads and sampled queries.

    p are the attention weights. A sink counts as one more key.
    """
    bias = None
    if scores.bias is not None:
        first, length = _first(query), query.shape[1]
        bias = scores.bias.block(first, length, *view.keys(first, length))[:1]
    weights = scores.weights(_products(query, key, view), _hidden(query, view), bias)
    entropy: Tensor = torch.special.entr(weights).sum(-1)
    if scores.sinks is not None:
        entropy = entropy + torch.special.entr((1 - weights.sum(-1)).clamp(min=0))
    return entropy.mean()


def _products(query: Tensor, key: Tensor, view: AttentionMask) -> Tensor:
    """Return q k^T of the first sequence in float32 or wider, [1, heads, queries, keys]."""
    first, length = _first(query), query.shape[1]
    start, stop = view.keys(first, length)
    q, k = query[:1, first:].transpose(1, 2), key[:1, start:stop].transpose(1, 2)
    dtype = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).to(dtype)
    with torch.autocast(q.device.type, enabled=False):
        products: Tensor = q.to(dtype) @ k.transpose(-1, -2)
    return products


def _hidden(query: Tensor, view: AttentionMask) -> Tensor:
    """Return True for keys hidden from sampled queries, [1, 1 or heads, queries, keys]."""
    first, length = _first(query), query.shape[1]
    return ~view.block(first, length, *view.keys(first, length))[:1]


def _first(query: Tensor) -> int:
    return max(0, query.shape[1] - QUERIES)
