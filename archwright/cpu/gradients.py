"""Gradients of attention in blocks: the backward pass, and blocks for autograd."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.cpu import blocks as cut
from archwright.cpu.blocks import (
    Tile,
    grouped,
    keys_of,
    matrix_of,
    queries_of,
    shaped,
    strips_of,
    tiles_of,
)
from archwright.parts.kernels.scores import ScoreMods
from archwright.parts.masks import AttentionMask, Ranges, united


def input_gradients(
    ctx: Any, backward: Callable[..., list[Tensor]], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `attend`."""
    learned = ctx.needs_input_grad[3]
    grads = iter(backward(grad, *ctx.saved_tensors, *ctx.how, learned))
    q, k, v = next(grads), next(grads), next(grads)
    bias_band = next(grads) if learned else None
    return q, k, v, bias_band, next(grads, None), *[None] * 9


def attend_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_band: Tensor | None,
    sinks: Tensor | None,
    table: Tensor,
    kept: Tensor,
    least: int,
    scale: float,
    softcap: float | None,
    dropout: float,
    learned: bool,
) -> list[Tensor]:
    """Return the gradients of query, key and value, of `bias_band` if learned, and of sinks."""
    kv, dtype, grad_out = k.shape[1], q.dtype, grad_out.to(q.dtype)
    # [b, t, heads, d]
    query = q.transpose(1, 2)
    accumulate_dtype = torch.promote_types(dtype, torch.float32)
    grad_q = q.new_empty(query.shape)
    tiles = list(tiles_of(query, table, sinks))
    # In reverse order: if the last block sees all keys, it initializes the gradients.
    last = tiles[-1].block
    whole = last.row_stop == last.key_first == 0 and last.key_stop == k.shape[2]
    grad_k, grad_v = (torch.empty_like(x) if whole else torch.zeros_like(x) for x in (k, v))
    grad_bias_band = None
    if bias_band is not None and learned:
        grad_bias_band = torch.zeros(
            bias_band.shape, dtype=accumulate_dtype, device=bias_band.device
        )
    grad_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=accumulate_dtype)
    spare = query.new_empty(2, max(p.size for p in tiles))
    for tile in reversed(tiles):
        block, beta = tile.block, 0 if whole and tile is tiles[-1] else 1
        weights, dropped = (matrix_of(kept[i, tile.kept], tile, kv) for i in (0, -1))
        num_keys = block.num_keys
        heads = slice(tile.rows.start * kv, tile.rows.stop * kv)
        g = grouped(grad_out[tile.rows, tile.queries], kv)  # [rows, kv, group, queries, e]
        # [rows * kv, group * queries, e]
        g = g.reshape(heads.stop - heads.start, -1, g.shape[-1])
        dropped = dropped if dropout else weights
        # [rows * kv, keys, group * queries]
        to_values = dropped[..., :num_keys].transpose(1, 2)
        _add_to_keys(grad_v, to_values, g, tile, heads, beta)
        grad_weights = matrix_of(spare[0, : tile.size], tile, kv)
        # [rows * kv, group * queries, keys]
        grad_weights.baddbmm_(g, keys_of(v, tile, sinks).transpose(1, 2), beta=0)
        if dropout:
            grad_weights.mul_(dropped != 0).div_(1 - dropout)
        grad = matrix_of(spare[1, : tile.size], tile, kv)  # gradient of scores
        torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, dtype, grad_input=grad)
        # [rows, heads, queries, keys]
        by_head = grad.view(tile.shape)
        if grad_bias_band is not None:
            # [heads, queries, keys]
            summed = by_head[..., :num_keys].sum(0, dtype=accumulate_dtype)
            strips = strips_of(grad_bias_band, block, least)
            sizes = [strip.shape[-1] for strip in strips]
            for strip, part in zip(strips, summed.split(sizes, -1), strict=True):
                strip.add_(part)
        if grad_sinks is not None:
            grad_sinks.add_(by_head[..., num_keys].sum((0, 2), dtype=accumulate_dtype))
        if softcap is not None:
            grad = torch.ops.aten.tanh_backward(grad, matrix_of(kept[1, tile.kept], tile, kv))
        block_grad_q = grad.new_empty(*grad.shape[:2], q.shape[-1])
        block_grad_q.baddbmm_(grad, keys_of(k, tile, sinks), beta=0, alpha=scale)
        to = grad_q[tile.rows, tile.queries]
        grouped(to, kv).copy_(shaped(block_grad_q, to, kv))
        # [rows * kv, keys, group * queries]
        to_keys = grad[..., :num_keys].transpose(1, 2)
        _add_to_keys(grad_k, to_keys, queries_of(q, tile, kv), tile, heads, beta)
    # [b, s, kv, width]
    by_token = [x.transpose(1, 2) for x in (grad_k, grad_v)]
    others = [(grad_bias_band, bias_band), (grad_sinks, sinks)]
    cast = [grad.to(like.dtype) for grad, like in others if grad is not None and like is not None]
    return [grad_q, *by_token, *cast]


def _add_to_keys(
    grad: Tensor, weights: Tensor, x: Tensor, tile: Tile, heads: slice, beta: int
) -> None:
    """Add weights @ x to a gradient [b, kv, s, d] at a block's keys.

    Shapes: weights [rows * kv, keys, group * queries], x [rows * kv, group * queries, d].
    """
    sizes = [keys.stop - keys.start for keys in tile.keys]
    for keys, part in zip(tile.keys, weights.split(sizes, 1), strict=True):
        # [b * kv, keys, d]
        grad.flatten(0, 1)[heads, keys].baddbmm_(part, x, beta=beta)


backward_operator = torch.library.custom_op(
    "archwright::attend_backward", attend_backward, mutates_args=()
)


@backward_operator.register_fake
def _(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_band: Tensor | None,
    sinks: Tensor | None,
    *rest: Any,
) -> list[Tensor]:
    # [b, t, heads, d]
    grads = [q.new_empty(q.transpose(1, 2).shape)]
    # [b, s, kv, d]
    grads += [torch.empty_like(x).transpose(1, 2) for x in (k, v)]
    return grads + [
        x.new_empty(x.shape) for x in (bias_band if rest[-1] else None, sinks) if x is not None
    ]


def by_autograd(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Compute blocks by autograd, for a bias that depends on more than distances."""
    kv, heads, length = key.shape[2], query.shape[2], query.shape[1]
    k, v = (x.transpose(1, 2) for x in (key, value))  # [b, kv, s, d]
    parts = []
    for first in range(0, length, cut.BLOCK):
        stop = min(first + cut.BLOCK, length)
        rows = mask.ranges_of_rows(first, stop)
        ranges = united([keys for row in rows for keys in row])
        # [rows, heads, queries, keys]
        hidden = mask.once(
            f"hidden from {first}", partial(_hidden, first, stop, ranges), shared=False
        )
        # [b, kv, group, queries, d]
        q = query[:, first:stop].transpose(1, 2).unflatten(1, (kv, heads // kv))
        # [b, kv, 1, keys, d] and, of values, e
        k_seen, v_seen = (
            torch.cat([x[:, :, None, start:end] for start, end in ranges], -2) for x in (k, v)
        )
        products = q @ k_seen.transpose(-1, -2)  # [b, kv, group, queries, keys]
        bias = None
        if scores.bias is not None:
            parts_of_bias = [scores.bias.block(first, stop, *keys) for keys in ranges]
            bias = torch.cat(parts_of_bias, -1)
        # As [b, heads, queries, keys], where masks and biases are written.
        weights = scores.weights(products.flatten(1, 2), hidden, bias).to(v.dtype)
        # [b, kv, group, queries, keys]
        weights = F.dropout(weights, scores.dropout).unflatten(1, (kv, heads // kv))
        # [b, heads, queries, e]
        parts.append((weights @ v_seen).flatten(1, 2))
    # [b, t, heads, e]
    return torch.cat(parts, 2).transpose(1, 2)


def _hidden(first: int, stop: int, ranges: Ranges, mask: AttentionMask) -> Tensor:
    return ~torch.cat([mask.block(first, stop, *keys) for keys in ranges], -1)
