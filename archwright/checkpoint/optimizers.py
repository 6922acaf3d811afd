"""The state of any torch optimizer, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from archwright.checkpoint.weights import plain_name

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def read_optimizer(optimizer: Optimizer, model: nn.Module) -> dict[str, Any]:
    """Return the state of `optimizer`, and the names that its parameters have in `model`."""
    return {
        "class": type(optimizer).__name__,
        "parameters": _names(optimizer, model),
        "state_dict": optimizer.state_dict(),
    }


def optimizer_misfits(
    saved: Mapping[str, Any], optimizers: Mapping[str, Optimizer], model: nn.Module
) -> Iterator[str]:
    """Yield a line for each optimizer of `saved` that has no equal in `optimizers`, or reversed.

    Torch tells parameters apart only by their place in the groups, so a changed order would
    give one parameter another's momentum: their names are compared.
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
            yield from (f"optimizer {name}: {line}" for line in _other_groups(there, here))


def put_optimizer(saved: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Set `optimizer`, which has no misfits, to the saved state bit for bit."""
    optimizer.load_state_dict(saved["state_dict"])
    # Torch casts a state to the dtype of its parameter; float32 momentum of bfloat16 weights
    # must stay what it was.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [i for group in saved["state_dict"]["param_groups"] for i in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        if index in saved["state_dict"]["state"]:
            loaded, exact = optimizer.state[parameter], saved["state_dict"]["state"][index]
            optimizer.state[parameter] = _exact(loaded, exact, parameter)


def _names(optimizer: Optimizer, model: nn.Module) -> list[list[str]]:
    """Return the names of each group's parameters, or the shapes of those not in the model."""
    names = {id(p): plain_name(name) for name, p in model.named_parameters()}
    return [
        [names.get(id(p), f"shape {list(p.shape)}") for p in group["params"]]
        for group in optimizer.param_groups
    ]


def _other_groups(found: list[list[str]], wanted: list[list[str]]) -> Iterator[str]:
    if len(found) != len(wanted):
        yield f"{len(found)} parameter groups in the checkpoint, {len(wanted)} given."
        return
    for number, (there, here) in enumerate(zip(found, wanted, strict=True)):
        gone = [name for name in there if name not in here]
        added = [name for name in here if name not in there]
        if gone or added:
            yield f"group {number} had {gone or 'nothing else'}, and now has {added or 'not'}."
        elif there != here:
            yield f"group {number} has its parameters in another order than the checkpoint."


def _exact(loaded: Any, saved: Any, parameter: Tensor) -> Any:
    """Return `saved`, its tensors on the devices to which torch brought them in `loaded`.

    What has the parameter's shape gets its order in memory too: fused kernels walk through both
    side by side.
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
