"""Reversible layers: the backward pass recomputes activations from the output of the last layer."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archwright.model.layer import Layer
from archwright.parts.context import Context, Memory
from archwright.parts.replay import Replay

Both = Float[Tensor, "batch length both"]
"""Two residual streams, concatenated in the last dimension."""


def read_reversibly(
    layers: Iterable[Layer], x: Both, context: Context, shared: Iterable[nn.Parameter] = ()
) -> Both:
    """Return both streams after reversible layers. Only their final values are stored for the backward pass.

    The input of a layer is its output minus the sums of its branches, up to rounding, so streams should be float32 or
    wider. The recomputation repeats random numbers, and reads stored decisions of mixers, such as hash buckets.

    Args:
        shared: Parameters outside of layers that layers use.
    """
    layers = list(layers)
    training = any(layer.training for layer in layers)
    inner = [parameter for layer in layers for parameter in layer.parameters()]
    parameters = [p for p in dict.fromkeys([*inner, *shared]) if p.requires_grad]
    record = _Pass(layers, context, Replay(x.device) if training else None, parameters)
    memory = context.memory.output if context.has_memory else None
    out: Tensor = _Reversed.apply(record, x, memory, *parameters)  # type: ignore[no-untyped-call]
    return out


@dataclass
class _Pass:
    """Arguments of a pass through reversible layers."""

    layers: Sequence[Layer]
    context: Context
    replay: Replay | None
    parameters: Sequence[nn.Parameter]

    def __post_init__(self) -> None:
        self.of_layers = {p for layer in self.layers for p in layer.parameters()}
        self.device = next(p.device for layer in self.layers for p in layer.parameters())
        kind = self.device.type
        self._autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        self._dtype = torch.get_autocast_dtype(kind) if self._autocasts else None

    def autocast(self) -> Any:
        """Use the autocast of the forward pass, without its cache: casts made without gradients must not be reused."""
        if not self._autocasts:
            return nullcontext()
        # Weights cast without gradients must not be reused with gradients.
        return torch.autocast(self.device.type, self._dtype, cache_enabled=False)


class _Reversed(torch.autograd.Function):
    """All layers as one operation, which stores the last streams and the decisions of mixers."""

    @staticmethod
    def forward(ctx: Any, record: _Pass, x: Tensor, memory: Tensor | None, *_: Tensor) -> Tensor:
        context = record.context
        context.decisions, context.replay = {}, record.replay
        with record.autocast():
            for context.layer_number, layer in enumerate(record.layers):
                layer.prepare(context)
                x = layer(x, context, None)
        ctx.record, ctx.deciders, ctx.has_memory = record, [*context.decisions], memory is not None
        ctx.save_for_backward(x, memory, *context.decisions.values())
        context.decisions = context.replay = None
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        record, (out, memory, *decisions) = ctx.record, ctx.saved_tensors
        record.context.decisions = dict(zip(ctx.deciders, decisions, strict=True))
        leaves: list[Tensor] = []
        if memory is not None:  # layers read it from the context
            leaves.append(memory.detach().requires_grad_())
            record.context.memory = Memory(leaves[0], record.context.memory.layout)
        grad_x, sums = _backward(record, out, grad, [*leaves, *record.parameters])
        record.context.decisions = None
        of_memory = [] if leaves else [None]
        return None, grad_x, *of_memory, *sums


def _backward(
    record: _Pass, out: Tensor, grad: Tensor, wanted: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the gradients of the first streams and of the tensors in `wanted`."""
    first, second = out.chunk(2, -1)
    grad_first, grad_second = grad.chunk(2, -1)
    sums: dict[Tensor, Tensor] = {}
    steps = [
        (i, step) for i, layer in enumerate(record.layers) for step in layer.steps(record.context)
    ]
    for number, (record.context.layer_number, step) in reversed([*enumerate(steps)]):
        inner = {*record.layers[record.context.layer_number].parameters()}
        read = [t for t in wanted if t in inner or t not in record.of_layers]
        with torch.enable_grad(), record.autocast():
            x = first.detach().requires_grad_()
            with nullcontext() if record.replay is None else record.replay.at(number):
                added = step(x)
        grads = torch.autograd.grad(added, [x, *read], grad_second, allow_unused=True)
        first, second = second - added.detach(), first
        grad_first, grad_second = grad_second, grad_first + grads[0]
        for tensor, more in zip(read, grads[1:], strict=True):
            if more is not None:
                sums[tensor] = sums[tensor] + more if tensor in sums else more
    return torch.cat((grad_first, grad_second), -1), [sums.get(tensor) for tensor in wanted]
