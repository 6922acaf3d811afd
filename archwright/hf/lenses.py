"""Lenses: each says how some keys of a foreign config.json and some values of a spec tell the same thing,
in both directions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from archwright.spec.errors import UserError, nearest

Config = Mapping[str, Any]
"""A config.json, with the defaults of its class for keys that it leaves out."""
Table = dict[str, Any]
"""Nested values, as a spec's file has them."""
Get = Callable[[str], Any]
"""Return a spec's value at a dotted path, or `MISSING`."""

MISSING: Any = object()


class Lens(Protocol):
    """One correspondence between a config and a spec."""

    def read(self, config: Config, /) -> Table:
        """Return what the config says of the spec."""

    def write(self, get: Get, /) -> dict[str, Any]:
        """Return the config's keys for a spec; fewer where it has no such values. What a config cannot
        say is found by reading it back."""


@dataclass(frozen=True)
class Field:
    """config[key] = the value at each of `paths`; a dotted key stands within a table of the config.

    Args:
        same_as: the key that counts where config[key] is null.
        or_none: null stands for "none".
        times: the spec's number over the config's.
    """

    key: str
    paths: str | tuple[str, ...]
    same_as: str = ""
    or_none: bool = False
    times: float = 1.0

    def read(self, config: Config) -> Table:
        value = lookup(config, self.key)
        if value is None and self.same_as:
            value = lookup(config, self.same_as)
        if value is None and self.or_none:
            value = "none"
        elif isinstance(value, (int, float)) and self.times != 1:
            value = value * self.times
        table: Table = {}
        for path in _tuple(self.paths):
            lay(table, nested(path, value))
        return table

    def write(self, get: Get) -> dict[str, Any]:
        found = [value for path in _tuple(self.paths) if (value := get(path)) is not MISSING]
        if not found:
            return {}
        value = None if self.or_none and found[0] == "none" else found[0]
        if value is not None and self.times != 1:
            value = value // self.times if value % self.times == 0 else value / self.times
        return nested(self.key, value)


@dataclass(frozen=True)
class Set:
    """Values that all models of a family have."""

    values: Mapping[str, Any]

    def read(self, config: Config) -> Table:
        table: Table = {}
        for path, value in self.values.items():
            lay(table, nested(path, value))
        return table

    def write(self, get: Get) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Write:
    """Keys that the ecosystem expects in a config, and that say nothing of the architecture."""

    keys: Mapping[str, Any]

    def read(self, config: Config) -> Table:
        return {}

    def write(self, get: Get) -> dict[str, Any]:
        return dict(self.keys)


@dataclass(frozen=True)
class Switch:
    """config[key] is one of some values, each of which stands for lenses of its own (most often a `Set`).

    On the way out, the first value counts whose `Set`s all hold.
    """

    key: str
    cases: Mapping[Hashable, Lens | Sequence[Lens]]

    def read(self, config: Config) -> Table:
        value = lookup(config, self.key)
        if not isinstance(value, Hashable) or value not in self.cases:
            raise UserError(refused(self.key, value, self.cases))
        return read_all(_lenses(self.cases[value]), config)

    def write(self, get: Get) -> dict[str, Any]:
        for value, case in self.cases.items():
            lenses = _lenses(case)
            if all(holds(lens, get) for lens in lenses):
                return joined(nested(self.key, value), write_all(lenses, get))
        return {}


@dataclass(frozen=True)
class Refuse:
    """config[key] must be one of `known`: anything else is not in this package."""

    key: str
    known: tuple[Any, ...]

    def read(self, config: Config) -> Table:
        if (found := lookup(config, self.key)) not in self.known:
            raise UserError(refused(self.key, found, self.known))
        return {}

    def write(self, get: Get) -> dict[str, Any]:
        return nested(self.key, self.known[0])


@dataclass(frozen=True)
class Either:
    """One of two groups of lenses: the first where `given(config)`, and on the way out where `then(get)`.

    Args:
        key: the key of the config that this is all about, if there is one.
    """

    given: Callable[[Config], bool]
    then: Callable[[Get], bool]
    first: Sequence[Lens]
    second: Sequence[Lens] = ()
    key: str | None = None

    def read(self, config: Config) -> Table:
        return read_all(self.first if self.given(config) else self.second, config)

    def write(self, get: Get) -> dict[str, Any]:
        return write_all(self.first if self.then(get) else self.second, get)


@dataclass(frozen=True)
class Computed:
    """A correspondence that takes arithmetic: a function each way.

    Args:
        write: by default nothing, as other keys say it.
        key: the key of the config that this is all about, if there is one.
    """

    read: Callable[[Config], Table]
    write: Callable[[Get], dict[str, Any]] = lambda get: {}
    key: str | None = None


def converted(
    key: str, path: str, read: Callable[[Any], Any], write: Callable[[Any], Any]
) -> Computed:
    """Return the lens of config[key] and the value at a path, each a function of the other."""

    def write_key(get: Get) -> dict[str, Any]:
        return {} if (value := get(path)) is MISSING else nested(key, write(value))

    return Computed(lambda config: nested(path, read(lookup(config, key))), write_key, key)


PLAIN_ACTIVATIONS: Mapping[str, Table] = {
    "gelu": {"kind": "gelu", "approximate": "none"},
    "gelu_new": {"kind": "gelu", "approximate": "tanh"},
    "gelu_pytorch_tanh": {"kind": "gelu", "approximate": "tanh"},
    "gelu_fast": {"kind": "gelu", "approximate": "tanh"},
    "quick_gelu": {"kind": "quick_gelu"},
    "relu": {"kind": "relu"},
    "relu2": {"kind": "squared_relu"},
    "silu": {"kind": "silu"},
    "swish": {"kind": "silu"},
}
"""Feed-forwards without a gate, by the name of their activation."""

GATED_ACTIVATIONS: Mapping[str, Table] = {
    "silu": {"kind": "swiglu"},
    "swish": {"kind": "swiglu"},
    "gelu": {"kind": "geglu", "approximate": "none"},
    "gelu_pytorch_tanh": {"kind": "geglu", "approximate": "tanh"},
    "gelu_new": {"kind": "geglu", "approximate": "tanh"},
    "gelu_fast": {"kind": "geglu", "approximate": "tanh"},
    "relu": {"kind": "reglu"},
    "relu2": {"kind": "squared_reglu"},
    "sigmoid": {"kind": "glu"},
    "linear": {"kind": "bilinear"},
}
"""Gated feed-forwards, by the name of their activation."""


@dataclass(frozen=True)
class Activation:
    """config[key] names the function of a feed-forward.

    Args:
        path: where the feed-forward stands in the spec.
        names: names that this family reads otherwise, before the usual ones.
    """

    key: str
    gated: bool
    path: str = "feedforward"
    names: Mapping[str, Table] = field(default_factory=dict)

    def read(self, config: Config) -> Table:
        name = lookup(config, self.key)
        if name not in self._names:
            raise UserError(refused(self.key, name, self._names))
        found = self._names[name]
        return nested(self.path, dict(found))

    def write(self, get: Get) -> dict[str, Any]:
        for name, table in self._names.items():
            if all(get(f"{self.path}.{key}") == value for key, value in table.items()):
                return nested(self.key, name)
        return {}

    @property
    def _names(self) -> Mapping[str, Table]:
        usual = GATED_ACTIVATIONS if self.gated else PLAIN_ACTIVATIONS
        return {**self.names, **{k: v for k, v in usual.items() if k not in self.names}}


def read_all(lenses: Sequence[Lens], config: Config) -> Table:
    """Return what several lenses read, later ones over earlier ones."""
    table: Table = {}
    for lens in lenses:
        lay(table, lens.read(config))
    return table


def write_all(lenses: Sequence[Lens], get: Get) -> dict[str, Any]:
    """Return what several lenses write, later ones over earlier ones."""
    keys: dict[str, Any] = {}
    for lens in lenses:
        keys = joined(keys, lens.write(get))
    return keys


def joined(keys: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a config with more of them; those within tables join the table."""
    result = dict(keys)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = {**result[key], **value} if both else value
    return result


def lookup(config: Config, key: str) -> Any:
    """Return what a config says at a key, dotted within a table."""
    found: Any = config
    for name in key.split("."):
        found = found[name]
    return found


def holds(lens: Lens, get: Get) -> bool:
    """Tell whether a spec has the values that a `Set` sets; other lenses say nothing of it."""
    return not isinstance(lens, Set) or all(get(p) == value for p, value in lens.values.items())


def lay(table: Table, over: Table) -> None:
    """Lay a table over another; another kind drops what the old kind had."""
    for key, value in over.items():
        old = table.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if "kind" in value and "kind" in old and old["kind"] != value["kind"]:
                table[key] = dict(value)
            else:
                lay(old, value)
        else:
            table[key] = dict(value) if isinstance(value, dict) else value


def nested(path: str, value: Any) -> Table:
    """Return `value` under a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def refused(key: str, found: Any, known: Any) -> str:
    """Say that a config has a value that this package does not know."""
    shown = ", ".join(str(value) for value in known)
    hint = nearest(found, [str(k) for k in known]) if isinstance(found, str) else ""
    return f"config.json: {key}: found {found!r}; this package knows {shown}.{hint}"


def _tuple(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths


def _lenses(case: Lens | Sequence[Lens]) -> Sequence[Lens]:
    return case if isinstance(case, Sequence) else (case,)
