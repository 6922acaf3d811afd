"""Tensors with shapes and dtypes, but without memory or values, for traces."""

from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_map

from archwright.spec.errors import UserError

LARGE = 2**24
"""Numbers of a new tensor above which a trace gives it no values; smaller ones decide shapes, such as masks."""


@cache
def fake_mode() -> FakeTensorMode:
    """Return torch's mode for fake tensors, one for all traces of a process."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a fake tensor on the CPU with the shape and strides of another tensor."""
    with fake_mode():
        return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device="cpu")


def is_fake(x: Tensor) -> bool:
    """True if a tensor has no memory."""
    return isinstance(x, FakeTensor)


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
    """Run an operation: on tensors with values as usual, and on fake ones by the shapes of its results.

    Raises:
        UserError: Its results depend on values.
    """
    if func is torch.ops.aten._local_scalar_dense.default and is_fake(tensors[0]):
        return _number(tensors[0])
    on_meta = str(kwargs.get("device")) == "meta"
    is_large = not tensors and not on_meta and _size_of_new(args) > LARGE
    without_values = [is_fake(x) or x.is_meta for x in tensors]
    if (all(x.is_meta for x in tensors) and not is_large) or not any((is_large, *without_values)):
        return func(*args, **kwargs)
    try:
        with fake_mode():
            # Tables that a layer of a rank shares are on the meta device.
            return func(*tree_map(_on_cpu, args), **kwargs)
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        raise UserError(refusal(func)) from error


def _on_cpu(x: Any) -> Any:
    """Return a fake tensor for a meta tensor, and other values unchanged."""
    return fake_like(x) if isinstance(x, Tensor) and x.is_meta and not is_fake(x) else x


def refusal(func: Any) -> str:
    """Return why an operator cannot be traced."""
    name = str(func.overloadpacket).removeprefix("aten.")
    return (
        f"trace: found {name}, whose result depends on values; expected operators with shapes that follow from shapes, "
        "or a leaf with a formula (archwright.parts.leaves)"
    )


def _number(x: Tensor) -> float | bool:
    """Return a number for a value that only decides how to compute."""
    if x.dtype.is_floating_point:
        return 1.0
    if x.dtype == torch.bool:
        return False
    raise UserError(refusal(torch.ops.aten.item.default))


def _size_of_new(args: tuple[Any, ...]) -> int:
    """Return the numbers of a new tensor of the shape that is the first argument."""
    return prod(args[0]) if args and isinstance(args[0], list | tuple) else 0
