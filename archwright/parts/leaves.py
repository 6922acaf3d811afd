"""Leaves: functions whose costs follow from one formula, such as attention kernels and scans.

A counter that watches a pass books the formula and does not look inside. Without a counter a leaf is a plain call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class LeafCosts(NamedTuple):
    """Costs of one call of a leaf. New tensors are described by meta tensors."""

    flops: float
    """FLOPs of the forward pass; the backward pass takes twice as many."""
    num_bytes: float
    """Bytes that the forward pass reads and writes; the backward pass moves twice as many."""
    results: Tensor | tuple[Tensor, ...]
    """Meta tensors with the shapes and dtypes of the results."""
    kept: Sequence[Tensor] = ()
    """Tensors that stay until the backward pass: arguments, results, or meta tensors."""
    has_weights: bool = False
    """Whether it is a product with weights, and not one between tokens."""
    is_saved: bool = False
    """Whether selective recomputation keeps new tensors among `kept`."""
    inputs: Sequence[Tensor] = ()
    """Tensors with a gradient that are no arguments themselves, such as those of a bias."""


Formula = Callable[..., LeafCosts]
"""Returns the costs of a call with the leaf's arguments."""
Watcher = Callable[[Callable[..., Any], Formula, tuple[Any, ...], dict[str, Any]], Any]
"""Is called with a leaf, its formula and its arguments, and returns the leaf's results."""

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
    """True while a counter watches: results then describe any device, not the one at hand."""
    return bool(_WATCHERS)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Inside, calls of leaves go to a watcher; None: they are plain calls."""
    before = _WATCHERS[:]
    _WATCHERS[:] = [] if watcher is None else [watcher]
    try:
        yield
    finally:
        _WATCHERS[:] = before
