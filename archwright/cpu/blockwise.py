"""Attention in blocks of queries, computed only with the keys that each block may see.

On a CPU this is up to 2.6 times as fast as SDPA, which computes most hidden pairs and has no faster path for bfloat16
(measurements in `machine/rules.py`). Matmuls use the dtype of the inputs, the softmax float32 or float64. The weights
of each block are saved for the backward pass in the dtype of the inputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from archwright.cpu import blocks as cut
from archwright.cpu.blocks import (
    Block,
    grouped,
    keys_of,
    matrix_of,
    queries_of,
    shaped,
    strips_of,
    tiles_of,
)
from archwright.cpu.gradients import (
    attend_backward,
    backward_operator,
    by_autograd,
    input_gradients,
)
from archwright.parts.kernels import KERNELS, Kernel, costs, prepare_dense
from archwright.parts.kernels.scores import ElementwiseBias, ScoreMods
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.leaves import leaf
from archwright.parts.masks import AttentionMask


@leaf(costs.blockwise)
def blockwise(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Reference attention, computed in blocks."""
    if mask.kept is not None:  # a cache: few queries, so blocks cost more than they save
        return sdpa(query, key, value, mask, scores)
    if mask.second is not None and mask.whole is not None and scores.bias is None:
        parts = mask.ranges_of_columns(0, mask.layout.length)
        queries = query.split([stop - first for first, stop in parts], 1)
        whole = mask.whole
        masks = mask.once("parts", lambda _: [whole.of_columns(*part) for part in parts])
        each = [blockwise(q, key, value, m, scores) for q, m in zip(queries, masks, strict=True)]
        return torch.cat(each, 1)
    bias_band, (least, most) = None, _columns(mask)
    if scores.bias is not None:
        at = mask.layout
        by_distance = isinstance(scores.bias, ElementwiseBias) and scores.bias.by_distance
        # Column differences equal distances only without padding and with default positions.
        regular = at.padding_mask is None and at.position_ids is at.index
        if not (by_distance and regular and mask.second is None):
            mixed: Tensor = _outside_graph(by_autograd, query, key, value, mask, scores)
            return mixed
        bias_band = _bias_band(
            scores.bias, min(cut.BLOCK, mask.layout.length), least, most, query.dtype
        )
    computed = cut.has_blocks(mask)
    blocks = cut.blocks_of(mask) if computed else _outside_graph(cut.blocks_of, mask)
    inputs = (query, key, value, bias_band, scores.sinks)
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    # Columns are counted from a block's first query among the queries.
    origin = least + mask.first_column
    how = (blocks.rows, origin, scores.scale, scores.softcap, scores.dropout, save)
    out: Tensor = _run(*inputs, blocks.table, blocks.mask_bias, blocks.workspace, *how)
    return out


def _outside_graph(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function outside of the graph of a compiled layer."""
    if not torch.compiler.is_compiling():
        return function(*args)
    from archwright.cpu import compiled  # loads the compiler, which takes seconds

    return compiled.outside_graph(function, *args)


def _bias_band(bias: Any, queries: int, least: int, most: int, dtype: torch.dtype) -> Tensor:
    """Return the bias of a block's queries at columns least .. most - 1: [heads, queries, columns].

    Columns are counted from the block's first query, so one tensor serves all blocks.
    """
    by_distance = bias.at_distances(least - queries + 1, most + 1).to(dtype)
    # With rows one number shorter, copies of a row shift by one column per query.
    # [heads, queries * distances]
    copies = by_distance[:, None].expand(-1, queries, -1).flatten(1)
    # [heads, queries, distances - 1]
    moved: Tensor = copies[:, :-queries].unflatten(1, (queries, -1))
    return moved[..., queries - 1 :]


def _columns(mask: AttentionMask) -> tuple[int, int]:
    """Return the range of a block's key columns, counted from its first query among the keys."""
    length, lookback, lookahead = mask.keys_at.length, mask.pattern.lookback, mask.pattern.lookahead
    least = -length if lookback is None else max(-length, -lookback - cut.ALIGNED)
    return least, length if lookahead is None else min(length, cut.BLOCK + lookahead)


def _prepare(mask: AttentionMask) -> None:
    if mask.kept is None:
        cut.blocks_of(mask)
    else:
        prepare_dense(mask)


def _run(*inputs: Any) -> Tensor:
    """Return the outputs of `attend`, with gradients; compiled layers call one opaque operator."""
    if torch.compiler.is_compiling():
        out: Tensor = attend_operator(*inputs)[0]
        return out
    eager: Tensor = Attend.apply(*inputs)  # type: ignore[no-untyped-call]
    return eager


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
    tiles = list(tiles_of(query, table, sinks))
    kept = workspace_for(query, workspace, rows, sinks, softcap, dropout, save)
    spare = query.new_empty(max(p.size for p in tiles))
    for tile in tiles:
        scores = matrix_of(spare[: tile.size], tile, kv)
        # [rows * kv, d, keys]
        to_keys = keys_of(k, tile, sinks).transpose(1, 2)
        added = bias_band is not None and softcap is None and sinks is None
        if bias_band is not None and added:  # saves one pass: the matmul accumulates into the bias
            # [rows, heads, queries, keys]
            scores.view(tile.shape).copy_(_bias_of_block(bias_band, tile.block, least))
        factor = 1 / (softcap or 1)
        scores.baddbmm_(queries_of(q, tile, kv), to_keys, beta=int(added), alpha=factor)
        if softcap is not None:  # torch has a fast tanh only in float32
            capped = scores.to(torch.promote_types(scores.dtype, torch.float32)).tanh_()
            scores.copy_(capped)
            if save:
                matrix_of(kept[1, tile.kept], tile, kv).copy_(scores)
            scores.mul_(softcap)
        bias = None if added else bias_band
        # [rows, heads, queries, keys]
        _add_to(scores.view(tile.shape), tile.block, bias, least, mask_bias, sinks)
        weights = torch.softmax(
            scores, -1, out=matrix_of(kept[0, tile.kept], tile, kv) if save else scores
        )
        if dropout:
            weights = F.dropout(weights, dropout)
            if save:
                matrix_of(kept[-1, tile.kept], tile, kv).copy_(weights)
        mixed = torch.bmm(weights, keys_of(v, tile, sinks))
        to = out[tile.rows, tile.queries]
        grouped(to, kv).copy_(shaped(mixed, to, kv))
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


def _bias_of_block(bias_band: Tensor, block: Block, least: int) -> Tensor:
    """Return a block's columns of the bias, [heads, queries, keys]."""
    parts = strips_of(bias_band, block, least)
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _by_head(x: Tensor, scale: float = 1.0) -> Tensor:
    """Copy [b, s, kv, d] to [b, kv, s, d], scaled. Outputs of an operator must not alias its inputs."""
    # [b, kv, s, d]
    by_head = x.transpose(1, 2)
    laid = torch.empty_like(by_head, memory_format=torch.contiguous_format)
    return laid.copy_(by_head) if scale == 1 else torch.mul(by_head, scale, out=laid)


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


class Attend(torch.autograd.Function):
    """`attend` and `attend_backward` for autograd in eager mode."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        out, *kept = attend(*given)
        save_for_backward(ctx, given, kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return input_gradients(ctx, attend_backward, grads[0])


def save_for_backward(ctx: Any, given: Sequence[Any], kept: Sequence[Tensor]) -> None:
    """Save the inputs and outputs of `attend` that `input_gradients` needs."""
    bias_band, sinks, table = given[3:6]
    ctx.save_for_backward(*kept[:3], bias_band, sinks, table, kept[3])
    ctx.how = given[9:13]  # least, scale, softcap, dropout


attend_operator = torch.library.custom_op("archwright::attend", attend, mutates_args=())


@attend_operator.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias_band: Tensor | None,
    sinks: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    _, _, workspace, rows, _, _, softcap, dropout, save = rest
    out = query.new_empty(*query.shape[:3], value.shape[-1])
    # [b, heads, t, d]
    q, k, v = (x.new_empty(x.transpose(1, 2).shape) for x in (query, key, value))
    return out, q, k, v, workspace_for(query, workspace, rows, sinks, softcap, dropout, save)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    save_for_backward(ctx, inputs, output[1:])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    return (None,) * 14 if grad is None else input_gradients(ctx, backward_operator, grad)


attend_operator.register_autograd(_backward, setup_context=_setup)

KERNELS["blockwise"] = Kernel(blockwise, _prepare)
