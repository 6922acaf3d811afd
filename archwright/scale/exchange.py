"""Collectives with gradients: all-reduce, all-gather, reduce-scatter and all-to-all."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

# torch 2.13 deprecates the old names.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Pass = Literal["same", "share", "sum", "own", "own_sum", "all", "own_columns", "all_columns"]
"""Operation on a local tensor x [batch, tokens, ...].

- same: x
- share: x / world size
- sum: all-reduce
- own: the local chunk of the tokens, padded with zeros
- own_sum: reduce-scatter of the tokens, padded with zeros
- all: all-gather of the tokens
- own_columns: the local chunk of the last axis
- all_columns: all-gather of the last axis
"""


def exchanged(
    x: Tensor, group: dist.ProcessGroup, forward: Pass, backward: Pass, length: int = 0
) -> Tensor:
    """Apply one operation to a tensor and another one to its gradient.

    Args:
        length: Number of tokens on all ranks; required by the operations on tokens.
    """
    y: Tensor = _Exchange.apply(x, group, forward, backward, length)  # type: ignore[no-untyped-call]
    return y


class _Exchange(torch.autograd.Function):
    """Operation with another one as its backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup, forward: Pass, backward: Pass, length: int
    ) -> Tensor:
        ctx.group, ctx.backward_pass, ctx.length = group, backward, length
        return _passed(x, group, forward, length)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _passed(grads[0], ctx.group, ctx.backward_pass, ctx.length), *(None,) * 4


def _passed(x: Tensor, group: dist.ProcessGroup, operation: Pass, length: int) -> Tensor:
    """Return the result of an operation on x [batch, tokens, ...]."""
    size, rank = group.size(), group.rank()
    if operation in ("own", "own_sum") and (missing := -x.shape[1] % size):
        x = F.pad(x, (*(0, 0) * (x.ndim - 2), 0, missing))
    match operation:
        case "sum":
            total = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total
        case "share":
            return x / size
        case "all":
            return gathered(x, 1, group)[:, :length]
        case "own":
            return x.chunk(size, 1)[rank].contiguous()
        case "own_sum":
            tokens_first = x.movedim(1, 0).contiguous()  # [tokens, batch, ...]
            local = x.new_empty(len(tokens_first) // size, *tokens_first.shape[1:])
            _reduce_scatter(local, tokens_first, group=group)
            return local.movedim(0, 1)  # [batch, local tokens, ...]
        case "own_columns":
            return x.chunk(size, -1)[rank].contiguous()
        case "all_columns":
            return gathered(x, -1, group)
        case _:
            return x.view_as(x)


def gathered(local: Tensor, axis: int, group: dist.ProcessGroup) -> Tensor:
    """All-gather tensors of equal shapes along an axis, without a gradient."""
    local = local.movedim(axis, 0).contiguous()
    gathered_first = local.new_empty(len(local) * group.size(), *local.shape[1:])
    _gather(gathered_first, local, group=group)
    return gathered_first.movedim(0, axis)


def add_up(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    """All-reduce tensors of one dtype in place, in a single operation."""
    if not tensors:
        return
    total = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(total, group=group)
    parts = total.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


def sent_rows(
    x: Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """All-to-all of rows; gradients take the reverse way.

    Args:
        received: Number of rows from each rank.
        sent: Number of rows to each rank.
    """
    y: Tensor = _SentRows.apply(x, received, sent, group)  # type: ignore[no-untyped-call]
    return y


class _SentRows(torch.autograd.Function):
    """All-to-all of rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        return all_to_all(x, received, sent, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return all_to_all(grads[0], ctx.sent, ctx.received, ctx.group), *(None,) * 3


def all_to_all(
    x: Tensor, received: Sequence[int], sent: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """All-to-all of rows, without a gradient."""
    out = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), [*received], [*sent], group=group)
    return out
