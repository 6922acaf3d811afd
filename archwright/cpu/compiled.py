"""Attention in blocks for compiled layers: one opaque operator.

Import it only during compilation. It loads the compiler, which takes seconds.
"""

from typing import Any

import torch
from torch import Tensor

from archwright.cpu import tiles
from archwright.cpu.blocks import Blocks, has_blocks
from archwright.parts.masks import AttentionMask

attend = torch.library.custom_op("archwright::attend", tiles.attend, mutates_args=())
attend_backward = torch.library.custom_op(
    "archwright::attend_backward", tiles.attend_backward, mutates_args=()
)


@attend.register_fake
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
    return out, q, k, v, tiles.workspace_for(query, workspace, rows, sinks, softcap, dropout, save)


@attend_backward.register_fake
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


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # only the first output has a gradient
    tiles.save_for_backward(ctx, inputs, output[1:])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    return (None,) * 14 if grad is None else tiles.gradients(ctx, attend_backward, grad)


attend.register_autograd(_backward, setup_context=_setup)

by_autograd = torch.compiler.disable(tiles.by_autograd)
_cut = torch.compiler.disable(tiles.blocks_of)


def run(*inputs: Any) -> Tensor:
    """`tiles.run` as one operator of the graph."""
    out: Tensor = attend(*inputs)[0]
    return out


def blocks_of(view: AttentionMask) -> Blocks:
    """Return prepared blocks, or compute them outside the graph."""
    blocks: Blocks = tiles.blocks_of(view) if has_blocks(view) else _cut(view)
    return blocks
