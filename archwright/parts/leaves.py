"""Leaves: functions with a cost formula, such as attention kernels and scans.

A cost counter evaluates the formula and skips the operations inside. Without a counter, a leaf is a plain call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class LeafCosts(NamedTuple):
    """Costs of one call of a leaf. Meta tensors describe new tensors."""

    flops: float
    """FLOPs of the forward pass; the backward pass takes twice as many."""
    num_bytes: float
    """Bytes that the forward pass reads and writes; the backward pass moves twice as many."""
    results: Tensor | tuple[Tensor, ...]
    """Meta tensors with the shapes and dtypes of the results."""
    kept: Sequence[Tensor] = ()
    """Tensors that stay until the backward pass: arguments, results, or meta tensors."""
    has_weights: bool = False
    """True for matmuls with weights, False for products between tokens."""
    is_saved: bool = False
    """True if selective recomputation also keeps the new tensors in `kept`."""
    inputs: Sequence[Tensor] = ()
    """Tensors with a gradient inside of arguments, such as a bias."""


Formula = Callable[..., LeafCosts]
"""Function from the arguments of a leaf to its costs."""
Watcher = Callable[[Callable[..., Any], Formula, tuple[Any, ...], dict[str, Any]], Any]
"""Function from a leaf, its formula, args and kwargs to the leaf's results."""

_WATCHERS: list[Watcher] = []


def leaf(formula: Formula) -> Callable[[F], F]:
    """Register the cost formula of a function."""

    def register(function: F) -> F:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if not _WATCHERS:
                return function(*args, **kwargs)
            return _WATCHERS[-1](function, formula, args, kwargs)

        return called  # type: ignore[return-value]

    return register


def is_watched() -> bool:
    """True while a counter is active. Results must then not depend on the current device."""
    return bool(_WATCHERS)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Pass calls of leaves to a watcher; None: plain calls."""
    before = _WATCHERS[:]
    _WATCHERS[:] = [] if watcher is None else [watcher]
    try:
        yield
    finally:
        _WATCHERS[:] = before
