"""The names of a family's tensors: which of ours each of them holds, and in which layout."""

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
    """Several of our modules or tensors in one foreign one.

    Args:
        layout: a layout, or what makes one for a layer.
    """

    ours: tuple[str, ...]
    layout: Layout | Callable[[LayerSpec], Layout]


@dataclass(frozen=True)
class Constant:
    """A foreign tensor that holds none of ours: values that follow from the spec, or that nothing reads.

    Args:
        values: what makes them, once.
        read: whether the model reads them, so that another file's must be the same.
    """

    values: Callable[[ModelSpec], Tensor]
    read: bool = True


@dataclass(frozen=True)
class When:
    """What is held in layers that have a value, or in models that do."""

    path: str
    value: object
    ours: str | Fused | Constant


def filled(
    value: float, shape: Callable[[ModelSpec], tuple[int, ...]] = lambda _: (), *, read: bool = True
) -> Constant:
    """Return a foreign tensor that holds one value everywhere."""

    def values(spec: ModelSpec) -> Tensor:
        import torch  # configs are read without it

        return torch.full(shape(spec), value)

    return Constant(values, read)


Mapped = str | Fused | When | Constant | tuple[str | When, ...]
"""The contents of a foreign module or tensor: ours by name, as it is or in a layout, the one of several that there
is, or nothing of ours.

A module's name stands for all its tensors. With `{e}` in the foreign name, there is one of it for each
member of our stack.
"""


@dataclass(frozen=True)
class StackKeys:
    """The names of one stack's layers.

    Args:
        theirs: what those of layer `{i}` begin with in a file.
        ours: what they begin with in our model.
        keys: what is held, by foreign name within a layer.
        in_encoder: whether the stack is the encoder.
    """

    theirs: str
    ours: str
    keys: Mapping[str, Mapped]
    in_encoder: bool = False

    def of(self, spec: ModelSpec) -> list[LayerSpec]:
        """Return the stack's layers that have parameters of their own; none of an encoder that is not there."""
        stack = spec.encoder_model if self.in_encoder else spec
        return [] if stack is None else stack.distinct_layers


@dataclass(frozen=True)
class Slot:
    """A foreign tensor: our tensors that it holds, by name, and how."""

    ours: tuple[str, ...]
    layout: Layout

    def shape(self, tensors: Mapping[str, Tensor]) -> Shape:
        """Return the foreign tensor's shape."""
        return self.layout.shape([tensors[name] for name in self.ours])

    def fits(self, shape: Shape, tensors: Mapping[str, Tensor]) -> bool:
        """Tell whether a foreign tensor may have this shape."""
        rows = 1 if isinstance(self.layout, FirstRow) else 0
        return shape[rows:] == self.shape(tensors)[rows:]

    def read(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy a foreign tensor into ours."""
        for theirs, own in self.layout.pairs(foreign, [tensors[name] for name in self.ours]):
            own.copy_(theirs)

    def write(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Copy ours into a foreign tensor."""
        for theirs, own in self.layout.pairs(foreign, [tensors[name] for name in self.ours]):
            theirs.copy_(own)


@dataclass(frozen=True)
class Fixed(Slot):
    """A foreign tensor that holds none of ours."""

    values: Tensor
    checked: bool

    def shape(self, tensors: Mapping[str, Tensor]) -> Shape:
        return tuple(self.values.shape)

    def fits(self, shape: Shape, tensors: Mapping[str, Tensor]) -> bool:
        return not self.checked or shape == self.shape(tensors)

    def read(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Check that a foreign tensor is what follows from the spec.

        Raises:
            ValueError: it is not.
        """
        import torch

        if self.checked and not torch.allclose(foreign.float(), self.values, atol=1e-3):
            raise ValueError("other values than those that follow from the config")

    def write(self, foreign: Tensor, tensors: Mapping[str, Tensor]) -> None:
        foreign.copy_(self.values)


def slots(
    spec: ModelSpec,
    tensors: Mapping[str, Tensor],
    *,
    stacks: Sequence[StackKeys],
    model_keys: Mapping[str, Mapped],
) -> dict[str, Slot]:
    """Return every foreign tensor of a model by name.

    Args:
        tensors: ours, by name; values may be on the meta device.
        stacks: the names of layers, of each stack.
        model_keys: what is held, by foreign name within the model.

    Raises:
        LookupError: one of our tensors has no place.
    """
    found: dict[str, Slot] = {}
    for foreign, held in model_keys.items():
        found |= _slots(foreign, held, "", tensors, spec, spec)
    for stack in stacks:
        for i, layer in enumerate(stack.of(spec)):
            prefix, ours = stack.theirs.format(i=i), stack.ours.format(i=i)
            here = {name: tensor for name, tensor in tensors.items() if name.startswith(ours)}
            for foreign, held in stack.keys.items():
                found |= _slots(prefix + foreign, held, ours, here, layer, spec)
    if left := set(tensors) - {name for slot in found.values() for name in slot.ours}:
        raise LookupError(f"no foreign name for {', '.join(sorted(left)[:3])}")
    return found


def _slots(
    foreign: str,
    held: Mapped,
    prefix: str,
    tensors: Mapping[str, Tensor],
    layer: LayerSpec,
    spec: ModelSpec,
) -> dict[str, Slot]:
    found: dict[str, Slot] = {}
    if isinstance(held, tuple):
        for one in held:
            found |= _slots(foreign, one, prefix, tensors, layer, spec)
        return found
    if isinstance(held, When):
        there = follow(layer, held.path) == held.value
        return _slots(foreign, held.ours, prefix, tensors, layer, spec) if there else found
    if isinstance(held, Constant):
        return {foreign: Fixed((), Same(), held.values(spec), held.read)}
    if isinstance(held, str):
        held = Fused((held,), Same())
    names = held.ours
    for suffix in _suffixes([prefix + name for name in names], tensors):
        ours = tuple(n for name in names if (n := prefix + name + suffix) in tensors)
        if "{e}" in foreign:
            for e in range(len(tensors[ours[0]])):
                found[foreign.format(e=e) + suffix] = Slot(ours, View(itemgetter(e)))
        else:
            layout = held.layout(layer) if callable(held.layout) else held.layout
            found[foreign + suffix] = Slot(ours, layout)
    return found


def _suffixes(modules: Sequence[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """Return what follows a module's name in those of its tensors; nothing where it is a tensor itself."""
    found: dict[str, None] = {}
    for module in modules:
        if module in tensors:
            return [""]
        inside = (
            name.removeprefix(module + ".") for name in tensors if name.startswith(module + ".")
        )
        found |= dict.fromkeys("." + rest for rest in inside if "." not in rest)
    return list(found)
