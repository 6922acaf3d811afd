"""Tensor names of a family: for each checkpoint tensor, its model tensors and their layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from archwright.hf.layer_types import follow
from archwright.hf.layouts import FirstRow, Layout, Same, Shape, View
from archwright.spec.model_spec import LayerSpec, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Fused:
    """Several model tensors in one checkpoint tensor, or modules in one module.

    Args:
        ours: Names of the model's modules or tensors.
        layout: A layout, or a function that returns the layout for a layer.
    """

    ours: tuple[str, ...]
    layout: Layout | Callable[[LayerSpec], Layout]


@dataclass(frozen=True)
class Constant:
    """A checkpoint tensor without parameters: computed from the spec, or unused.

    Args:
        values: Function (spec, index of the layer) that computes the tensor; index 0 outside the layers.
        read: True if the values matter, so that a file with other values is refused.
    """

    values: Callable[[ModelSpec, int], Tensor]
    read: bool = True


@dataclass(frozen=True)
class When:
    """Model tensors of a checkpoint name, only for layers or models with `value` at `path` in the spec."""

    path: str
    value: object
    ours: str | Fused | Constant


def filled(
    value: float, shape: Callable[[ModelSpec], tuple[int, ...]] = lambda _: (), *, read: bool = True
) -> Constant:
    """Return a checkpoint tensor filled with one value."""

    def values(spec: ModelSpec, layer: int) -> Tensor:
        import torch  # configs are read without it

        return torch.full(shape(spec), value)

    return Constant(values, read)


Mapped = str | Fused | When | Constant | tuple[str | When, ...]
"""Contents of a checkpoint module or tensor: a name in the model, several fused names, a constant, or alternatives.

A module's name includes all its tensors. A checkpoint name with `{e}` is repeated for each matrix of a stack. In names
of the model, `{mixer}` is "attention" or "recurrence", the branch that gives a layer's first norm its name. A fused
name with `{i}`, outside the layers, is repeated for each layer.
"""


@dataclass(frozen=True)
class StackKeys:
    """Tensor names of the layers of one stack.

    Args:
        theirs: Name prefix of layer `{i}` in files.
        ours: Name prefix of layer `{i}` in the model.
        keys: Checkpoint name of a layer's tensor, after the prefix -> its model tensors.
        in_encoder: True for the encoder.
    """

    theirs: str
    ours: str
    keys: Mapping[str, Mapped]
    in_encoder: bool = False

    def of(self, spec: ModelSpec) -> list[LayerSpec]:
        """Return the distinct layers of the stack; empty without such a stack."""
        stack = spec.encoder_model if self.in_encoder else spec
        return [] if stack is None else stack.distinct_layers


@dataclass(frozen=True)
class Slot:
    """A checkpoint tensor: names and layout of its model tensors (`ours`)."""

    ours: tuple[str, ...]
    layout: Layout

    def shape(self, tensors: Mapping[str, Tensor]) -> Shape:
        """Return the shape of the checkpoint tensor."""
        return self.layout.shape([tensors[name] for name in self.ours])

    def fits(self, shape: Shape, tensors: Mapping[str, Tensor]) -> bool:
        """True if this is a valid shape of the checkpoint tensor."""
        rows = 1 if isinstance(self.layout, FirstRow) else 0
        return shape[rows:] == self.shape(tensors)[rows:]

    def read(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy a checkpoint tensor into model tensors."""
        for theirs, ours in self.layout.pairs(foreign, [tensors[name] for name in self.ours]):
            ours.copy_(theirs)

    def write(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy model tensors into a checkpoint tensor."""
        for theirs, ours in self.layout.pairs(foreign, [tensors[name] for name in self.ours]):
            theirs.copy_(ours)


@dataclass(frozen=True)
class Fixed(Slot):
    """A checkpoint tensor with constant values. If `checked`, a file with other values is refused."""

    values: Tensor
    checked: bool

    def shape(self, tensors: Mapping[str, Tensor]) -> Shape:
        return tuple(self.values.shape)

    def fits(self, shape: Shape, tensors: Mapping[str, Tensor]) -> bool:
        return not self.checked or shape == self.shape(tensors)

    def read(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Compare a checkpoint tensor with the expected values.

        Raises:
            ValueError: The values are checked and differ.
        """
        import torch

        if self.checked and not torch.allclose(foreign.float(), self.values, atol=1e-3):
            raise ValueError("values that do not match the config")

    def write(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        foreign.copy_(self.values)


def slots(
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    *,
    stacks: Sequence[StackKeys],
    model_keys: Mapping[str, Mapped],
) -> dict[str, Slot]:
    """Return the slots of all checkpoint tensors of a model, by name.

    Args:
        tensors: Model tensors by name; may be on the meta device.
        stacks: Tensor names of each stack.
        model_keys: Checkpoint name of a tensor outside the layers -> its model tensors.

    Raises:
        LookupError: A model tensor has no checkpoint name.
    """
    by_name: dict[str, Slot] = {}
    for foreign, held in model_keys.items():
        by_name |= _slots(foreign, held, "", tensors, spec, spec, 0)
    for stack in stacks:
        for i, layer in enumerate(stack.of(spec)):
            prefix, ours = stack.theirs.format(i=i), stack.ours.format(i=i)
            inside = {name: tensor for name, tensor in tensors.items() if name.startswith(ours)}
            for foreign, held in stack.keys.items():
                by_name |= _slots(prefix + foreign, held, ours, inside, layer, spec, i)
    if unmapped := set(tensors) - {name for slot in by_name.values() for name in slot.ours}:
        raise LookupError(f"no checkpoint name for {', '.join(sorted(unmapped)[:3])}")
    return by_name


def _slots(
    foreign: str,
    held: Mapped,
    prefix: str,
    tensors: Mapping[str, Tensor],
    layer: LayerSpec,
    spec: ModelSpec,
    index: int,
) -> dict[str, Slot]:
    by_name: dict[str, Slot] = {}
    if isinstance(held, tuple):
        for alternative in held:
            by_name |= _slots(foreign, alternative, prefix, tensors, layer, spec, index)
        return by_name
    if isinstance(held, When):
        applies = follow(layer, held.path) == held.value
        if not applies:
            return by_name
        return _slots(foreign, held.ours, prefix, tensors, layer, spec, index)
    if isinstance(held, Constant):
        return {foreign: Fixed((), Same(), held.values(spec, index), held.read)}
    if isinstance(held, str):
        held = Fused((held,), Same())
    mixer = next(iter(layer.groups), "")
    names = [
        name.replace("{mixer}", mixer).replace("{i}", str(i))
        for name in held.ours
        for i in range(len(spec.distinct_layers) if "{i}" in name else 1)
    ]
    for suffix in _suffixes([prefix + name for name in names], tensors):
        ours = tuple(n for name in names if (n := prefix + name + suffix) in tensors)
        if "{e}" in foreign:
            for e in range(len(tensors[ours[0]])):
                by_name[foreign.format(e=e) + suffix] = Slot(ours, View(itemgetter(e)))
        else:
            layout = held.layout(layer) if callable(held.layout) else held.layout
            by_name[foreign + suffix] = Slot(ours, layout)
    return by_name


def _suffixes(modules: Sequence[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the suffixes of tensor names after module names, such as ".weight"; "" if a name is a tensor's."""
    suffixes: dict[str, None] = {}
    for module in modules:
        if module in tensors:
            return [""]
        inside = (
            name.removeprefix(module + ".") for name in tensors if name.startswith(module + ".")
        )
        suffixes |= dict.fromkeys("." + rest for rest in inside if "." not in rest)
    return list(suffixes)
