"""Attention over blocks of queries, each against only the keys that it may see.

On a CPU this is three times faster than SDPA, which there computes most of what a mask hides and gains
nothing from bfloat16. Products run in the inputs' dtype, the softmax in float32 or wider inside. A block's
weights are kept for the backward pass in the inputs' dtype.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from archwright.parts.kernels.scores import Scores
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.masks import View

BLOCK = 128
"""Queries per block: long enough for fast matrix products, short enough to skip what is hidden."""

ALIGNED = 32
"""Masked stretches begin and end at multiples of this, so that vector instructions fill them."""


class Block(NamedTuple):
    """Queries [first, stop), the keys [key_first, key_stop) they may see, and what is hidden of those."""

    first: int
    stop: int
    key_first: int
    key_stop: int
    masked_first: int
    """Where the stretch of keys begins that holds all that is hidden, counted from key_first."""
    masked_stop: int
    hidden: Tensor
    """True where a query does not see a key, [rows, 1 or heads, queries, keys]."""
    hiding: Tensor | None
    """Added to the scores of the keys [masked_first, masked_stop): 0 or -inf, [rows, 1 or heads, queries, keys]."""


def blockwise(query: Tensor, key: Tensor, value: Tensor, view: View, scores: Scores) -> Tensor:
    """The same as the reference, block by block."""
    if view.kept is not None:  # few queries: blocks would be more work than they save
        return sdpa(query, key, value, view, scores)
    blocks = _blocks(view, query.dtype)
    if not scores.plain:
        return _by_autograd(query, key, value, blocks, scores)
    out: Tensor = _Blockwise.apply(  # type: ignore[no-untyped-call]
        query, key, value, blocks, scores.scale, scores.dropout
    )
    return out


def _by_autograd(
    query: Tensor, key: Tensor, value: Tensor, blocks: list[Block], scores: Scores
) -> Tensor:
    """Blocks whose scores are capped, have a bias or a sink: torch's own operations, one by one."""
    kv, heads = key.shape[2], query.shape[2]
    k, v = (x.transpose(1, 2) for x in (key, value))  # [b, kv, s, d]
    parts = []
    for block in blocks:
        seen = slice(block.key_first, block.key_stop)
        q = query[:, block.first : block.stop].transpose(1, 2).unflatten(1, (kv, heads // kv))
        products = q @ k[:, :, None, seen].transpose(-1, -2)  # [b, kv, group, queries, keys]
        bias = None
        if scores.bias is not None:
            bias = scores.bias.block(block.first, block.stop, block.key_first, block.key_stop)
        weights = scores.weights(products.flatten(1, 2), block.hidden, bias).to(v.dtype)
        weights = F.dropout(weights, scores.dropout).unflatten(1, (kv, heads // kv))
        parts.append((weights @ v[:, :, None, seen]).flatten(1, 2))
    return torch.cat(parts, 2).transpose(1, 2)


def _blocks(view: View, dtype: torch.dtype) -> list[Block]:
    """What is hidden depends on data, which a compiler cannot follow: it is told so, and goes on behind."""
    if torch.compiler.is_compiling():
        from archwright.parts.kernels.uncompiled import cut_uncompiled

        return cut_uncompiled(view, dtype)
    return cut(view, dtype)


def cut(view: View, dtype: torch.dtype) -> list[Block]:
    """Cut the queries into blocks; computed once for all layers that share the view."""
    cached: dict[torch.dtype, list[Block]] = view.__dict__.setdefault("blocks", {})
    if dtype not in cached:
        length = view.places.length
        firsts = range(0, length, BLOCK)
        cached[dtype] = [_block(view, i, min(i + BLOCK, length), dtype) for i in firsts]
    return cached[dtype]


def _block(view: View, first: int, stop: int, dtype: torch.dtype) -> Block:
    key_first, key_stop = view.keys(first, stop)
    hidden = ~view.block(first, stop, key_first, key_stop)  # [rows, 1 or heads, queries, keys]
    masked = hidden.any(-2).flatten(0, 1).any(0).nonzero().flatten().tolist()
    if not masked:
        return Block(first, stop, key_first, key_stop, 0, 0, hidden, None)
    masked_first = masked[0] // ALIGNED * ALIGNED
    masked_stop = min(-(-(masked[-1] + 1) // ALIGNED) * ALIGNED, key_stop - key_first)
    part = hidden[..., masked_first:masked_stop]
    hiding = torch.zeros(part.shape, dtype=dtype, device=part.device)
    hiding = hiding.masked_fill_(part, -torch.inf)
    return Block(first, stop, key_first, key_stop, masked_first, masked_stop, hidden, hiding)


class _Blockwise(torch.autograd.Function):
    """Inside, a block's rows are [b * kv, group * queries, d] and its keys [b * kv, keys, d]: the queries
    of a group of heads, which share their keys, are rows of one product."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: list[Block],
        scale: float,
        dropout: float,
    ) -> Tensor:
        kv = key.shape[2]
        k, v = _rows(key, kv), _rows(value, kv)
        out = query.new_empty(*query.shape[:3], value.shape[-1])
        kept = []
        for block in blocks:
            queries = slice(block.first, block.stop)
            q = _rows(query[:, queries], kv)
            seen = _seen(k, block), _seen(v, block)
            weights = _weights(q, seen[0], block, scale, query.shape[0])
            dropped = F.dropout(weights, dropout) if dropout else weights
            _unrows(out[:, queries], kv).copy_(_shaped(torch.bmm(dropped, seen[1]), out, kv))
            kept += [q, weights, dropped] if dropout else [q, weights]
        ctx.save_for_backward(k, v, *kept)
        ctx.layout = (query.shape, blocks, scale, dropout)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        k, v, *kept = ctx.saved_tensors
        shape, blocks, scale, dropout = ctx.layout
        kv = k.shape[0] // shape[0]
        grad_out = grads[0].to(k.dtype)
        grad_q = torch.empty(shape, dtype=k.dtype, device=k.device)
        # From the last block on: where that sees all keys, it writes what the others add to.
        whole = (blocks[-1].key_first, blocks[-1].key_stop) == (0, k.shape[1])
        grad_k, grad_v = (torch.empty_like(x) if whole else torch.zeros_like(x) for x in (k, v))
        size = 3 if dropout else 2
        for i, block in reversed(list(enumerate(blocks))):
            q, weights, *rest = kept[size * i : size * (i + 1)]
            dropped = rest[0] if dropout else weights
            queries, keys = slice(block.first, block.stop), slice(block.key_first, block.key_stop)
            beta = 0 if whole and block is blocks[-1] else 1
            g = _rows(grad_out[:, queries], kv)
            grad_v[:, keys].baddbmm_(dropped.transpose(1, 2), g, beta=beta)
            grad_weights = torch.bmm(g, _seen(v, block).transpose(1, 2))
            if dropout:
                grad_weights.mul_(dropped != 0).div_(1 - dropout)
            # float32 or wider inside, as the softmax itself
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            of_q = _scaled_product(grad_scores, _seen(k, block), scale)
            _unrows(grad_q[:, queries], kv).copy_(_shaped(of_q, grad_q, kv))
            grad_k[:, keys].baddbmm_(grad_scores.transpose(1, 2), q, beta=beta, alpha=scale)
        by_token = (x.view(shape[0], kv, *x.shape[1:]).transpose(1, 2) for x in (grad_k, grad_v))
        return grad_q, *by_token, None, None, None


def _weights(q: Tensor, k: Tensor, block: Block, scale: float, batch: int) -> Tensor:
    """Return a block's softmax weights [b * kv, group * queries, keys].

    torch's softmax of float16 and bfloat16 computes in float32 and rounds once, at its end.
    """
    scores = _scaled_product(q, k.transpose(1, 2), scale)
    if block.hiding is not None:
        part = scores[..., block.masked_first : block.masked_stop]
        queries, kv = block.stop - block.first, part.shape[0] // batch
        alike = block.hiding.shape[1] == 1
        hiding = block.hiding.unflatten(1, (1, 1) if alike else (kv, -1))
        part.view(batch, kv, -1, queries, part.shape[-1]).add_(hiding)
    return torch.softmax(scores, -1)


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=scale)


def _seen(x: Tensor, block: Block) -> Tensor:
    """Return the rows of a block's keys in one piece, which makes its products much faster."""
    return x[:, block.key_first : block.key_stop].contiguous()


def _unrows(x: Tensor, kv: int) -> Tensor:
    """View [b, t, h, d] as [b, kv, group, t, d]."""
    batch, length, heads, dim = x.shape
    return x.view(batch, length, kv, heads // kv, dim).permute(0, 2, 3, 1, 4)


def _rows(x: Tensor, kv: int) -> Tensor:
    """Lay [b, t, h, d] out as [b * kv, group * t, d]."""
    return _unrows(x, kv).reshape(x.shape[0] * kv, -1, x.shape[-1])


def _shaped(rows: Tensor, like: Tensor, kv: int) -> Tensor:
    """View [b * kv, group * t, d] as [b, kv, group, t, d] for the heads of `like`."""
    batch, _, heads, dim = like.shape
    return rows.view(batch, kv, heads // kv, -1, dim)
