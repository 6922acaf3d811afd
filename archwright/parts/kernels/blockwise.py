"""Attention over blocks of queries, each against only the keys that it may see.

On a CPU this is two to three times faster than SDPA, which there computes most of what a mask hides and
gains nothing from bfloat16. Products run in the inputs' dtype, the softmax in float32 or wider. A block's
weights are kept for the backward pass in the inputs' dtype.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.parts.masks import View

BLOCK = 128
"""Queries per block: long enough for fast matrix products, short enough to skip what is hidden."""


class _Block(NamedTuple):
    """Queries [first, stop) and the keys [key_first, key_stop) they may see, hidden where `hidden`."""

    first: int
    stop: int
    key_first: int
    key_stop: int
    hidden: Tensor | None


def blockwise(
    query: Tensor, key: Tensor, value: Tensor, view: View, scale: float, dropout: float
) -> Tensor:
    """The same as the reference, block by block."""
    out: Tensor = _Blockwise.apply(query, key, value, _blocks(view), scale, dropout)
    return out


def _blocks(view: View) -> list[_Block]:
    """Cut the queries into blocks; computed once for all layers that share the view."""
    cached: list[_Block] | None = view.__dict__.get("blocks")
    if cached is None:
        length = view.places.length
        cached = [_block(view, i, min(i + BLOCK, length)) for i in range(0, length, BLOCK)]
        view.__dict__["blocks"] = cached
    return cached


def _block(view: View, first: int, stop: int) -> _Block:
    key_first, key_stop = view.keys(first, stop)
    hidden = ~view.block(first, stop, key_first, key_stop)  # [rows, 1, queries, keys]
    return _Block(first, stop, key_first, key_stop, hidden[:, :, None] if hidden.any() else None)


class _Blockwise(torch.autograd.Function):
    """Inside, q is [b, kv, group, t, d] and k and v are [b, kv, t, d]: a group's queries, which share
    their keys, are rows of one product."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: list[_Block],
        scale: float,
        dropout: float,
    ) -> Tensor:
        batch, length, heads, dim = query.shape
        kv = key.shape[2]
        q = (query * scale).transpose(1, 2).reshape(batch * kv, heads // kv, length, dim)
        k = key.transpose(1, 2).reshape(batch * kv, length, dim)
        v = value.transpose(1, 2).reshape(batch * kv, length, dim)
        out = query.new_empty(batch * kv, heads // kv, length, dim)
        kept = []
        for block in blocks:
            weights = _weights(q, k, block, batch)
            dropped = F.dropout(weights, dropout) if dropout else weights
            seen = v[:, block.key_first : block.key_stop]
            part = torch.bmm(dropped.flatten(1, 2), seen)
            out[:, :, block.first : block.stop] = part.view(
                *out.shape[:2], block.stop - block.first, dim
            )
            kept += [weights, dropped] if dropout else [weights]
        ctx.save_for_backward(q, k, v, *kept)
        ctx.layout = (batch, kv, blocks, scale, dropout)
        return out.view(batch, heads, length, dim).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *kept = ctx.saved_tensors
        batch, kv, blocks, scale, dropout = ctx.layout
        grad = grads[0].transpose(1, 2).reshape(q.shape).to(q.dtype)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for i, block in enumerate(blocks):
            weights, dropped = kept[2 * i : 2 * i + 2] if dropout else (kept[i], kept[i])
            rows, keys = slice(block.first, block.stop), slice(block.key_first, block.key_stop)
            g = grad[:, :, rows].flatten(1, 2)
            grad_v[:, keys].baddbmm_(dropped.flatten(1, 2).transpose(1, 2), g)
            grad_weights = torch.bmm(g, v[:, keys].transpose(1, 2)).view_as(weights)
            if dropout:
                grad_weights = grad_weights * (dropped != 0) / (1 - dropout)
            grad_scores = torch._softmax_backward_data(
                _wide(grad_weights), _wide(weights), -1, _wide(weights).dtype
            ).to(q.dtype)
            flat = grad_scores.flatten(1, 2)
            grad_q[:, :, rows] = torch.bmm(flat, k[:, keys]).view_as(grad_q[:, :, rows])
            grad_k[:, keys].baddbmm_(flat.transpose(1, 2), q[:, :, rows].flatten(1, 2))
        length, dim = k.shape[1:]
        return (
            grad_q.mul_(scale).view(batch, -1, length, dim).transpose(1, 2),
            grad_k.view(batch, kv, length, dim).transpose(1, 2),
            grad_v.view(batch, kv, length, dim).transpose(1, 2),
            None,
            None,
            None,
        )


def _weights(q: Tensor, k: Tensor, block: _Block, batch: int) -> Tensor:
    """Return a block's softmax weights [b * kv, group, queries, keys] in the inputs' dtype."""
    rows = q[:, :, block.first : block.stop]
    keys = k[:, block.key_first : block.key_stop]
    scores = torch.bmm(rows.flatten(1, 2), keys.transpose(1, 2))
    scores = scores.view(batch, -1, q.shape[1], *scores.shape[1:]).view(
        batch, -1, q.shape[1], block.stop - block.first, keys.shape[1]
    )
    if block.hidden is not None:
        scores.masked_fill_(block.hidden, -torch.inf)
    weights = torch.softmax(scores, -1, dtype=_wide_dtype(scores.dtype)).to(q.dtype)
    return weights.view(q.shape[0], *weights.shape[2:])


def _wide(x: Tensor) -> Tensor:
    return x.to(_wide_dtype(x.dtype))


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
