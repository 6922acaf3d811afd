"""Layer types in configs: the type of each layer, and the spec values of each type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from archwright.hf.lenses import (
    MISSING,
    Config,
    Get,
    Lens,
    Set,
    Table,
    joined,
    lay,
    read_all,
    write_all,
)
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec


@dataclass(frozen=True)
class Role:
    """A layer type: its distinctive values, and lenses for its other values.

    A type with another mixer sets the kinds of all mixers, as in {"attention.kind": "none", "position.kind": "none",
    "recurrence.kind": "delta"}; the family's lenses describe the layers with attention.

    Args:
        values: Spec values by dotted path that distinguish this type from other types of the group.
        lenses: Mappings for this type only. All roles of a group set the same axes, or the axes of another mixer.
    """

    values: Mapping[str, Any]
    lenses: Sequence[Lens] = ()


@dataclass(frozen=True)
class Layers:
    """A group of alternative layer types."""

    pattern: MaskPattern
    roles: Mapping[str, Role]

    @property
    def lenses(self) -> list[Lens]:
        """Lenses of all roles."""
        return [lens for role in self.roles.values() for lens in role.lenses]

    def names(self, config: Config, num_layers: int) -> list[str]:
        """Return the role of each layer, as read from a config."""
        names = self.pattern.read(config, num_layers)
        if len(names) != num_layers:
            raise UserError(
                f"config.json: found the types of {len(names)} layers; expected {num_layers}"
            )
        if unknown := set(names) - set(self.roles):
            raise UserError(
                f"config.json: found a layer of type {min(unknown)!r}; expected one of "
                f"{', '.join(self.roles)}"
            )
        return names

    def of(self, role: str, config: Config) -> Table:
        """Read from a config the spec values of the layers that have `role`."""
        return read_all([Set(self.roles[role].values), *self.roles[role].lenses], config)

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the config keys of the pattern and of the roles in use."""
        names = [self._role(getter(spec, [i])) for i in range(spec.num_layers)]
        keys: dict[str, Any] = dict(self.pattern.write(names))
        for role in dict.fromkeys(names):
            indices = [i for i, name in enumerate(names) if name == role]
            keys = joined(keys, write_all(self.roles[role].lenses, getter(spec, indices)))
        return keys

    def _role(self, get: Get) -> str:
        """Return the first matching role of a layer, or the last role."""
        for name, role in self.roles.items():
            if all(get(path) == value for path, value in role.values.items()):
                return name
        return list(self.roles)[-1]


@dataclass(frozen=True)
class Listed:
    """List of layer types in config[key]. If the key is null, `otherwise` computes the list."""

    key: str = "layer_types"
    otherwise: Callable[[Config, int], list[str]] | None = None

    def read(self, config: Config, num_layers: int) -> list[str]:
        value = config.get(self.key)
        if value is None and self.otherwise is not None:
            return self.otherwise(config, num_layers)
        if not isinstance(value, list):
            raise UserError(f"config.json: {self.key}: found {value!r}; expected a list")
        return [str(x) for x in value]

    def write(self, roles: list[str]) -> dict[str, Any]:
        return {self.key: roles}


@dataclass(frozen=True)
class CustomPattern:
    """Layer types read and written by functions."""

    read: Callable[[Config, int], list[str]]
    write: Callable[[list[str]], dict[str, Any]]


MaskPattern = Listed | CustomPattern
"""Mapping between config keys and the role of each layer."""


def every(number: int, other: str = "sliding_attention") -> Callable[[Config, int], list[str]]:
    """Return a repeating pattern: `number` - 1 layers of type `other`, one full-attention layer."""
    return lambda config, num_layers: [
        other if (i + 1) % number else "full_attention" for i in range(num_layers)
    ]


def every_by(key: str, other: str = "sliding_attention") -> Callable[[Config, int], list[str]]:
    """Return the pattern `every(config[key], other)`."""
    return lambda config, num_layers: every(int(config[key]), other)(config, num_layers)


def first_of(number: int) -> Callable[[Config, int], list[str]]:
    """Return a repeating pattern: one full-attention layer, `number` - 1 window layers."""
    return lambda config, num_layers: [
        "sliding_attention" if i % number else "full_attention" for i in range(num_layers)
    ]


def arranged(spec: Table, tables: Sequence[Table], names: Sequence[str]) -> None:
    """Add all layers to a spec's table, the most frequent as default."""
    default = Counter(names).most_common(1)[0][0]
    kinds: dict[str, Table] = dict(zip(names, tables, strict=True))
    common = {axis: deepcopy(value) for axis, value in spec.items() if isinstance(value, dict)}
    lay(spec, kinds.pop(default))
    if not kinds:
        return
    # Where the default layer has another kind, such as no attention, layers without a kind keep the family's values.
    for axis, value in common.items():
        for table in kinds.values() if spec[axis].get("kind") != value.get("kind") else ():
            if "kind" not in (stated := table.get(axis, {})):
                table[axis] = deepcopy(value)
                lay(table[axis], stated)
    spec["layer_kinds"] = {name.replace("_attention", ""): table for name, table in kinds.items()}
    order = ["default" if n == default else n.replace("_attention", "") for n in names]
    # Prefix and cycle of the smallest total length.
    cycles = ((start, _cycle(order[start:])) for start in range(len(order)))
    start, length = min(cycles, key=sum)
    layers: Table = {"cycle": order[start : start + length]}
    spec["layers"] = layers | {"prefix": order[:start]} if start else layers


def _cycle(names: Sequence[str]) -> int:
    """Return the period of a sequence of names."""
    return next(
        length
        for length in range(1, len(names) + 1)
        if all(name == names[i % length] for i, name in enumerate(names))
    )


def getter(spec: ModelSpec, layers: Sequence[int] | None = None) -> Get:
    """Return a function for looking up spec values by dotted path.

    Values of layers come from the first of `layers` (indices; default: all) that has the path, attention first.
    """
    indices = range(spec.num_layers) if layers is None else layers
    names = spec.layers.names(spec.num_layers)
    kinds = dict.fromkeys(names[i] for i in indices)
    # Layers with attention first: recurrent ones have neither its options nor its position.
    stacks = sorted(
        (spec.layers_by_kind[kind] for kind in kinds), key=lambda s: s.attention.is_none
    )

    def get(path: str) -> Any:
        axis = path.split(".")[0]
        owners = stacks if axis in type(stacks[0]).model_fields else [spec]
        values = (follow(owner, path) for owner in owners)
        return next((value for value in values if value is not MISSING), MISSING)

    return get


def follow(owner: object, path: str) -> Any:
    """Return the value at a dotted path, or `MISSING`."""
    for name in path.split("."):
        owner = getattr(owner, name, MISSING)
        if owner is MISSING:
            return MISSING
    return owner
