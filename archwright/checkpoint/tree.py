"""Conversion between nested Python data and JSON with named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def split(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    """Convert `value` to JSON; add its tensors and arrays to `tensors` by path.

    Supported, without loss: None, bool, int, float (including NaN and infinity), str, list, tuple, dict with any
    of these as keys, tensors, numeric arrays, and torch's dtypes.

    Raises:
        UserError: another type; the message has its path.
    """
    import numpy as np
    import torch

    def inner(item: object, name: object) -> Any:
        return split(item, f"{path}/{name}", tensors)

    if isinstance(value, torch.Tensor):
        return {"$tensor": _add(tensors, path, value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {"$array": _add(tensors, path, torch.from_numpy(value.copy()))}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [inner(item, i) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [inner(item, i) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        items = {key: inner(item, key) for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        # JSON keys are strings. Other keys, and keys with the prefix "$", become pairs.
        return {"$dict": [[split(key, f"{path}/key", {}), item] for key, item in items.items()]}
    raise UserError(f"{path}: a {type(value).__name__} cannot be saved; turn it into plain data.")


def join(value: object, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value passed to `split`. Malformed input raises arbitrary exceptions."""
    if isinstance(value, list):
        return [join(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$array": name}:
            return tensors[name].numpy()
        case {"$dtype": name}:
            import torch

            dtype = getattr(torch, name)
            if not isinstance(dtype, torch.dtype):
                raise TypeError(name)
            return dtype
        case {"$float": text}:
            return float(text)
        case {"$tuple": items}:
            return tuple(join(item, tensors) for item in items)
        case {"$dict": items}:
            return {join(key, tensors): join(item, tensors) for key, item in items}
        case _:
            return {key: join(item, tensors) for key, item in value.items()}


def _add(tensors: dict[str, Tensor], path: str, tensor: Tensor) -> str:
    """Add `tensor` under `path`, or a longer name after a clash, as in {"a": {"b": x}, "a/b": y}."""
    while path in tensors:
        path += "'"
    tensors[path] = tensor
    return path
