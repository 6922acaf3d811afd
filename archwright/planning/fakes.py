"""Fake tensors: CPU tensors with shapes, dtypes and strides, but without memory or values.

They replace torch's `FakeTensorMode`, which takes a second to load the compiler. Their addresses lie in a reserved
range that is never read or written. Views and autograd work as usual; `run` computes the result shapes of all other
operations.
"""

import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, reduce
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from archwright.spec.errors import UserError

aten = torch.ops.aten
LARGE = 2**24
"""Number of elements above which a trace uses a fake tensor."""
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE on Linux (in `mmap` from Python 3.13): the range counts as no memory."""
REFUSED = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
Shape = tuple[int, ...]
Made = list[tuple[Shape, torch.dtype] | None]


@cache
def _reserved() -> tuple[mmap.mmap, int, int]:
    """Return an address range without memory, its first address and its size."""
    for bits in (46, 42, 38, 34):
        with suppress(OSError, ValueError, OverflowError):
            kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
            buffer = mmap.mmap(-1, 2**bits, flags=kind)
            return buffer, torch.frombuffer(buffer, dtype=torch.uint8, count=1).data_ptr(), 2**bits
    raise UserError("trace: this machine reserves no addresses; expected at least 2^34 bytes")


def fake(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
    """Return a tensor without memory.

    Raises:
        UserError: the tensor exceeds the reserved range.
    """
    buffer, _, size = _reserved()
    number = prod(shape)
    if number * dtype.itemsize > size:
        raise UserError(
            f"trace: found a tensor of {number:,} numbers; expected fewer texts or tokens at once"
        )
    if not number:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(buffer, dtype=dtype, count=number)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def fake_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a fake with the shape and axis order of a tensor."""
    return fake(x.shape, dtype or x.dtype, _dense_strides(x))


def is_fake(x: Tensor) -> bool:
    """True if a tensor has no memory."""
    if x.is_meta:
        return True
    _, first, size = _reserved()
    return first <= x.untyped_storage().data_ptr() < first + size


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
    """Run an operation; on fakes, compute only the result shapes.

    Raises:
        UserError: the results depend on values.
    """
    if not any(map(is_fake, tensors)):
        if tensors:
            number = prod(_broadcast(tensors))
        else:
            number = prod(args[0]) if args and isinstance(args[0], list | tuple) else 0
        if number <= LARGE or str(kwargs.get("device")) == "meta":
            return func(*args, **kwargs)
        if not tensors:
            return fake_like(func(*args, **{**kwargs, "device": "meta"}))
    first, name = tensors[0], func.overloadpacket.__name__
    match _sort_of(func):
        case "refused":
            raise UserError(refusal(func))
        case "scalar":
            return _scalar(first)
        case "view":
            return func(*args, **kwargs)
        case "written":
            arguments = func._schema.arguments
            values = dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
            written = [values[a.name] for a in arguments if a.is_write]
            return written[0] if len(func._schema.returns) == 1 else tuple(written)
        case "pointwise":
            return _pointwise(func, args, kwargs, tensors)
        case "like":
            dtype = kwargs.get("dtype") or first.dtype
            if kwargs.get("memory_format") is torch.contiguous_format:
                return fake(first.shape, dtype)
            return fake_like(first, dtype)
        case "by shape":
            made = [None if x is None else fake(*x) for x in SHAPES[name](*args, **kwargs)]
            return made[0] if len(func._schema.returns) == 1 else tuple(made)
        case _:
            return _by_meta(func, args, kwargs)


@cache
def _sort_of(func: Any) -> str:
    """Return the rule for the results of an operation on fakes."""
    name = func.overloadpacket.__name__
    rules = {
        "scalar": name == "_local_scalar_dense",
        "refused": name not in SHAPES and any(tag in func.tags for tag in REFUSED),
        "view": func.is_view or name == "_unsafe_view",
        "written": func._schema.is_mutable,
        "pointwise": torch.Tag.pointwise in func.tags or name in POINTWISE,
        "like": name in LIKE,
        "by shape": name in SHAPES,
    }
    return next((rule for rule, holds in rules.items() if holds), "by meta")


def refusal(func: Any) -> str:
    """Return the error message for an untraceable operator."""
    name = str(func.overloadpacket).removeprefix("aten.")
    return (
        f"trace: found {name}, whose result depends on values; expected operators with shapes that follow from shapes, "
        "or a leaf with a formula (archwright.parts.leaves)"
    )


def _scalar(x: Tensor) -> float | bool:
    """Return a constant for a scalar read: 1.0 or False."""
    if x.dtype.is_floating_point or x.dtype == torch.bool:
        return 1.0 if x.dtype.is_floating_point else False
    raise UserError(refusal(aten.item.default))


def _pointwise(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
    """Return pointwise results, with dtypes from running the operation on one element."""

    def one(x: Any) -> Any:
        return torch.ones((1,) * x.ndim, dtype=x.dtype) if isinstance(x, Tensor) else x

    shape, out = _broadcast(tensors), func(*tree_map(one, args), **tree_map(one, kwargs))
    first = next((x for x in tensors if x.shape == shape), None)
    strides = None
    if first is not None and kwargs.get("memory_format") is not torch.contiguous_format:
        strides = _dense_strides(first)
    return tree_map(lambda x: fake(shape, x.dtype, strides), out)


def _by_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Return results from torch's meta kernels; most of these load the compiler."""

    def plain(x: Any) -> Any:
        if isinstance(x, Tensor):
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        return torch.device("meta") if isinstance(x, torch.device) else x

    try:
        out = func(*tree_map(plain, args), **tree_map(plain, kwargs))
    except NotImplementedError as error:
        raise UserError(refusal(func)) from error
    return tree_map(lambda x: fake_like(x) if isinstance(x, Tensor) else x, out)


def _dense_strides(x: Tensor) -> Sequence[int] | None:
    """Return strides in the axis order of x; None if contiguous or not dense."""
    if x.is_contiguous():
        return None
    before: tuple[int, ...] = x.stride()
    axes = sorted(range(x.ndim), key=lambda i: (-before[i], i))
    expected, strides = 1, [0] * x.ndim
    for axis in reversed(axes):
        strides[axis] = expected
        if x.shape[axis] > 1 and before[axis] != expected:
            return None
        expected *= x.shape[axis]
    return strides


def _broadcast(tensors: Sequence[Tensor]) -> Shape:
    """Return the broadcast shape of tensors; torch's function would import sympy."""
    found = [1] * max((x.ndim for x in tensors), default=0)
    for x in tensors:
        for i in range(1, x.ndim + 1):
            if x.shape[-i] != 1:
                found[-i] = x.shape[-i]
    return tuple(found)


POINTWISE = {"floor_divide"}
"""Pointwise operations without torch's pointwise tag."""
LIKE = {
    *("_to_copy", "zeros_like", "ones_like", "empty_like", "full_like", "flip", "cumsum"),
    *("_softmax", "_log_softmax", "_softmax_backward_data", "scatter", "scatter_add", "index_put"),
}
"""Operations with a result like the first tensor."""


def _reduced(
    x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Made:
    axes = range(x.ndim) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    gone = {axis % max(1, x.ndim) for axis in axes}
    kept = [1 if i in gone else n for i, n in enumerate(x.shape) if keepdim or i not in gone]
    return [(tuple(kept), dtype or x.dtype)]


def _summed(x: Tensor, *args: Any, dtype: torch.dtype | None = None) -> Made:
    whole = torch.int64 if not x.dtype.is_floating_point else x.dtype
    return _reduced(x, *args, dtype=dtype or whole)


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Made:
    parts = [x for x in tensors if x.shape != (0,)]
    shape = [*parts[0].shape]
    shape[dim] = sum(x.shape[dim] for x in parts)
    return [(tuple(shape), _promoted(tensors))]


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Made:
    shape = [*tensors[0].shape]
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return [(tuple(shape), _promoted(tensors))]


def _promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, (x.dtype for x in tensors))


def _layer_norm(x: Tensor, normalized: Sequence[int], *_: Any) -> Made:
    means = (*x.shape[: x.ndim - len(normalized)], *(1,) * len(normalized))
    return [(x.shape, x.dtype), (means, x.dtype), (means, x.dtype)]


def _layer_norm_backward(grad: Tensor, x: Tensor, *args: Any) -> Made:
    return [None if t is None else (t.shape, x.dtype) for t in (x, args[3], args[4])]


def _topk(x: Tensor, k: int, dim: int = -1, *_: Any) -> Made:
    shape = [*x.shape]
    shape[dim] = k
    return [(tuple(shape), x.dtype), (tuple(shape), torch.int64)]


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Made:
    places = [place for index in indices for place in _places(index)]
    axes = [i for i, place in enumerate(places) if place is not None]
    found = _broadcast([places[i] for i in axes])
    rest = [n for i, n in enumerate(x.shape) if i not in axes]
    at = axes[0] if axes == [*range(axes[0], axes[-1] + 1)] else 0
    return [((*rest[:at], *found, *rest[at:]), x.dtype)]


def _places(index: Tensor | None) -> Iterator[Any]:
    """Yield an index; a boolean mask yields an integer index per axis."""
    if index is None or index.dtype != torch.bool:
        yield index
    elif is_fake(index):
        raise UserError(refusal(aten.nonzero.default))
    else:
        yield from index.nonzero(as_tuple=True)


def _new(
    x: Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any
) -> Made:
    return [(tuple(size), dtype or x.dtype)]


SHAPES: dict[str, Callable[..., Made]] = {
    "mm": lambda a, b: [((a.shape[0], b.shape[1]), a.dtype)],
    "addmm": lambda c, a, b, **_: [((a.shape[0], b.shape[1]), a.dtype)],
    "bmm": lambda a, b: [((*a.shape[:2], b.shape[2]), a.dtype)],
    "mv": lambda a, b: [((a.shape[0],), a.dtype)],
    "embedding": lambda table, index, *_: [((*index.shape, *table.shape[1:]), table.dtype)],
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "sum": _summed,
    "mean": _reduced,
    "amax": _reduced,
    "logsumexp": _reduced,
    "linalg_vector_norm": lambda x, order=2, *args, dtype=None: _reduced(x, *args, dtype=dtype),
    "argmax": lambda x, *args: _reduced(x, *args, dtype=torch.int64),
    "cat": _joined,
    "stack": _stacked,
    "sort": lambda x, *_, **__: [(x.shape, x.dtype), (x.shape, torch.int64)],
    "topk": _topk,
    "searchsorted": lambda edges, x, *, out_int32=False, **_: [
        (x.shape, torch.int32 if out_int32 else torch.int64)
    ],
    "gather": lambda x, dim, index, **_: [(index.shape, x.dtype)],
    "index": _indexed,
    "new_zeros": _new,
    "new_ones": _new,
    "new_full": _new,
    "new_empty": _new,
    "slice_backward": _new,
    "select_backward": _new,
}
"""Result shapes and dtypes by operation; other operations use torch's meta kernels."""
