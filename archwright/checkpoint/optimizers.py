"""Exact saving and restoring of the state of any torch optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from archwright.checkpoint.weights import plain_name

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def read_optimizer(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of `optimizer`, and its parameters' names in `model`."""
    return {
        "class": type(optimizer).__name__,
        "parameters": _names(optimizer, model),
        "state_dict": optimizer.state_dict(),
    }


def optimizer_misfits(
    saved: Mapping[str, Any], optimizers: Mapping[str, Optimizer], model: nn.Module
) -> Iterator[str]:
    """Yield an error for each difference between saved and current optimizers.

    Torch identifies parameters by position, so a changed order would swap their momentum. Therefore, names
    are compared.
    """
    for name in sorted(saved.keys() | optimizers.keys()):
        if name not in saved:
            yield f"optimizer {name}: missing from the checkpoint."
        elif name not in optimizers:
            yield f"optimizer {name}: in the checkpoint, but not given."
        elif saved[name]["class"] != (wanted := type(optimizers[name]).__name__):
            yield f"optimizer {name}: {saved[name]['class']} in the checkpoint, {wanted} given."
        else:
            there, here = saved[name]["parameters"], _names(optimizers[name], model)
            yield from (f"optimizer {name}: {line}" for line in _group_misfits(there, here))


def put_optimizer(saved: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Restore a saved state bit for bit in an optimizer without misfits."""
    optimizer.load_state_dict(saved["state_dict"])
    # Torch casts state to the dtype of its parameter, but float32 momentum of bfloat16 weights
    # must stay float32.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [i for group in saved["state_dict"]["param_groups"] for i in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        if index in saved["state_dict"]["state"]:
            loaded, exact = optimizer.state[parameter], saved["state_dict"]["state"][index]
            optimizer.state[parameter] = _exact(loaded, exact, parameter)


def _names(optimizer: Optimizer, model: nn.Module) -> list[list[str]]:
    """Return parameter names by group, or shapes of parameters outside the model."""
    names = {id(p): plain_name(name) for name, p in model.named_parameters()}
    return [
        [names.get(id(p), f"shape {list(p.shape)}") for p in group["params"]]
        for group in optimizer.param_groups
    ]


def _group_misfits(saved: list[list[str]], current: list[list[str]]) -> Iterator[str]:
    if len(saved) != len(current):
        yield f"{len(saved)} parameter groups in the checkpoint, {len(current)} given."
        return
    for number, (there, here) in enumerate(zip(saved, current, strict=True)):
        gone = [name for name in there if name not in here]
        added = [name for name in here if name not in there]
        if gone or added:
            yield f"group {number}: {gone or 'none'} only in the checkpoint, {added or 'none'} only in the program."
        elif there != here:
            yield f"group {number} has its parameters in another order than the checkpoint."


def _exact(loaded: Any, saved: Any, parameter: Tensor) -> Any:
    """Return `saved` with its tensors on the devices of `loaded`.

    Tensors with the parameter's shape get its memory layout: fused kernels require equal strides.
    """
    import torch

    if isinstance(saved, torch.Tensor):
        like = parameter if saved.shape == parameter.shape else saved
        return torch.empty_like(like, dtype=saved.dtype, device=loaded.device).copy_(saved)
    if isinstance(saved, dict):
        return {key: _exact(loaded[key], value, parameter) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(_exact(a, b, parameter) for a, b in zip(loaded, saved, strict=True))
    return saved
