"""Costs of softmax attention by kernel: pairs from the mask, kept tensors from the kernel."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from archwright.parts.kernels.scores import Bias, ScoreMods
from archwright.parts.leaves import LeafCosts
from archwright.parts.masks import AttentionMask, pairs


def fused(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of a kernel that keeps no scores: queries, keys, values, results and log Z stay."""
    batch, length, heads, _ = query.shape
    out = _meta(query, batch, length, heads, value.shape[-1])
    log_z = torch.empty(batch, heads, length, dtype=torch.float32, device="meta")
    kept = (query, key, value, out, log_z)
    return _costs(query, key, value, view, scores, out, kept, is_saved=True)


def eager(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of the reference: copies of keys and values for each head and all weights stay, too."""
    batch, length, heads, _ = query.shape
    keys = key.shape[1]
    # [batch, length, heads, value_dim], heads first in memory
    out = _meta(query, batch, heads, length, value.shape[-1]).transpose(1, 2)
    wide = torch.promote_types(query.dtype, torch.float32)
    weights = torch.empty(batch, heads, length, keys, dtype=wide, device="meta")
    kept: list[Tensor] = [query, weights]
    if value.dtype != wide or scores.dropout:
        kept.append(_meta(value, *weights.shape))
    if scores.dropout:
        kept.append(_meta(value, *weights.shape))  # factors, 0 or 1 / (1 - dropout)
    if not view.is_full:
        kept.append(torch.empty(length, keys, dtype=torch.bool, device="meta"))
    kept += [_meta(x, batch, keys, heads, x.shape[-1]) for x in (key, value)]  # also of one group
    if scores.softcap is not None:
        kept.append(torch.empty_like(weights))  # tanh(s / softcap)
    found = _costs(query, key, value, view, scores, out, kept)
    # Written, read by the softmax, written, and read to mix.
    return found._replace(num_bytes=found.num_bytes + 4 * weights.numel() * query.element_size())


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of torch's fused kernels, or of the reference, which stands in with a soft-cap."""
    formula = fused if scores.softcap is None else eager
    return formula(query, key, value, view, scores)


def blockwise(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> LeafCosts:
    """Return the costs of attention in blocks of queries: weights of visible pairs stay, too."""
    if view.kept is not None:
        return sdpa(query, key, value, view, scores)
    found = fused(query, key, value, view, scores)
    pairs_of_heads = query.shape[0] * query.shape[2] * round(visible_pairs(view))
    weights = _meta(query, pairs_of_heads)
    return found._replace(kept=(*found.kept[:-1], weights), is_saved=False)


def _costs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    view: AttentionMask,
    scores: ScoreMods,
    out: Tensor,
    kept: Any,
    *,
    is_saved: bool = False,
) -> LeafCosts:
    width = query.shape[-1] + value.shape[-1]
    flops = 2.0 * query.shape[0] * query.shape[2] * width * visible_pairs(view)
    more: list[Tensor] = [] if scores.sinks is None else [scores.sinks]
    for bias in _biases(scores.bias):
        flops += vars(bias).get("flops", 0.0)
        more += [x for x in vars(bias).values() if isinstance(x, Tensor) and x.requires_grad]
    size = sum(x.numel() * x.element_size() for x in (query, key, value, out))
    return LeafCosts(flops, float(size), out, kept, is_saved=is_saved, inputs=more)


def visible_pairs(view: AttentionMask) -> float:
    """Return how many (query, key) pairs a mask shows in a row, in the mean of its heads.

    Padding and documents are left out, as if each row were one text.
    """
    at, keys = view.layout, view.keys_at.length
    if view.is_full or view.given is not None:
        return float(at.length * keys)
    if view.kept is not None:  # few queries, so that the mask itself is small
        return float(view.dense.sum().item()) / (view.dense.shape[0] * view.dense.shape[1])
    if at.text is None:
        # Keys beside the text, such as sums of its blocks, are seen by all.
        return pairs(view.pattern, at.length) + at.length * (keys - at.length)
    text, found = at.text.length, pairs(view.pattern, at.text.length)
    for stream in range(at.length // text - 1):
        # Vectors of stream i see themselves, and what the tokens i - 1 places before see.
        missing = min(stream, text)
        found += pairs(view.pattern, text - missing) if text > missing else 0.0
        found += missing * pairs(view.pattern, 1) + text
    return found


def _biases(bias: Any) -> Iterator[Any]:
    """Yield a bias and those that it is made of."""
    if bias is None:
        return
    yield bias
    for part in vars(bias).values():
        if isinstance(part, Bias) and not isinstance(part, AttentionMask):
            yield from _biases(part)


def _meta(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")
