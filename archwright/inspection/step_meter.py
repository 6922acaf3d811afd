"""Time per part of a model in a training step, by phase."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

from archwright.model.model import Decoder
from archwright.parts.kernels import Kernel
from archwright.parts.norms import NORMS
from archwright.planning.counter import OTHER, PartStack, followed

PHASES = ("forward", "backward", "update")
Times = dict[tuple[str, str], float]
"""Seconds by (part, phase)."""

KERNEL = "attention kernel"
PARTS = (
    "embedding",
    "positions",
    "norms",
    "attention projections",
    KERNEL,
    "feed-forward",
    "residual adds",
    "head",
    "loss",
    "optimizer",
    OTHER,
)
"""Parts in table order."""


class StepMeter(PartStack):
    """Stack of active parts that records the time of every change."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._marks: list[tuple[Any, str, str]] = []

    def begin(self) -> None:
        """Discard all measurements and start the forward phase."""
        self._marks, self._stretches = [], []
        self.begin_phase("forward")

    def begin_phase(self, phase: str) -> None:
        """Begin a phase. Time since the last change counts for no part."""
        self.phase = phase
        self._marks.append((self._now(), "", phase))

    def enter(self, part: str, layer: int | None = None) -> None:
        self._mark()
        super().enter(part, layer)

    def leave(self) -> None:
        self._mark()
        super().leave()

    def times(self) -> Times:
        """Return the seconds of each part and phase since `begin`."""
        self._mark()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        on_gpu = self.device.type == "cuda"  # CUDA events measure milliseconds
        times: Times = defaultdict(float)
        for (before, _, _), (now, part, phase) in zip(self._marks, self._marks[1:], strict=False):
            if part:
                times[part, phase] += before.elapsed_time(now) / 1e3 if on_gpu else now - before
        return times

    def _mark(self) -> None:
        self._marks.append((self._now(), self.part, self.phase))

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@contextmanager
def metered(model: Decoder, meter: StepMeter) -> Iterator[None]:
    """Attach a meter to the parts of a model."""
    with ExitStack() as attached:
        attached.enter_context(followed(parts_of(model), meter))
        for module in model.modules():
            if isinstance(kernel := vars(module).get("kernel"), Kernel):
                timed = kernel._replace(run=_timed(kernel.run, KERNEL, meter))
                _set(module, "kernel", timed, attached)
        for rotary in chain(*(stack.rotaries.values() for stack in model.stacks)):
            for name in ("rotate_query", "rotate_key"):
                timed_rotation = _timed(getattr(rotary, name), "positions", meter)
                _set(rotary, name, timed_rotation, attached)
        yield


def parts_of(model: Decoder) -> Iterator[tuple[str, nn.Module]]:
    """Yield parts and their modules, outer modules before inner ones."""
    yield "head", model.head
    for stack in model.stacks:
        yield from (("embedding", m) for m in (stack.embedding, stack.project_in) if m is not None)
        positions = (stack.position, *stack.rotaries.values())
        yield from (("positions", m) for m in positions if m is not None)
    for layer in dict.fromkeys(model.all_layers):  # shared layers appear repeatedly
        yield "residual adds", layer  # except its branches and norms
        for name in layer.branches:
            part = "feed-forward" if name == "feedforward" else "attention projections"
            yield part, layer.get_submodule(name)
    norms = tuple(
        part
        for part in NORMS.values()
        if isinstance(part, type) and not issubclass(part, nn.Identity)
    )
    yield from (("norms", m) for m in model.modules() if isinstance(m, norms))


def _timed(function: Callable[..., Any], part: str, meter: StepMeter) -> Callable[..., Any]:
    """Return a function that charges its time to a part."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        with meter.region(part):
            return function(*args, **kwargs)

    return timed


def _set(module: nn.Module, name: str, value: Any, attached: ExitStack) -> None:
    """Set an attribute of a module until `attached` closes."""
    before, is_set = getattr(module, name), name in vars(module)
    setattr(module, name, value)
    attached.callback(*((setattr, module, name, before) if is_set else (delattr, module, name)))
