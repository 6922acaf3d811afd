"""Lenses: two-way mappings between config.json keys and spec values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from archwright.spec.errors import UserError, nearest

Config = Mapping[str, Any]
"""Content of a config.json, completed with the defaults of its class."""
Table = dict[str, Any]
"""Nested values of a spec, as in its file."""
Get = Callable[[str], Any]
"""Lookup of a spec value by dotted path; returns `MISSING` if there is none."""

MISSING: Any = object()


class Lens(Protocol):
    """A mapping between a config and a spec."""

    def read(self, config: Config, /) -> Table:
        """Return values of the spec, as read from a config."""

    def write(self, get: Get, /) -> dict[str, Any]:
        """Return the config keys of a spec; unsupported values have no key."""


@dataclass(frozen=True)
class Field:
    """config[key] = the spec value at all `paths`; dotted keys are nested.

    Args:
        same_as: Fallback key if config[key] is null.
        or_none: True if null means "none".
        times: Factor from the number in the config to the number in the spec.
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
        values = [value for path in _tuple(self.paths) if (value := get(path)) is not MISSING]
        if not values:
            return {}
        value = None if self.or_none and values[0] == "none" else values[0]
        if value is not None and self.times != 1:
            value = value // self.times if value % self.times == 0 else value / self.times
        return nested(self.key, value)


@dataclass(frozen=True)
class Set:
    """Constant values of the spec, shared by all models of a family."""

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
    """Constant keys of the config without influence on the architecture."""

    keys: Mapping[str, Any]

    def read(self, config: Config) -> Table:
        return {}

    def write(self, get: Get) -> dict[str, Any]:
        return dict(self.keys)


@dataclass(frozen=True)
class Switch:
    """The value of config[key] selects a case: one lens or several, often a `Set`.

    When writing, the first case with `Set` lenses that all hold in the spec is chosen.
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
    """config[key] must be one of `accepted`; other values are not supported."""

    key: str
    accepted: tuple[Any, ...]

    def read(self, config: Config) -> Table:
        if (value := lookup(config, self.key)) not in self.accepted:
            raise UserError(refused(self.key, value, self.accepted))
        return {}

    def write(self, get: Get) -> dict[str, Any]:
        return nested(self.key, self.accepted[0])


@dataclass(frozen=True)
class Either:
    """One of two groups of lenses.

    `read` uses `first` if `reads_first(config)`, `write` if `writes_first(get)`; otherwise they use `second`.

    Args:
        key: The config key that both groups map, if exactly one.
    """

    reads_first: Callable[[Config], bool]
    writes_first: Callable[[Get], bool]
    first: Sequence[Lens]
    second: Sequence[Lens] = ()
    key: str | None = None

    def read(self, config: Config) -> Table:
        return read_all(self.first if self.reads_first(config) else self.second, config)

    def write(self, get: Get) -> dict[str, Any]:
        return write_all(self.first if self.writes_first(get) else self.second, get)


@dataclass(frozen=True)
class Computed:
    """A lens made of a read and a write function, for values that must be calculated.

    Args:
        write: By default it writes nothing, because other lenses write these keys.
        key: The config key that it maps, if exactly one.
    """

    read: Callable[[Config], Table]
    write: Callable[[Get], dict[str, Any]] = lambda get: {}
    key: str | None = None


def converted(
    key: str, path: str, read: Callable[[Any], Any], write: Callable[[Any], Any]
) -> Computed:
    """Return the lens between config[key] and a spec value; `read` and `write` convert the value."""

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
"""Feed-forwards without a gate, by activation name."""

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
"""Gated feed-forwards, by activation name."""


@dataclass(frozen=True)
class Activation:
    """config[key] names the activation of a feed-forward.

    Args:
        path: Path of the feed-forward in the spec.
        names: Feed-forwards of this family by activation name; they override the usual ones.
    """

    key: str
    gated: bool
    path: str = "feedforward"
    names: Mapping[str, Table] = field(default_factory=dict)

    def read(self, config: Config) -> Table:
        name = lookup(config, self.key)
        if name not in self._names:
            raise UserError(refused(self.key, name, self._names))
        return nested(self.path, dict(self._names[name]))

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
    """Read a config with several lenses; later lenses override earlier ones."""
    table: Table = {}
    for lens in lenses:
        lay(table, lens.read(config))
    return table


def write_all(lenses: Sequence[Lens], get: Get) -> dict[str, Any]:
    """Write a config with several lenses; later lenses override earlier ones."""
    keys: dict[str, Any] = {}
    for lens in lenses:
        keys = joined(keys, lens.write(get))
    return keys


def joined(keys: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """Return a config with updated keys; tables are merged one level deep."""
    result = dict(keys)
    for key, value in update.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = {**result[key], **value} if both else value
    return result


def lookup(config: Config, key: str) -> Any:
    """Return the value at a key of a config; a dotted key leads into nested tables."""
    value: Any = config
    for name in key.split("."):
        value = value[name]
    return value


def holds(lens: Lens, get: Get) -> bool:
    """True if a spec has the values of a `Set`, always True otherwise."""
    return not isinstance(lens, Set) or all(get(p) == value for p, value in lens.values.items())


def lay(table: Table, over: Table) -> None:
    """Merge `over` into `table` in place; new kinds drop old options."""
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
    """Return `value` nested under a dotted path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def refused(key: str, value: Any, accepted: Iterable[Any]) -> str:
    """Return the error message for an unsupported value of a config."""
    names = [str(choice) for choice in accepted]
    expected = f"one of {', '.join(names)}" if names[1:] else names[0]
    hint = nearest(value, names) if isinstance(value, str) else ""
    return f"config.json: {key}: found {value!r}; expected {expected}.{hint}"


def _tuple(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths


def _lenses(case: Lens | Sequence[Lens]) -> Sequence[Lens]:
    return case if isinstance(case, Sequence) else (case,)
