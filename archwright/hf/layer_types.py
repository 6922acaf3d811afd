"""Layers of several types in foreign configs: how a config tells which layer is of which type, and what each
type is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    """A type of layer: what makes a layer one, and what else a config says of it.

    Args:
        values: values by dotted path that layers of this type have and others of the same group do not.
        lenses: what is read and written of it; all roles of a group speak of the same axes.
    """

    values: Mapping[str, Any]
    lenses: Sequence[Lens] = ()


@dataclass(frozen=True)
class Layers:
    """A group of types, one of which each layer is."""

    pattern: MaskPattern
    roles: Mapping[str, Role]

    @property
    def lenses(self) -> list[Lens]:
        """Lenses of all roles."""
        return [lens for role in self.roles.values() for lens in role.lenses]

    def names(self, config: Config, num_layers: int) -> list[str]:
        """Return the role of each layer of a config."""
        names = self.pattern.read(config, num_layers)
        if len(names) != num_layers:
            raise UserError(
                f"config.json: found the types of {len(names)} layers; expected {num_layers}"
            )
        if unknown := set(names) - set(self.roles):
            raise UserError(
                f"config.json: found a layer of type {min(unknown)!r}; this package knows "
                f"{', '.join(self.roles)}"
            )
        return names

    def of(self, role: str, config: Config) -> Table:
        """Return what a config says of layers with a role."""
        return read_all([Set(self.roles[role].values), *self.roles[role].lenses], config)

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the keys of this group: the pattern's, and those of each role that is there."""
        names = [self._role(getter(spec, [i])) for i in range(spec.num_layers)]
        keys: dict[str, Any] = dict(self.pattern.write(names))
        for role in dict.fromkeys(names):
            here = [i for i, name in enumerate(names) if name == role]
            keys = joined(keys, write_all(self.roles[role].lenses, getter(spec, here)))
        return keys

    def _role(self, get: Get) -> str:
        """Return the role of a layer; of one that has none, the last."""
        for name, role in self.roles.items():
            if all(get(path) == value for path, value in role.values.items()):
                return name
        return list(self.roles)[-1]


@dataclass(frozen=True)
class Listed:
    """config[key] names the type of each layer; where it is null, `otherwise` says it."""

    key: str = "layer_types"
    otherwise: Callable[[Config, int], list[str]] | None = None

    def read(self, config: Config, num_layers: int) -> list[str]:
        found = config.get(self.key)
        if found is None and self.otherwise is not None:
            return self.otherwise(config, num_layers)
        if not isinstance(found, list):
            raise UserError(f"config.json: {self.key}: found {found!r}; expected a list")
        return [str(x) for x in found]

    def write(self, roles: list[str]) -> dict[str, Any]:
        return {self.key: roles}


@dataclass(frozen=True)
class CustomPattern:
    """A pattern that takes a function each way."""

    read: Callable[[Config, int], list[str]]
    write: Callable[[list[str]], dict[str, Any]]


MaskPattern = Listed | CustomPattern
"""How a config says which layer is of which type: the role of each layer, and the keys for such roles."""


def every(number: int) -> Callable[[Config, int], list[str]]:
    """Return the pattern in which each `number`-th layer, counted from 1, sees all, and others through a window."""
    return lambda config, num_layers: [
        "sliding_attention" if (i + 1) % number else "full_attention" for i in range(num_layers)
    ]


def every_by(key: str) -> Callable[[Config, int], list[str]]:
    """Return the pattern of `every` with the number of config[key]."""
    return lambda config, num_layers: every(int(config[key]))(config, num_layers)


def first_of(number: int) -> Callable[[Config, int], list[str]]:
    """Return the pattern in which the first of each `number` layers sees all, and others through a window."""
    return lambda config, num_layers: [
        "sliding_attention" if i % number else "full_attention" for i in range(num_layers)
    ]


def arranged(spec: Table, tables: Sequence[Table], names: Sequence[str]) -> None:
    """Put the named tables of all layers into a spec, the most frequent as the default layer."""
    default = Counter(names).most_common(1)[0][0]
    kinds: dict[str, Table] = dict(zip(names, tables, strict=True))
    lay(spec, kinds.pop(default))
    if not kinds:
        return
    spec["layer_kinds"] = {name.replace("_attention", ""): table for name, table in kinds.items()}
    order = ["default" if n == default else n.replace("_attention", "") for n in names]
    # The shortest cycle, after the shortest prefix, that gives these names.
    cycles = ((start, _cycle(order[start:])) for start in range(len(order)))
    start, length = min(cycles, key=sum)
    found: Table = {"cycle": order[start : start + length]}
    spec["layers"] = found | {"prefix": order[:start]} if start else found


def _cycle(names: Sequence[str]) -> int:
    """Return how many names there are before they repeat."""
    return next(
        length
        for length in range(1, len(names) + 1)
        if all(name == names[i % length] for i, name in enumerate(names))
    )


def getter(spec: ModelSpec, layers: Sequence[int] | None = None) -> Get:
    """Return what looks up a spec's values by dotted path.

    A value of a layer is that of the first of `layers`, by default all, that has one.
    """
    wanted = range(spec.num_layers) if layers is None else layers
    names = spec.layers.names(spec.num_layers)
    kinds = dict.fromkeys(names[i] for i in wanted)
    stacks = [spec.layers_by_kind[kind] for kind in kinds]

    def get(path: str) -> Any:
        axis = path.split(".")[0]
        owners = stacks if axis in type(stacks[0]).model_fields else [spec]
        found = (follow(owner, path) for owner in owners)
        return next((value for value in found if value is not MISSING), MISSING)

    return get


def follow(owner: object, path: str) -> Any:
    """Return the value at a dotted path, or `MISSING`."""
    for name in path.split("."):
        owner = getattr(owner, name, MISSING)
        if owner is MISSING:
            return MISSING
    return owner
