"""Scores of attention for a few queries, computed beside any kernel from what it is given."""

from typing import Any

import torch
from torch import Tensor

from archwright.parts.masks import View

QUERIES = 128
"""The last queries of a row, which see the most keys."""


def largest_logit(query: Tensor, key: Tensor, value: Tensor, view: View, *more: Any) -> Tensor:
    """max of scale q k^T over heads, sampled queries and the keys they see, before any cap."""
    return _logits(query, key, view, _scale(*more)).amax()


def mean_entropy(query: Tensor, key: Tensor, value: Tensor, view: View, *more: Any) -> Tensor:
    """Mean over heads and sampled queries of -sum_k p_k ln p_k, p the weights that attention uses.

    A sink takes its share of each head's weights, as one more key would.
    """
    settings = more[0]
    logits = _logits(query, key, view, _scale(*more))
    if (cap := getattr(settings, "softcap", None)) is not None:
        logits = cap * torch.tanh(logits / cap)  # of -inf, too: those are hidden again below
        logits = logits.masked_fill(~_seen(query, view), -torch.inf)
    if (sinks := getattr(settings, "sinks", None)) is not None:
        column = sinks.to(logits.dtype)[:, None, None].expand(-1, logits.shape[1], 1)
        logits = torch.cat((logits, column), -1)
    entropy: Tensor = torch.special.entr(logits.softmax(-1)).sum(-1)
    return entropy.mean()


def _logits(query: Tensor, key: Tensor, view: View, scale: float) -> Tensor:
    """Return the scaled products of the first sequence, [heads, queries, keys], -inf where hidden."""
    first, length = _first(query), query.shape[1]
    start, stop = view.keys(first, length)
    q, k = query[0, first:].transpose(0, 1), key[0, start:stop].transpose(0, 1)
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[0] // k.shape[0], 0).to(wide)  # [heads, keys, head_dim]
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(wide) @ k.transpose(1, 2)) * scale
    return logits.masked_fill(~_seen(query, view), -torch.inf)


def _seen(query: Tensor, view: View) -> Tensor:
    """Return which of the keys the sampled queries see, [1, queries, keys]."""
    first, length = _first(query), query.shape[1]
    return view.block(first, length, *view.keys(first, length))[0]


def _first(query: Tensor) -> int:
    return max(0, query.shape[1] - QUERIES)


def _scale(settings: Any, *_: Any) -> float:
    """Kernels are given the scale, or what holds it."""
    return float(getattr(settings, "scale", settings))
