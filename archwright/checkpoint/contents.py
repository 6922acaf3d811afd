"""The contents of a checkpoint beside the weights, checked before anything is set from them.

The seal of a checkpoint says that files are as they were written, not that we wrote them.
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
    """Return optimizers, generators and the caller's state of the checkpoint at `path`.

    Args:
        values: whether tensors of optimizers that are no numbers have their values.

    Raises:
        DamagedError: they are not what `save` writes.
    """
    stored = Stored(path / OPTIMIZERS)
    get = stored.whole if values else stored.described
    optimizer_tensors = {name: get(name) for name in stored}
    others, _ = weights.read_tensors(path / STATE)
    # The generators and the caller get tensors of their own, not views of the file.
    others = {name: tensor.clone() for name, tensor in others.items()}
    with taken_for_damage(path):
        content = from_json((path / JSON).read_bytes())
        found = {
            "optimizers": join(content["optimizers"], optimizer_tensors),
            "generators": join(content["generators"], others),
            "state": join(content["state"], others),
        }
        _Content.model_validate(found)
        _try_generators(found["generators"])
    return found


Own = tuple[Iterator[dict[str, Any]], list[dict[str, Any]]]
"""What an optimizer keeps of each of its parameters, in their order, and its groups."""


def read_own(path: Path, name: str, blocks: list[Block]) -> Own:
    """Return what the optimizer of a name keeps of each parameter, of which a process holds a block, read one by one,
    and its groups.

    The checkpoint is one that `steps.check` has found whole.
    """
    stored = Stored(path / OPTIMIZERS)
    content = from_json((path / JSON).read_bytes())["optimizers"][name]["state_dict"]
    found = join(content, {tensor: _Stored(tensor) for tensor in stored})  # type: ignore[misc]

    def own(value: Any, block: Block) -> Any:
        if not isinstance(value, _Stored):
            return value
        is_cut = bool(stored.shape(value))
        return stored.block(value, block) if is_cut else stored.whole(value).clone()

    states = (
        {key: own(value, block) for key, value in found["state"].get(number, {}).items()}
        for number, block in enumerate(blocks)
    )
    return states, found["param_groups"]


class _Stored(str):
    """The name of a tensor that is read later."""

    __slots__ = ()


@contextlib.contextmanager
def taken_for_damage(path: Path) -> Iterator[None]:
    """Turn what the block raises where data are of another shape than was saved into one line for the user."""
    try:
        yield
    except UserError:
        raise
    except _WRONG as error:
        raise DamagedError(
            f"{path / JSON} is damaged: it is not what a checkpoint holds."
        ) from error


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
    """Set generators that nobody uses, which raises where that is not possible."""
    import numpy as np
    import torch

    torch.Generator().set_state(state["torch"])
    if not isinstance(state["cuda"], list) or not all(
        isinstance(one, torch.Tensor) and one.dtype == torch.uint8 for one in state["cuda"]
    ):
        raise TypeError("generators of CUDA")
    inner = state["numpy"]["state"]
    if not 0 <= inner["pos"] <= len(inner["key"]) == 624:  # numpy does not look
        raise ValueError("generator of numpy")
    np.random.RandomState(0).set_state(state["numpy"])
    version, words, gauss = state["python"]
    if gauss is not None and not isinstance(gauss, float):
        raise TypeError("generator of Python")
    random.Random(0).setstate((version, tuple(words.tolist()), gauss))


def problems(saved: Mapping[str, Any], optimizer: Optimizer) -> Iterator[str]:
    """Yield why a saved state cannot be set and used, of an optimizer of the same class and parameters."""
    own, groups = optimizer.param_groups, saved["param_groups"]
    indices = [group.get("params") for group in groups]
    expected, number = [], 0
    for group in own:
        expected.append(list(range(number, number + len(group["params"]))))
        number += len(group["params"])
    if indices != expected:
        yield "its parameter groups are others"
        return
    for here, there in zip(own, groups, strict=True):
        yield from (f"{key} of an optimizer" for key in here if not _alike(here, there, key))
    parameters = [parameter for group in own for parameter in group["params"]]
    is_adam = "amsgrad" in optimizer.defaults
    for index, state in saved["state"].items():
        if not 0 <= index < number:
            yield "it has a state of no parameter"
        else:
            yield from (
                f"{key} of an optimizer" for key in _misshapen(state, parameters[index], is_adam)
            )


def _alike(here: Mapping[str, Any], there: Mapping[str, Any], key: str) -> bool:
    """Tell whether a group's saved option is of the kind that the optimizer has; what it lacks, torch may add."""
    value, found = here[key], there.get(key)
    if key == "betas" and isinstance(found, tuple | list):
        return len(found) == len(value) and all(_is_number(v) and 0 <= v < 1 for v in found)
    if isinstance(value, tuple | list) and key != "params":
        return isinstance(found, tuple | list) and [*map(_is_number, found)] == [
            *map(_is_number, value)
        ]
    if value is None or isinstance(value, bool):
        return found is None or isinstance(found, bool)
    return not _is_number(value) or _is_number(found)


def _is_number(value: object) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    # More than 64 bits torch cannot take.
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
_OF_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})


def _misshapen(state: Mapping[str, object], parameter: Tensor, is_adam: bool) -> Iterator[str]:
    """Yield what Adam and momentum need of a parameter's state and do not find there."""
    import torch

    if is_adam:
        yield from _OF_ADAM - state.keys()
    for name in _MOMENTS:
        moment = state.get(name, parameter)
        if not isinstance(moment, torch.Tensor) or moment.shape != parameter.shape:
            yield name
    if "step" in state:  # of floating point where torch's optimizers count
        step = state["step"]
        counts = _is_number(step)
        number = step.item() if counts and isinstance(step, torch.Tensor) else step
        if not (counts and isinstance(number, int | float) and 0 <= number < 2**63):
            yield "step"
