"""Forward and backward pass of attention in blocks, as matmuls of tiles."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from archwright.cpu import blocks as cut
from archwright.cpu.blocks import Block, block_of
from archwright.cpu.blocks import blocks_of as blocks_of
from archwright.parts.kernels.scores import ScoreMods
from archwright.parts.masks import AttentionMask, Ranges, united


def by_autograd(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Compute blocks by autograd, for a bias that depends on more than distances."""
    kv, heads, length = key.shape[2], query.shape[2], query.shape[1]
    k, v = (x.transpose(1, 2) for x in (key, value))  # [b, kv, s, d]
    parts = []
    for first in range(0, length, cut.BLOCK):
        stop = min(first + cut.BLOCK, length)
        rows = view.ranges_of_rows(first, stop)
        ranges = united([keys for row in rows for keys in row])
        # [rows, heads, queries, keys]
        hidden = view.once(
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


def _hidden(first: int, stop: int, ranges: Ranges, view: AttentionMask) -> Tensor:
    return ~torch.cat([view.block(first, stop, *keys) for keys in ranges], -1)


class _Tile(NamedTuple):
    """A block with the slices of its tensors."""

    block: Block
    rows: slice
    queries: slice
    keys: tuple[slice, ...]
    """Ranges of keys; columns run through them in order."""
    kept: slice
    """Slice of the saved weights."""
    shape: tuple[int, int, int, int]
    """[rows, heads, queries, keys], including the columns of a sink."""

    @property
    def size(self) -> int:
        rows, heads, queries, keys = self.shape
        return rows * heads * queries * keys


def _tiles(query: Tensor, table: Tensor, sinks: Tensor | None) -> Iterator[_Tile]:
    """Yield the blocks in order. A sink takes `ALIGNED` further keys, so that rows remain aligned."""
    batch, _, heads, _ = query.shape
    used, more = 0, 0 if sinks is None else cut.ALIGNED
    for line in table.tolist():
        block = block_of(line)
        rows = slice(block.row_first, block.row_stop or batch)
        queries, keys = slice(block.first, block.stop), block.keys
        shape = (rows.stop - rows.start, heads, block.stop - block.first, block.num_keys + more)
        size = shape[0] * shape[1] * shape[2] * shape[3]
        yield _Tile(block, rows, queries, keys, slice(used, used + size), shape)
        used += size


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias_band: Tensor | None,
    sinks: Tensor | None,
    table: Tensor,
    mask_bias: Tensor,
    workspace: Tensor,
    rows: int,
    least: int,
    scale: float,
    softcap: float | None,
    dropout: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs [b, t, h, e] and the tensors of the backward pass.

    These are scaled queries, keys and values by head, [b, h, t, d], and the saved weights, caps and weights after
    dropout of all blocks. A block's queries are [rows * kv, group * queries, d] and its keys [rows * kv, keys, d], so
    all heads that share a key-value head are rows of one matmul.
    """
    kv, mask_bias = key.shape[2], mask_bias.to(query.dtype)
    q, k, v = _by_head(query, scale), _by_head(key), _by_head(value)  # cheaper than to scale scores
    out = query.new_empty(*query.shape[:3], value.shape[-1])
    tiles = list(_tiles(query, table, sinks))
    kept = workspace_for(query, workspace, rows, sinks, softcap, dropout, save)
    spare = query.new_empty(max(p.size for p in tiles))
    for tile in tiles:
        scores = _view(spare[: tile.size], tile, kv)
        # [rows * kv, d, keys]
        to_keys = _seen(k, tile, sinks).transpose(1, 2)
        added = bias_band is not None and softcap is None and sinks is None
        if bias_band is not None and added:  # saves one pass: the matmul accumulates into the bias
            # [rows, heads, queries, keys]
            scores.view(tile.shape).copy_(_bias_of_block(bias_band, tile.block, least))
        factor = 1 / (softcap or 1)
        scores.baddbmm_(_asking(q, tile, kv), to_keys, beta=int(added), alpha=factor)
        if softcap is not None:  # torch has a fast tanh only in float32
            capped = scores.to(torch.promote_types(scores.dtype, torch.float32)).tanh_()
            scores.copy_(capped)
            if save:
                _view(kept[1, tile.kept], tile, kv).copy_(scores)
            scores.mul_(softcap)
        bias = None if added else bias_band
        # [rows, heads, queries, keys]
        _add_to(scores.view(tile.shape), tile.block, bias, least, mask_bias, sinks)
        weights = torch.softmax(
            scores, -1, out=_view(kept[0, tile.kept], tile, kv) if save else scores
        )
        if dropout:
            weights = F.dropout(weights, dropout)
            if save:
                _view(kept[-1, tile.kept], tile, kv).copy_(weights)
        mixed = torch.bmm(weights, _seen(v, tile, sinks))
        to = out[tile.rows, tile.queries]
        _unrows(to, kv).copy_(_shaped(mixed, to, kv))
    return out, q, k, v, kept


def _add_to(
    scores: Tensor,
    block: Block,
    bias_band: Tensor | None,
    least: int,
    mask_bias: Tensor,
    sinks: Tensor | None,
) -> None:
    """Add bias and mask to a block's scores [rows, heads, queries, keys], and fill in the sinks."""
    queries, num_keys = block.stop - block.first, block.num_keys
    if bias_band is not None:
        scores[..., :num_keys].add_(_bias_of_block(bias_band, block, least))
    if block.masked_first < block.masked_stop:
        shape = (block.mask_rows, block.mask_heads, queries, block.masked_stop - block.masked_first)
        part = mask_bias[block.mask_at :][: shape[0] * shape[1] * shape[2] * shape[3]]
        # [mask_rows, mask_heads, queries, masked keys]
        scores[..., block.masked_first : block.masked_stop].add_(part.view(shape))
    if sinks is not None:
        scores[..., num_keys:] = -torch.inf
        scores[..., num_keys] = sinks[:, None].to(scores.dtype)


def workspace_for(
    query: Tensor,
    workspace: Tensor,
    rows: int,
    sinks: Tensor | None,
    softcap: float | None,
    dropout: float,
    save: bool,
) -> Tensor:
    """Return uninitialized memory for saved weights, caps and dropped weights, one row per kind."""
    batch, length, heads, _ = query.shape
    size = workspace.shape[0] * heads * (batch if rows == 1 else 1)
    size += 0 if sinks is None else batch * length * heads * cut.ALIGNED
    kinds = 1 + (softcap is not None) + (dropout > 0)
    return query.new_empty((kinds, size) if save else (0, 0))


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
    tiles = list(_tiles(query, table, sinks))
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
        weights, dropped = (_view(kept[i, tile.kept], tile, kv) for i in (0, -1))
        num_keys = block.num_keys
        heads = slice(tile.rows.start * kv, tile.rows.stop * kv)
        g = _unrows(grad_out[tile.rows, tile.queries], kv)  # [rows, kv, group, queries, e]
        # [rows * kv, group * queries, e]
        g = g.reshape(heads.stop - heads.start, -1, g.shape[-1])
        dropped = dropped if dropout else weights
        # [rows * kv, keys, group * queries]
        to_values = dropped[..., :num_keys].transpose(1, 2)
        _add_to_keys(grad_v, to_values, g, tile, heads, beta)
        grad_weights = _view(spare[0, : tile.size], tile, kv)
        # [rows * kv, group * queries, keys]
        grad_weights.baddbmm_(g, _seen(v, tile, sinks).transpose(1, 2), beta=0)
        if dropout:
            grad_weights.mul_(dropped != 0).div_(1 - dropout)
        grad = _view(spare[1, : tile.size], tile, kv)  # gradient of scores
        torch.ops.aten._softmax_backward_data.out(grad_weights, weights, -1, dtype, grad_input=grad)
        # [rows, heads, queries, keys]
        by_head = grad.view(tile.shape)
        if grad_bias_band is not None:
            # [heads, queries, keys]
            summed = by_head[..., :num_keys].sum(0, dtype=accumulate_dtype)
            strips = _strips(grad_bias_band, block, least)
            sizes = [strip.shape[-1] for strip in strips]
            for strip, part in zip(strips, summed.split(sizes, -1), strict=True):
                strip.add_(part)
        if grad_sinks is not None:
            grad_sinks.add_(by_head[..., num_keys].sum((0, 2), dtype=accumulate_dtype))
        if softcap is not None:
            grad = torch.ops.aten.tanh_backward(grad, _view(kept[1, tile.kept], tile, kv))
        block_grad_q = grad.new_empty(*grad.shape[:2], q.shape[-1])
        block_grad_q.baddbmm_(grad, _seen(k, tile, sinks), beta=0, alpha=scale)
        to = grad_q[tile.rows, tile.queries]
        _unrows(to, kv).copy_(_shaped(block_grad_q, to, kv))
        # [rows * kv, keys, group * queries]
        to_keys = grad[..., :num_keys].transpose(1, 2)
        _add_to_keys(grad_k, to_keys, _asking(q, tile, kv), tile, heads, beta)
    # [b, s, kv, width]
    by_token = [x.transpose(1, 2) for x in (grad_k, grad_v)]
    others = [(grad_bias_band, bias_band), (grad_sinks, sinks)]
    cast = [grad.to(like.dtype) for grad, like in others if grad is not None and like is not None]
    return [grad_q, *by_token, *cast]


class Attend(torch.autograd.Function):
    """`attend` and `attend_backward` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        out, *kept = attend(*given)
        save_for_backward(ctx, given, kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return gradients(ctx, attend_backward, grads[0])


def run(*inputs: Any) -> Tensor:
    """Return the outputs of `attend`, with gradients."""
    out: Tensor = Attend.apply(*inputs)  # type: ignore[no-untyped-call]
    return out


def save_for_backward(ctx: Any, given: Sequence[Any], kept: Sequence[Tensor]) -> None:
    """Save the inputs and outputs of `attend` that `gradients` needs."""
    bias_band, sinks, table = given[3:6]
    ctx.save_for_backward(*kept[:3], bias_band, sinks, table, kept[3])
    ctx.how = given[9:13]  # least, scale, softcap, dropout


def gradients(
    ctx: Any, backward: Callable[..., list[Tensor]], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `attend`."""
    learned = ctx.needs_input_grad[3]
    grads = iter(backward(grad, *ctx.saved_tensors, *ctx.how, learned))
    q, k, v = next(grads), next(grads), next(grads)
    bias_band = next(grads) if learned else None
    return q, k, v, bias_band, next(grads, None), *[None] * 9


def _bias_of_block(bias_band: Tensor, block: Block, least: int) -> Tensor:
    """Return a block's columns of the bias, [heads, queries, keys]."""
    parts = _strips(bias_band, block, least)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _strips(bias_band: Tensor, block: Block, least: int) -> list[Tensor]:
    """Return views of the bias for each range of a block's keys, each [heads, queries, keys]."""
    queries, origin = block.stop - block.first, block.first + least
    return [bias_band[:, :queries, keys.start - origin : keys.stop - origin] for keys in block.keys]


def _add_to_keys(
    grad: Tensor, weights: Tensor, x: Tensor, tile: _Tile, heads: slice, beta: int
) -> None:
    """Add weights @ x to a gradient [b, kv, s, d] at a block's keys.

    Shapes: weights [rows * kv, keys, group * queries], x [rows * kv, group * queries, d].
    """
    sizes = [keys.stop - keys.start for keys in tile.keys]
    for keys, part in zip(tile.keys, weights.split(sizes, 1), strict=True):
        # [b * kv, keys, d]
        grad.flatten(0, 1)[heads, keys].baddbmm_(part, x, beta=beta)


def _view(flat: Tensor, tile: _Tile, kv: int) -> Tensor:
    """View a block's memory as [rows * kv, group * queries, keys]."""
    rows, heads, queries, keys = tile.shape
    # [rows * kv, group * queries, keys]
    return flat.view(rows * kv, heads // kv * queries, keys)


def _seen(x: Tensor, tile: _Tile, sinks: Tensor | None) -> Tensor:
    """Return a block's keys [rows * kv, keys, d], contiguous for fast matmuls, with zeros for a sink."""
    parts = [x[tile.rows, :, keys] for keys in tile.keys]
    # [rows, kv, keys, d]
    seen = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    if sinks is not None:
        seen = F.pad(seen, (0, 0, 0, cut.ALIGNED))
    # [rows * kv, keys, d]
    return seen.flatten(0, 1).contiguous()


def _by_head(x: Tensor, scale: float = 1.0) -> Tensor:
    """Copy [b, s, kv, d] to [b, kv, s, d], scaled. Outputs of an operator must not alias its inputs."""
    # [b, kv, s, d]
    by_head = x.transpose(1, 2)
    laid = torch.empty_like(by_head, memory_format=torch.contiguous_format)
    return laid.copy_(by_head) if scale == 1 else torch.mul(by_head, scale, out=laid)


def _asking(x: Tensor, tile: _Tile, kv: int) -> Tensor:
    """Return a block's queries by group, [rows * kv, group * queries, d]."""
    rows, heads, queries, _ = tile.shape
    # [rows * kv, group * queries, d]
    return x[tile.rows, :, tile.queries].reshape(rows * kv, heads // kv * queries, -1)


def _unrows(x: Tensor, kv: int) -> Tensor:
    """View [b, t, h, d] as [b, kv, group, t, d]."""
    # [b, t, kv, group, d]
    grouped: Tensor = x.unflatten(2, (kv, x.shape[2] // kv))
    # [b, kv, group, t, d]
    return grouped.permute(0, 2, 3, 1, 4)


def _shaped(rows: Tensor, like: Tensor, kv: int) -> Tensor:
    """View [b * kv, group * t, d] as [b, kv, group, t, d] for the heads of `like`."""
    batch, _, heads, dim = like.shape
    # [b, kv, group, t, d]
    return rows.view(batch, kv, heads // kv, -1, dim)
