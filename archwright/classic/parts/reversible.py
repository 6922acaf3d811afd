"""Reversible layers: the backward pass recomputes activations from the output of the last layer."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from archwright.classic.parts.replay import Replay
from archwright.model.model import Layer
from archwright.parts.context import Context, Memory
from archwright.parts.residuals import Branches, Groups, Stream, Streams, Wiring

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


Step = Callable[[Stream], Stream]
"""The sum that a group of branches adds to one stream, as a function of the other stream."""


class Reversible(Wiring):
    """x1, x2 = x2, x1 + f(norm(x2)) for each group f in turn, over streams side by side.

    Shape of x, which is x1 next to x2: [batch, length, 2 dim].

    With attention and a feed-forward: y1 = x1 + attention(x2), y2 = x2 + feedforward(y1).

    Gomez et al., 2017, section 3.1; Kitaev et al., 2020, section 3.
    """

    @staticmethod
    def whole_pass(
        layers: Iterable[Layer], x: Both, context: Context, shared: Iterable[nn.Parameter]
    ) -> Both:
        return read_reversibly(layers, x, context, shared)

    def narrow(self, x: Streams) -> Float[Tensor, "batch length output_dim"]:
        # Both streams, or their mean: [batch, length, 2, dim] to [batch, length, dim]
        return x if self.spec.join == "concat" else x.unflatten(-1, (2, -1)).mean(-2)

    def forward(
        self,
        x: Float[Tensor, "batch length both"],
        groups: Groups,
        context: Context | None = None,
    ) -> Float[Tensor, "batch length both"]:
        """Return both streams after the layer; `context.replay` records the random numbers of each group."""
        replay = None if context is None else context.replay
        first, second = x.chunk(2, -1)
        for step in self.steps(groups):
            with nullcontext() if replay is None else replay.next():
                first, second = second, first + step(second)
        return torch.cat((first, second), -1)

    def steps(self, groups: Groups) -> list[Step]:
        """Return the sum that each group adds to one stream, as a function of the other."""
        return [partial(self._added, name, branches) for name, branches in groups.items()]

    def _added(self, name: str, branches: Branches, x: Stream) -> Stream:
        return reduce(add, self.terms(x.dtype, self.norms[name](x), branches))


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


def _steps(layer: Layer, context: Context) -> list[Step]:
    """Return, for each group of a layer, its sum as a function of the other stream."""
    return cast(Reversible, layer.residual).steps(layer.wired(context))


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
        (i, step) for i, layer in enumerate(record.layers) for step in _steps(layer, record.context)
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
