"""Attention in blocks inside compiled layers: one operator, which the compiler takes whole.

To be imported where the compiler is at work: it loads all of it, which takes seconds.
"""

from typing import Any

import torch
from torch import Tensor

from archwright.cpu.tiles import LEFT_OUT as CALLS
from archwright.cpu.tiles import attend as plain_attend
from archwright.cpu.tiles import attend_backward as plain_backward
from archwright.cpu.tiles import gradients, save_for_backward, workspace_for

attend = torch.library.custom_op("archwright::attend", plain_attend, mutates_args=())
attend_backward = torch.library.custom_op(
    "archwright::attend_backward", plain_backward, mutates_args=()
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
    return out, q, k, v, workspace_for(query, workspace, rows, sinks, softcap, dropout, save)


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
    ctx.set_materialize_grads(False)  # of what is kept
    save_for_backward(ctx, inputs, output[1:])


def _backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    return (None,) * 14 if grad is None else gradients(ctx, attend_backward, grad)


attend.register_autograd(_backward, setup_context=_setup)

LEFT_OUT: dict[str, Any] = {name: torch.compiler.disable(call) for name, call in CALLS.items()}
"""Functions that the compiler must leave as they are."""
