"""Fake tensors: CPU tensors with shapes, dtypes and strides, but without memory or values.

They replace torch's `FakeTensorMode`, which takes a second to load the compiler. Their addresses lie in a reserved
range that is never read or written. Views and autograd work as usual; `run` computes the result shapes of all other
operations.
"""

import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
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


def faked(x: Any) -> Any:
    """Return a fake for a real or meta tensor, other values unchanged."""
    return fake_like(x) if isinstance(x, Tensor) and (x.is_meta or not is_fake(x)) else x


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Any:
    """Run an operation; on fakes, compute only the result shapes.

    Raises:
        UserError: the results depend on values.
    """
    if not any(map(is_fake, tensors)):
        is_large = prod(_broadcast(tensors)) > LARGE if tensors else _asked(args) > LARGE
        if not is_large or str(kwargs.get("device")) == "meta":
            return func(*args, **kwargs)
        if not tensors:
            return faked(func(*args, **{**kwargs, "device": "meta"}))
    return _rule(func)(func, args, kwargs, tensors)


@cache
def _rule(func: Any) -> Callable[..., Any]:
    """Return the implementation of an operation on fakes."""
    name = func.overloadpacket.__name__
    if name == "_local_scalar_dense":
        return _number
    if name not in SHAPES and any(tag in func.tags for tag in REFUSED):
        return _refuse
    if func.is_view or name == "_unsafe_view":
        return lambda func, args, kwargs, tensors: func(*args, **kwargs)
    if func._schema.is_mutable:
        return _written
    if torch.Tag.pointwise in func.tags or name in POINTWISE:
        return _pointwise
    if name in LIKE:
        return _like
    return _by_shape if name in SHAPES else _by_meta


def refusal(func: Any) -> str:
    """Return the error message for an untraceable operator."""
    name = str(func.overloadpacket).removeprefix("aten.")
    return (
        f"trace: found {name}, whose result depends on values; expected operators with shapes that follow from shapes, "
        "or a leaf with a formula (archwright.parts.leaves)"
    )


def _refuse(func: Any, *_: Any) -> Any:
    raise UserError(refusal(func))


def _number(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> float | bool:
    """Return a constant for a scalar read: 1.0 or False."""
    if tensors[0].dtype.is_floating_point:
        return 1.0
    if tensors[0].dtype == torch.bool:
        return False
    raise UserError(refusal(aten.item.default))


def _written(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
    """Return the tensors written in place by an operation."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    written = [given[a.name] for a in func._schema.arguments if a.is_write]
    return written[0] if len(func._schema.returns) == 1 else tuple(written)


def _like(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Tensor:
    dtype = kwargs.get("dtype") or args[0].dtype
    if kwargs.get("memory_format") is torch.contiguous_format:
        return fake(args[0].shape, dtype)
    return fake_like(args[0], dtype)


def _by_shape(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
    rule = SHAPES[func.overloadpacket.__name__]
    made = [None if x is None else fake(*x) for x in rule(*args, **kwargs)]
    return made[0] if len(func._schema.returns) == 1 else tuple(made)


def _pointwise(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
    """Return pointwise results, with dtypes from running the operation on one element."""
    key = (func, *(_sort(x) for x in args), *kwargs.values())
    if key not in _DTYPES:
        out = func(*tree_map(_one, args), **tree_map(_one, kwargs))
        _DTYPES[key] = out.dtype if isinstance(out, Tensor) else [x.dtype for x in out]
    shape, dtypes = _broadcast(tensors), _DTYPES[key]
    first = next((x for x in tensors if x.shape == shape), None)
    strides = None
    if first is not None and kwargs.get("memory_format") is not torch.contiguous_format:
        strides = _dense_strides(first)
    if isinstance(dtypes, list):
        return tuple(fake(shape, dtype, strides) for dtype in dtypes)
    return fake(shape, dtypes, strides)


_DTYPES: dict[Any, Any] = {}


def _sort(x: Any) -> Any:
    """Return the properties of an argument that determine result dtypes."""
    return (x.dtype, x.ndim > 0) if isinstance(x, Tensor) else type(x)


def _one(x: Any) -> Any:
    return torch.ones((1,) * x.ndim, dtype=x.dtype) if isinstance(x, Tensor) else x


def _by_meta(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
    """Return results from torch's meta kernels (loads the compiler)."""

    def plain(x: Any) -> Any:
        if isinstance(x, Tensor):
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        return torch.device("meta") if isinstance(x, torch.device) else x

    try:
        out = func(*tree_map(plain, args), **tree_map(plain, kwargs))
    except NotImplementedError as error:
        raise UserError(refusal(func)) from error
    return tree_map(faked, out)


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


def _asked(args: tuple[Any, ...]) -> int:
    """Return the number of elements of a factory call's shape."""
    return prod(args[0]) if args and isinstance(args[0], list | tuple) else 0


POINTWISE = {"floor_divide"}
"""Pointwise operations without torch's pointwise tag."""
LIKE = {
    *("_to_copy", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
    *(
        "cumsum",
        "_softmax",
        "_log_softmax",
        "_softmax_backward_data",
        "flip",
        "roll",
        "tril",
        "triu",
    ),
    *("scatter", "scatter_add", "index_put", "index_add", "masked_scatter"),
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


def _normed(x: Tensor, order: float = 2, *args: Any, dtype: torch.dtype | None = None) -> Made:
    return _reduced(x, *args, dtype=dtype)


def _where_largest(x: Tensor, *args: Any) -> Made:
    return _reduced(x, *args, dtype=torch.int64)


def _largest(x: Tensor, *args: Any) -> Made:
    return [*_reduced(x, *args), *_reduced(x, *args, dtype=torch.int64)]


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
    dtype = tensors[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def _layer_norm(x: Tensor, normalized: Sequence[int], *_: Any) -> Made:
    means = (*x.shape[: x.ndim - len(normalized)], *(1,) * len(normalized))
    return [(x.shape, x.dtype), (means, x.dtype), (means, x.dtype)]


def _layer_norm_backward(grad: Tensor, x: Tensor, *args: Any) -> Made:
    return [None if t is None else (t.shape, x.dtype) for t in (x, args[3], args[4])]


def _padded(x: Tensor, pad: Sequence[int], *_: Any) -> Made:
    shape = [*x.shape]
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    return [(tuple(shape), x.dtype)]


def _repeated(x: Tensor, repeats: Sequence[int]) -> Made:
    before = (1,) * (len(repeats) - x.ndim)
    return [(tuple(n * m for n, m in zip((*before, *x.shape), repeats, strict=True)), x.dtype)]


def _sorted(x: Tensor, *_: Any, **__: Any) -> Made:
    return [(x.shape, x.dtype), (x.shape, torch.int64)]


def _topk(x: Tensor, k: int, dim: int = -1, *_: Any) -> Made:
    shape = [*x.shape]
    shape[dim] = k
    return [(tuple(shape), x.dtype), (tuple(shape), torch.int64)]


def _searched(edges: Tensor, values: Tensor, *, out_int32: bool = False, **_: Any) -> Made:
    return [(values.shape, torch.int32 if out_int32 else torch.int64)]


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
    "baddbmm": lambda c, a, b, **_: [((*a.shape[:2], b.shape[2]), a.dtype)],
    "mv": lambda a, b: [((a.shape[0],), a.dtype)],
    "dot": lambda a, b: [((), a.dtype)],
    "embedding": lambda table, index, *_: [((*index.shape, *table.shape[1:]), table.dtype)],
    "embedding_dense_backward": lambda grad, index, rows, *_: [
        ((rows, grad.shape[-1]), grad.dtype)
    ],
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "sum": _summed,
    "mean": _reduced,
    "amax": _reduced,
    "amin": _reduced,
    "logsumexp": _reduced,
    "linalg_vector_norm": _normed,
    "argmax": _where_largest,
    "argmin": _where_largest,
    "max": lambda x, *args: _largest(x, *args) if args else _reduced(x),
    "min": lambda x, *args: _largest(x, *args) if args else _reduced(x),
    "cat": _joined,
    "stack": _stacked,
    "constant_pad_nd": _padded,
    "repeat": _repeated,
    "sort": _sorted,
    "topk": _topk,
    "searchsorted": _searched,
    "gather": lambda x, dim, index, **_: [(index.shape, x.dtype)],
    "index": _indexed,
    "index_select": lambda x, dim, index: [
        ((*x.shape[:dim], len(index), *x.shape[dim:][1:]), x.dtype)
    ],
    "new_zeros": _new,
    "new_ones": _new,
    "new_full": _new,
    "new_empty": _new,
    "slice_backward": _new,
    "select_backward": _new,
}
"""Result shapes and dtypes by operation; other operations use torch's meta kernels."""
