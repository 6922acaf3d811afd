"""Attention over blocks of queries, each against only the keys that it may see.

On a CPU this is up to 2.6 times as fast as SDPA, which there computes most of what a mask hides and gains nothing from
bfloat16: `machine/rules.py` has the measurements. Products run in the inputs' dtype, the softmax in float32 or wider
inside. A block's weights are kept for the backward pass in the inputs' dtype.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from archwright.cpu import blocks as cut
from archwright.cpu.tiles import LEFT_OUT, Attend
from archwright.parts.kernels import costs, register_kernel
from archwright.parts.kernels.scores import ElementwiseBias, ScoreMods
from archwright.parts.kernels.sdpa import sdpa
from archwright.parts.leaves import leaf
from archwright.parts.masks import AttentionMask


@leaf(costs.blockwise)
def blockwise(
    query: Tensor, key: Tensor, value: Tensor, view: AttentionMask, scores: ScoreMods
) -> Tensor:
    """The same as the reference, block by block."""
    if view.kept is not None:  # few queries: blocks would be more work than they save
        return sdpa(query, key, value, view, scores)
    bias_band, (least, most) = None, _columns(view)
    if scores.bias is not None:
        at = view.layout
        by_distance = isinstance(scores.bias, ElementwiseBias) and scores.bias.by_distance
        # Columns are distances only where positions count them, without padding in between.
        if not (by_distance and at.padding_mask is None and at.position_ids is at.index):
            mixed: Tensor = _outside_compiler("by_autograd")(query, key, value, view, scores)
            return mixed
        bias_band = _bias_band(
            scores.bias, min(cut.BLOCK, view.layout.length), least, most, query.dtype
        )
    blocks = view.__dict__.get("blocks", {}).get("cut") or _outside_compiler("blocks_of")(view)
    given = [x for x in (query, key, value, bias_band, scores.sinks) if x is not None]
    save = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    tensors = (
        query,
        key,
        value,
        bias_band,
        scores.sinks,
        blocks.table,
        blocks.mask_bias,
        blocks.workspace,
    )
    # Columns are counted from a block's first query among the queries.
    how = (
        blocks.rows,
        least + view.first_column,
        scores.scale,
        scores.softcap,
        scores.dropout,
        save,
    )
    out: Tensor
    if torch.compiler.is_compiling():
        from archwright.cpu import compiled

        out = compiled.attend(*tensors, *how)[0]
    else:
        out = Attend.apply(*tensors, *how)  # type: ignore[no-untyped-call]
    return out


def _outside_compiler(name: str) -> Callable[..., Any]:
    """Return what depends on data, which a compiler cannot follow: it is disabled for that, and goes on behind.

    To disable it loads all of it, which takes seconds, so that is done only where it is at work.
    """
    if torch.compiler.is_compiling():
        from archwright.cpu import compiled

        left_out: Callable[..., Any] = compiled.LEFT_OUT[name]
        return left_out
    return LEFT_OUT[name]


def _bias_band(bias: Any, queries: int, least: int, most: int, dtype: torch.dtype) -> Tensor:
    """Return the bias of a block's queries at the columns least .. most - 1, counted from its first query:
    [heads, queries, columns]. Every block reads its part of it."""
    by_distance = bias.at_distances(least - queries + 1, most + 1).to(dtype)
    # As rows of one number less, copies of a row move by one column from query to query.
    # [heads, queries * distances]
    copies = by_distance[:, None].expand(-1, queries, -1).flatten(1)
    # [heads, queries, distances - 1]
    moved: Tensor = copies[:, :-queries].unflatten(1, (queries, -1))
    return moved[..., queries - 1 :]


def _columns(view: AttentionMask) -> tuple[int, int]:
    """Return between which columns a block's keys lie, counted from its first query among the keys."""
    length, lookback, lookahead = view.keys_at.length, view.pattern.lookback, view.pattern.lookahead
    least = -length if lookback is None else max(-length, -lookback - cut.ALIGNED)
    return least, length if lookahead is None else min(length, cut.BLOCK + lookahead)


def _prepare(view: AttentionMask) -> None:
    if view.kept is None:
        cut.blocks_of(view)


register_kernel("blockwise", blockwise, _prepare)
