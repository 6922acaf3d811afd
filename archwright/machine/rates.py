"""How fast this machine computes what models are made of: products by their shape, and what moves bytes by its size.

All is measured on operators alone, never on a model, and kept for a week. What lies between two measured shapes is
weighed by how near they are, on a log scale.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from archwright.machine.decide import machine_facts
from archwright.machine.disturbance import preemptions
from archwright.machine.precision import DTYPES
from archwright.machine.timing_cache import measured

Shape = tuple[int, ...]

MAPS = tuple(
    (m, k, n)
    for m in (1, 32, 512, 4096)
    for k, n in ((256, 256), (256, 1024), (1024, 256), (1024, 1024))
)
"""Rows, width before and after of maps x W^T; of their gradients for x, too."""
GRADIENTS = tuple(
    (m, k, n) for k in (512, 4096) for m, n in ((256, 256), (1024, 256), (256, 1024), (1024, 1024))
)
"""Of gradients g^T x of a weight: width after, rows, width before."""
BATCHES = tuple(
    shape
    for queries, keys in ((128, 128), (128, 512), (128, 2048), (512, 512))
    for shape in ((queries, 64, keys), (queries, keys, 64))
)
"""Queries and keys of scores and of what is mixed by them, in 16 batches."""
NUM_BATCHES = 16
ELEMENTS = (2**10, 2**14, 2**18, 2**22)
MOVING: Mapping[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x + x,
    "to": lambda x: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32),
    "silu": F.silu,
    "softmax": lambda x: torch.softmax(x.view(-1, 256), -1),
    "sum": lambda x: x.view(-1, 256).sum(-1),
    "copy": lambda x: x.view(-1, 256).t().contiguous(),
}
"""Operations that move bytes."""
MOVED = {"pointwise": 2, "to": 2, "silu": 2, "softmax": 2, "sum": 1, "copy": 2}
"""Elements that they read and write for each, where one that is given twice counts once."""
COLD, MOST_INPUTS = 2**28, 256
"""Bytes of inputs that take turns, more than the caches of a processor hold, and the most of them."""
REPEATS, SECONDS = 5, 0.02
"""How often an operation is timed at least, and for how long, in calls during which no core was taken away; the fastest
counts."""
LOST, CLOCKS = 0.1, 5e-6
"""Share of a call's time, and seconds for reading clocks, by which the processor's may be less than the wall's. Where a
host takes a core from its guest, Linux takes that time off the guest's processes, also off calls that ran meanwhile:
the processor's time of a call of 60 microseconds can be 0."""
PATIENCE, MOST_CALLS = 0.5, 1000
"""Seconds, and calls, after which no more are timed, whatever was taken away."""


@dataclass(frozen=True)
class Rates:
    """FLOP/s of products and bytes/s of other operations, by shape."""

    precision: str
    values: Mapping[str, float]
    age: str = ""

    def product(self, kind: str, shape: Shape) -> float:
        """Return the FLOP/s of a product: kind "map", "gradient" or "batch"; shape (m, k, n)."""
        return _between(self._points[kind], shape)

    def moving(self, kind: str, elements: int) -> float:
        """Return the bytes/s of an operation of this kind on so many elements."""
        return _between(self._points[kind], (elements,))

    @cached_property
    def _points(self) -> dict[str, dict[Shape, float]]:
        points: dict[str, dict[Shape, float]] = {}
        for name, value in self.values.items():
            kind, _, shape = name.partition(" ")
            points.setdefault(kind, {})[tuple(map(int, shape.split("x")))] = value
        return points


def measure_rates(precision: str) -> Rates:
    """Return the rates of this machine's CPU for products in a precision, measured now or within the last week."""
    names = tuple(name for name, _, _ in _calls(DTYPES[precision]))
    question = {**machine_facts("cpu"), "rates": 6, "precision": precision}
    question["float32_matmul_precision"] = torch.get_float32_matmul_precision()
    found = measured(question, names, lambda: _measure(DTYPES[precision]))
    return Rates(precision, found.values, found.age)


def _measure(dtype: torch.dtype) -> dict[str, float]:
    with torch.no_grad():
        return {name: amount / fastest(call) for name, amount, call in _calls(dtype)}


def _calls(dtype: torch.dtype) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    """Yield what is measured: a name, its FLOPs or bytes, and what computes it."""

    def numbers(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype)

    def factors(kind: str, m: int, k: int, n: int) -> tuple[Tensor, Tensor]:
        if kind == "batch":
            return numbers(NUM_BATCHES, m, k), numbers(NUM_BATCHES, k, n)
        if kind == "gradient":
            return numbers(k, m).t(), numbers(k, n)
        return numbers(m, k), numbers(n, k).t()

    def product(kind: str, shape: Shape) -> Callable[[], Any]:
        multiply = torch.bmm if kind == "batch" else torch.mm
        return _in_turns(lambda: factors(kind, *shape), lambda given: multiply(*given))

    for kind, shapes in (("map", MAPS), ("gradient", GRADIENTS), ("batch", BATCHES)):
        times = 2.0 * (NUM_BATCHES if kind == "batch" else 1)
        for shape in shapes:
            yield (
                f"{kind} {'x'.join(map(str, shape))}",
                times * math.prod(shape),
                product(kind, shape),
            )
    for kind, move in MOVING.items():
        for size in ELEMENTS:
            call = _in_turns(partial(numbers, size), move)
            # Those that are narrow become wide, and the other way round: 6 bytes in both cases.
            itemsize = 3 if kind == "to" else dtype.itemsize
            yield f"{kind} {size}", float(itemsize * MOVED[kind] * size), call


def _in_turns(make: Callable[[], Any], call: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return what calls on one of several inputs after the other, so that none is found in a cache of the processor,
    where a model's are not either; they are made at the first call."""
    inputs: list[Any] = []
    turn = count()

    def once() -> Any:
        if not inputs:
            first = make()
            tensors = first if isinstance(first, tuple) else (first,)
            size = sum(x.numel() * x.element_size() for x in tensors)
            inputs.extend([first, *(make() for _ in range(min(MOST_INPUTS, COLD // size)))])
        return call(inputs[next(turn) % len(inputs)])

    return once


def fastest(call: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of some calls. On one thread they are those of the processor, of calls that
    kept their core, or the median where none did."""
    alone = torch.get_num_threads() == 1
    call()
    times: list[float] = []
    undisturbed: list[float] = []
    while len(undisturbed) < REPEATS or sum(undisturbed) < SECONDS:
        if times and (sum(times) >= PATIENCE or len(times) >= MOST_CALLS):
            break
        before, wall, processor = preemptions(), time.perf_counter(), time.process_time()
        call()
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
        times.append(processor if alone else wall)
        lost = alone and wall - processor > LOST * wall + CLOCKS
        if preemptions() == before and not lost:
            undisturbed.append(times[-1])
    if not alone:  # by the wall no call seems faster than it is
        return min(times)
    return min(undisturbed) if undisturbed else statistics.median(times)


def _between(points: Mapping[Shape, float], shape: Shape) -> float:
    """Return the value at a shape: of the measured ones the mean of logs, weighed by the inverse square of the
    distance between logs of shapes; beyond all of them, that of the nearest end."""
    ends = [(min(values), max(values)) for values in zip(*points, strict=True)]
    at = [math.log2(min(max(n, low), high)) for n, (low, high) in zip(shape, ends, strict=True)]
    weighed = total = 0.0
    for point, value in points.items():
        distance = sum((math.log2(a) - b) ** 2 for a, b in zip(point, at, strict=True))
        weight = 1 / (distance**2 + 1e-6)
        weighed, total = weighed + weight * math.log(value), total + weight
    return math.exp(weighed / total)
