"""Which part of a model is at work at each moment of a step, forward and backward, and for how long."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from archwright.model.decoder import Decoder
from archwright.parts.norms import NORMS

PHASES = ("forward", "backward", "update")
Times = dict[tuple[str, str], float]
"""Seconds by part and phase."""

OTHER = "other"
"""All that no part claims: sums of gradients where a value was used twice, and the engine between parts."""

PARTS = (
    "embedding",
    "positions",
    "norms",
    "attention projections",
    "attention kernel",
    "feed-forward",
    "residual adds",
    "head",
    "loss",
    "optimizer",
    OTHER,
)
"""Parts in the order of a table."""


class StepMeter:
    """A stack of the parts at work. Time belongs to the innermost, from one change to the next.

    The backward pass is known by its forward: autograd numbers operations as they come, and each node
    of the graph carries its number, which lies in the stretch of a part.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.phase = device, "forward"
        self._stack: list[str] = [OTHER]
        self._marks: list[tuple[Any, str, str]] = []
        self._stretches: list[tuple[int, str]] = []

    @property
    def part(self) -> str:
        """The part at work."""
        return self._stack[-1]

    def begin(self) -> None:
        """Forget what was measured, and start."""
        self._marks, self._stretches = [], []
        self.begin_phase("forward")

    def begin_phase(self, phase: str) -> None:
        """Begin a phase; what passed since the last change belongs to nobody."""
        self.phase = phase
        self._marks.append((self._now(), "", phase))

    def enter(self, part: str) -> None:
        """Say that a part begins."""
        self._mark()
        self._stack.append(part)
        self._stretch()

    def leave(self) -> None:
        """Say that the innermost part has ended."""
        self._mark()
        self._stack.pop()
        self._stretch()

    @contextmanager
    def region(self, part: str) -> Iterator[None]:
        """Give the time of a block to a part."""
        self.enter(part)
        try:
            yield
        finally:
            self.leave()

    def time_backward(self, loss: Tensor) -> None:
        """Measure the backward pass of a loss whose forward pass was measured."""
        starts = [number for number, _ in self._stretches]
        for node in _nodes(loss.grad_fn):
            place = bisect_right(starts, node._sequence_nr()) - 1
            if type(node).__name__ != "AccumulateGrad" and place >= 0:
                part = self._stretches[place][1]
                node.register_prehook(lambda *_, part=part: self.enter(part))
                node.register_hook(lambda *_: self.leave())

    def times(self) -> Times:
        """Return the seconds of each part and phase since the beginning."""
        self._mark()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        on_gpu = self.device.type == "cuda"  # whose events give milliseconds
        found: Times = defaultdict(float)
        for (before, _, _), (now, part, phase) in zip(self._marks, self._marks[1:], strict=False):
            if part:
                found[part, phase] += before.elapsed_time(now) / 1e3 if on_gpu else now - before
        return found

    def _mark(self) -> None:
        self._marks.append((self._now(), self.part, self.phase))

    def _stretch(self) -> None:
        if self.phase == "forward":
            number = torch._C._autograd._get_sequence_nr()
            self._stretches.append((number, self.part))

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@contextmanager
def metered(model: Decoder, meter: StepMeter) -> Iterator[None]:
    """Let the parts of a model tell a meter when they work."""
    with ExitStack() as attached:
        for module, part in parts_of(model):
            before = module.register_forward_pre_hook(lambda m, x, part=part: meter.enter(part))
            after = module.register_forward_hook(lambda m, x, out: meter.leave())
            attached.callback(before.remove)
            attached.callback(after.remove)
        for module in model.modules():
            if "kernel" in vars(module):
                _meter_function(module, "kernel", "attention kernel", meter, attached)
        for rotary in chain(*(stack.rotaries.values() for stack in model.stacks)):
            for name in ("rotate_query", "rotate_key"):
                _meter_function(rotary, name, "positions", meter, attached)
        yield


def parts_of(model: Decoder) -> Iterator[tuple[nn.Module, str]]:
    """Yield modules and the parts they are, outer ones before inner ones."""
    yield model.head, "head"
    for stack in model.stacks:
        if stack.embedding is not None:
            yield stack.embedding, "embedding"
        if stack.project_in is not None:
            yield stack.project_in, "embedding"
        for module in (stack.position, *stack.rotaries.values()):
            if module is not None:
                yield module, "positions"
    for layer in dict.fromkeys(model.all_layers):  # one that is shared comes more than once
        yield layer, "residual adds"  # all of it that its branches and norms do not claim
        for name in layer.branches:
            part = "feed-forward" if name == "feedforward" else "attention projections"
            yield layer.get_submodule(name), part
    norms = tuple(
        part
        for part in NORMS.values()
        if isinstance(part, type) and not issubclass(part, nn.Identity)
    )
    yield from ((m, "norms") for m in model.modules() if isinstance(m, norms))


def _meter_function(
    module: nn.Module, name: str, part: str, meter: StepMeter, attached: ExitStack
) -> None:
    """Let a function of a module tell a meter when it works, until `attached` is closed."""
    function, own = getattr(module, name), name in vars(module)

    def metered(*args: Any, **more: Any) -> Any:
        with meter.region(part):
            return function(*args, **more)

    setattr(module, name, metered)
    attached.callback(*((setattr, module, name, function) if own else (delattr, module, name)))


def _nodes(root: Any) -> Iterator[Any]:
    """Yield all nodes of an autograd graph."""
    known, waiting = {root}, [root]
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                waiting.append(following)
