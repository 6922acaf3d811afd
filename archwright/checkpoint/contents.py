"""Reading of a checkpoint's optimizers, generators and caller's state, with validation.

A checkpoint's hashes detect damaged files, but not files from another program.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from archwright.checkpoint import weights
from archwright.checkpoint.parts import Stored
from archwright.checkpoint.tree import join
from archwright.files import DamagedError
from archwright.scale.layout import Block
from archwright.spec.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

OPTIMIZERS = "optimizers.safetensors"
STATE = "state.safetensors"
JSON = "state.json"

_WRONG = (LookupError, ArithmeticError, ValueError, TypeError, AttributeError, RuntimeError)


def read(path: Path, *, values: bool = True) -> dict[str, Any]:
    """Return the optimizers, generators and caller's state of a checkpoint.

    Args:
        values: if False, optimizer tensors except scalars are on the meta device.

    Raises:
        DamagedError: the content differs from the format of `save`.
    """
    stored = Stored(path / OPTIMIZERS)
    get = stored.whole if values else stored.described
    optimizer_tensors = {name: get(name) for name in stored}
    state_tensors, _ = weights.read_tensors(path / STATE)
    # Clone, because the tensors are views of the mapped file.
    state_tensors = {name: tensor.clone() for name, tensor in state_tensors.items()}
    with invalid_as_damaged(path):
        content = from_json((path / JSON).read_bytes())
        parts = {
            "optimizers": join(content["optimizers"], optimizer_tensors),
            "generators": join(content["generators"], state_tensors),
            "state": join(content["state"], state_tensors),
        }
        _Content.model_validate(parts)
        _try_generators(parts["generators"])
    return parts


OptimizerState = tuple[Iterator[dict[str, Any]], list[dict[str, Any]]]
"""An optimizer's state by parameter, in order, and its parameter groups."""


def read_blocks(path: Path, name: str, blocks: list[Block]) -> OptimizerState:
    """Return an optimizer's state for one block of each parameter, read lazily.

    Args:
        path: a checkpoint that has passed `steps.check`.
    """
    stored = Stored(path / OPTIMIZERS)
    content = from_json((path / JSON).read_bytes())["optimizers"][name]["state_dict"]
    saved = join(content, {tensor: _Stored(tensor) for tensor in stored})  # type: ignore[misc]

    def cut(value: Any, block: Block) -> Any:
        if not isinstance(value, _Stored):
            return value
        is_cut = bool(stored.shape(value))
        return stored.block(value, block) if is_cut else stored.whole(value).clone()

    states = (
        {key: cut(value, block) for key, value in saved["state"].get(number, {}).items()}
        for number, block in enumerate(blocks)
    )
    return states, saved["param_groups"]


class _Stored(str):
    """Name of a tensor to be read later."""

    __slots__ = ()


@contextlib.contextmanager
def invalid_as_damaged(path: Path) -> Iterator[None]:
    """Convert errors from malformed data to DamagedError."""
    try:
        yield
    except UserError:
        raise
    except _WRONG as error:
        raise DamagedError(f"{path / JSON} is damaged: it is not a checkpoint's.") from error


class _StateDict(BaseModel, defer_build=True):
    state: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


class _Optimizer(BaseModel, defer_build=True):
    class_: str = Field(alias="class")
    parameters: list[list[str]]
    state_dict: _StateDict


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, defer_build=True)

    optimizers: dict[str, _Optimizer]
    state: dict[Any, Any]


def _try_generators(state: Mapping[str, Any]) -> None:
    """Check generator states by setting them in new generators."""
    import numpy as np
    import torch

    torch.Generator().set_state(state["torch"])
    if not isinstance(state["cuda"], list) or not all(
        isinstance(item, torch.Tensor) and item.dtype == torch.uint8 for item in state["cuda"]
    ):
        raise TypeError("generators of CUDA")
    inner = state["numpy"]["state"]
    if not 0 <= inner["pos"] <= len(inner["key"]) == 624:  # NumPy does not check it
        raise ValueError("generator of numpy")
    np.random.RandomState(0).set_state(state["numpy"])
    version, words, gauss = state["python"]
    if gauss is not None and not isinstance(gauss, float):
        raise TypeError("generator of Python")
    random.Random(0).setstate((version, tuple(words.tolist()), gauss))


def problems(saved: Mapping[str, Any], optimizer: Optimizer) -> Iterator[str]:
    """Yield the faults of a saved state, for an optimizer without misfits."""
    groups, saved_groups = optimizer.param_groups, saved["param_groups"]
    indices = [group.get("params") for group in saved_groups]
    expected, number = [], 0
    for group in groups:
        expected.append(list(range(number, number + len(group["params"]))))
        number += len(group["params"])
    if indices != expected:
        yield "its parameter groups differ from the optimizer's"
        return
    for here, there in zip(groups, saved_groups, strict=True):
        invalid = (key for key in here if not _alike(here, there, key))
        yield from (f"invalid {key} of an optimizer" for key in invalid)
    parameters = [parameter for group in groups for parameter in group["params"]]
    is_adam = "amsgrad" in optimizer.defaults
    for index, state in saved["state"].items():
        if not 0 <= index < number:
            yield "it has a state without a parameter"
        else:
            for name in _misshapen(state, parameters[index], is_adam):
                yield f"invalid {name} of an optimizer"


def _alike(here: Mapping[str, Any], there: Mapping[str, Any], key: str) -> bool:
    """True if a saved option has a valid type; flags may be missing."""
    value, saved = here[key], there.get(key)
    if key == "betas" and isinstance(saved, tuple | list):
        return len(saved) == len(value) and all(_is_number(v) and 0 <= v < 1 for v in saved)
    if isinstance(value, tuple | list) and key != "params":
        return isinstance(saved, tuple | list) and [*map(_is_number, saved)] == [
            *map(_is_number, value)
        ]
    if value is None or isinstance(value, bool):
        return saved is None or isinstance(saved, bool)
    return not _is_number(value) or _is_number(saved)


def _is_number(value: object) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    # Torch has integers of at most 64 bits.
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
_OF_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})


def _misshapen(state: Mapping[str, object], parameter: Tensor, is_adam: bool) -> Iterator[str]:
    """Yield missing or misshapen state entries of Adam and momentum."""
    import torch

    if is_adam:
        yield from _OF_ADAM - state.keys()
    for name in _MOMENTS:
        moment = state.get(name, parameter)
        if not isinstance(moment, torch.Tensor) or moment.shape != parameter.shape:
            yield name
    if "step" in state:  # a float in torch's optimizers
        step = state["step"]
        counts = _is_number(step)
        number = step.item() if counts and isinstance(step, torch.Tensor) else step
        if not (counts and isinstance(number, int | float) and 0 <= number < 2**63):
            yield "step"
