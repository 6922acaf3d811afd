"""Attention in blocks of queries, computed only with the keys that each block may see.

On a CPU this is up to 2.6 times as fast as SDPA, which computes most hidden pairs and has no faster path for bfloat16
(measurements in `machine/rules.py`). Matmuls use the dtype of the inputs, the softmax float32 or float64. The weights
of each block are saved for the backward pass in the dtype of the inputs.
"""

from typing import Any

import torch
from torch import Tensor

from archwright.cpu import blocks as cut
from archwright.cpu import tiles
from archwright.parts.kernels import costs, prepare_dense, register_kernel
from archwright.parts.kernels.scores import ElementwiseBias, ScoreMods
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.leaves import leaf
from archwright.parts.masks import AttentionMask


@leaf(costs.blockwise)
def blockwise(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> Tensor:
    """Reference attention, computed in blocks."""
    if view.kept is not None:  # a cache: few queries, so blocks cost more than they save
        return sdpa(query, key, value, view, scores)
    bias_band, (least, most) = None, _columns(view)
    if scores.bias is not None:
        at = view.layout
        by_distance = isinstance(scores.bias, ElementwiseBias) and scores.bias.by_distance
        # Column differences equal distances only without padding and with default positions.
        if not (by_distance and at.padding_mask is None and at.position_ids is at.index):
            mixed: Tensor = _engine().by_autograd(query, key, value, view, scores)
            return mixed
        bias_band = _bias_band(
            scores.bias, min(cut.BLOCK, view.layout.length), least, most, query.dtype
        )
    blocks = _engine().blocks_of(view)
    inputs = (query, key, value, bias_band, scores.sinks)
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    # Columns are counted from a block's first query among the queries.
    origin = least + view.first_column
    how = (blocks.rows, origin, scores.scale, scores.softcap, scores.dropout, save)
    out: Tensor = _engine().run(*inputs, blocks.table, blocks.mask_bias, blocks.workspace, *how)
    return out


def _engine() -> Any:
    """Return the functions for eager mode, or their wrappers for compiled layers."""
    if not torch.compiler.is_compiling():
        return tiles
    from archwright.cpu import compiled  # loads the compiler, which takes seconds

    return compiled


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


def _columns(view: AttentionMask) -> tuple[int, int]:
    """Return the range of a block's key columns, counted from its first query among the keys."""
    length, lookback, lookahead = view.keys_at.length, view.pattern.lookback, view.pattern.lookahead
    least = -length if lookback is None else max(-length, -lookback - cut.ALIGNED)
    return least, length if lookahead is None else min(length, cut.BLOCK + lookahead)


def _prepare(view: AttentionMask) -> None:
    if view.kept is None:
        cut.blocks_of(view)
    else:
        prepare_dense(view)


register_kernel("blockwise", blockwise, _prepare)
