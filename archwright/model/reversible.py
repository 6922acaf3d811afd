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
"""Two streams side by side."""


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
    own = [parameter for layer in layers for parameter in layer.parameters()]
    parameters = [p for p in dict.fromkeys([*own, *shared]) if p.requires_grad]
    given = _Pass(layers, context, Replay(x.device) if training else None, parameters)
    memory = context.memory.output if context.has_memory else None
    found: Tensor = _Reversed.apply(given, x, memory, *parameters)  # type: ignore[no-untyped-call]
    return found


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
        return torch.autocast(self.device.type, self._dtype, cache_enabled=False)


class _Reversed(torch.autograd.Function):
    """All layers as one operation, which stores the last streams and the decisions of mixers."""

    @staticmethod
    def forward(ctx: Any, given: _Pass, x: Tensor, memory: Tensor | None, *_: Tensor) -> Tensor:
        context = given.context
        context.decisions, context.replay = {}, given.replay
        with given.autocast():
            for context.layer_number, layer in enumerate(given.layers):
                layer.prepare(context)
                x = layer(x, context, None)
        ctx.given, ctx.deciders, ctx.has_memory = given, [*context.decisions], memory is not None
        ctx.save_for_backward(x, memory, *context.decisions.values())
        context.decisions = context.replay = None
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given, (out, memory, *decisions) = ctx.given, ctx.saved_tensors
        given.context.decisions = dict(zip(ctx.deciders, decisions, strict=True))
        leaves: list[Tensor] = []
        if memory is not None:  # layers read it from the context
            leaves.append(memory.detach().requires_grad_())
            given.context.memory = Memory(leaves[0], given.context.memory.layout)
        grad_x, sums = _backward(given, out, grad, [*leaves, *given.parameters])
        given.context.decisions = None
        of_memory = [] if leaves else [None]
        return None, grad_x, *of_memory, *sums


def _backward(
    given: _Pass, out: Tensor, grad: Tensor, wanted: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the gradients of the first streams and of the tensors in `wanted`."""
    first, second = out.chunk(2, -1)
    grad_first, grad_second = grad.chunk(2, -1)
    sums: dict[Tensor, Tensor] = {}
    steps = [
        (i, step) for i, layer in enumerate(given.layers) for step in layer.steps(given.context)
    ]
    for number, (given.context.layer_number, step) in reversed([*enumerate(steps)]):
        own = {*given.layers[given.context.layer_number].parameters()}
        read = [t for t in wanted if t in own or t not in given.of_layers]
        with torch.enable_grad(), given.autocast():
            x = first.detach().requires_grad_()
            with nullcontext() if given.replay is None else given.replay.at(number):
                added = step(x)
        grads = torch.autograd.grad(added, [x, *read], grad_second, allow_unused=True)
        first, second = second - added.detach(), first
        grad_first, grad_second = grad_second, grad_first + grads[0]
        for tensor, more in zip(read, grads[1:], strict=True):
            if more is not None:
                sums[tensor] = sums[tensor] + more if tensor in sums else more
    return torch.cat((grad_first, grad_second), -1), [sums.get(tensor) for tensor in wanted]
