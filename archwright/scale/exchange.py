"""What processes of a group do with a tensor that each has or makes a part of, and with its gradient."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

# torch 2.13 gives them other names, and warns of these.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Pass = Literal["same", "share", "sum", "own", "own_sum", "all", "own_columns", "all_columns"]


def exchanged(
    x: Tensor, group: dist.ProcessGroup, forward: Pass, backward: Pass, length: int = 0
) -> Tensor:
    """Return what processes of a group make of a tensor, and let them make something else of its gradient.

    Args:
        length: tokens of all processes, where these are dealt out.
    """
    y: Tensor = _Exchange.apply(x, group, forward, backward, length)  # type: ignore[no-untyped-call]
    return y


class _Exchange(torch.autograd.Function):
    """What processes do with a tensor, and what they do with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup, forward: Pass, backward: Pass, length: int
    ) -> Tensor:
        ctx.group, ctx.backward_pass, ctx.length = group, backward, length
        return _passed(x, group, forward, length)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _passed(grads[0], ctx.group, ctx.backward_pass, ctx.length), *(None,) * 4


def _passed(x: Tensor, group: dist.ProcessGroup, how: Pass, length: int) -> Tensor:
    """Return what a process has of x [batch, tokens, ...] afterwards.

    same: x. share: a part of it, as large in each process. sum: the sum over processes. own: the tokens of this one,
    of `length`, filled up with zeros. own_sum: these of the sum. all: the tokens of all. And so with columns.
    """
    match how:
        case "sum":
            total = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total
        case "share":
            return x / group.size()
        case "all":
            return gathered(x, 1, group)[:, :length]
        case "own":
            return _filled_up(x, group.size()).chunk(group.size(), 1)[group.rank()].contiguous()
        case "own_sum":
            # [tokens, batch, dim]
            rows = _filled_up(x, group.size()).movedim(1, 0).contiguous()
            own = rows.new_empty(len(rows) // group.size(), *rows.shape[1:])
            _reduce_scatter(own, rows, group=group)
            return own.movedim(0, 1)
        case "own_columns":
            return x.chunk(group.size(), -1)[group.rank()].contiguous()
        case "all_columns":
            return gathered(x, -1, group)
        case _:
            return x.view_as(x)


def _filled_up(x: Tensor, size: int) -> Tensor:
    missing = -x.shape[1] % size
    return F.pad(x, (*(0, 0) * (x.ndim - 2), 0, missing)) if missing else x


def gathered(own: Tensor, axis: int, group: dist.ProcessGroup) -> Tensor:
    """Return the parts of all processes behind each other along an axis."""
    own = own.movedim(axis, 0).contiguous()
    whole = own.new_empty(len(own) * group.size(), *own.shape[1:])
    _gather(whole, own, group=group)
    return whole.movedim(0, axis)


def add_up(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Replace tensors by their sums over processes."""
    if not tensors:
        return
    total = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(total, group=group)
    parts = total.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def sent_rows(
    x: Tensor, received: Sequence[int], given: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Return the rows that processes have for this one, which sends them its own; so many from and to each."""
    y: Tensor = _Sent.apply(x, received, given, group)  # type: ignore[no-untyped-call]
    return y


class _Sent(torch.autograd.Function):
    """Rows sent to other processes, whose gradients come back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, received: Sequence[int], given: Sequence[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.received, ctx.given, ctx.group = received, given, group
        return sent(x, received, given, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return sent(grads[0], ctx.given, ctx.received, ctx.group), *(None,) * 3


def sent(
    x: Tensor, received: Sequence[int], given: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Return the rows that processes have for this one, without a gradient."""
    out = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), [*received], [*given], group=group)
    return out
