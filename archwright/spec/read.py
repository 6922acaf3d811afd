"""Reading and writing specs: TOML files, base chains, dotted overrides, and what differs between two."""

import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from archwright.spec.choice import Choice, Spec
from archwright.spec.errors import UserError, nearest
from archwright.spec.merge import merge, validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.run_spec import RunSpec

S = TypeVar("S", bound=Spec)
Values = dict[str, Any]

NAMING = {"name", "source", "sources"}
"""Keys that say what a spec is called and where it comes from, not what it is."""
MAX_CHAIN = 3
"""Longest chain of bases."""


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: a file (or "default"), and the source stated there."""

    file: str
    source: str = ""


@dataclass(frozen=True)
class Loaded:
    """A model's spec and where each of its values was set, by dotted path."""

    spec: ModelSpec
    blame: dict[str, Origin]


def load(name: str | Path) -> ModelSpec:
    """Return the spec of a preset (`"modern"`) or of a TOML file (`"mine.toml"`).

    Raises:
        UserError: no such preset or file, or mistakes in it, one line each.
    """
    return load_with_blame(name).spec


def load_with_blame(name: str | Path) -> Loaded:
    """Return a model's spec together with the file and source that set each value."""
    return _from_chain(_chain(name, "models"))


def load_run(name: str | Path) -> RunSpec:
    """Return the run of a recipe, or the default run of a model.

    Raises:
        UserError: no such preset or file, or mistakes in it, one line each.
    """
    if str(name) not in preset_names("runs") and str(name) in preset_names("models"):
        return RunSpec(name=str(name), model=load(name))
    path = _find(name, "runs")
    values = _parse(path)
    if "model" not in values:
        model = load(path)
        return RunSpec(name=model.name, model=model)
    return _run_from(values, path)


def read_run(path: Path) -> RunSpec:
    """Return the run that a run folder's spec.toml describes."""
    values = _parse(path)
    values.pop("format", None)
    return validated(RunSpec, values)


def to_toml(spec: Spec) -> str:
    """Return a spec as TOML; reading it gives an equal spec."""
    return tomli_w.dumps(spec.model_dump(by_alias=True, mode="json"))


def override(spec: S, assignments: Iterable[str]) -> S:
    """Return `spec` with dotted values replaced, all at once, whatever their order.

    Raises:
        UserError: what is no assignment, no path or no legal value, one line each.
    """
    over: Values = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise UserError(f'"{assignment}": expected key=value, such as {_example(spec)}')
        _check_path(type(spec), keys)
        over = merge(over, _nest(keys, _value(text.strip())))
    return validated(type(spec), merge(_dump(spec), over))


def diff(old: Spec, new: Spec) -> list[str]:
    """Return one line for each value that differs, names and sources aside: `path: old -> new`."""
    before, after = flatten(_dump(old)), flatten(_dump(new))
    lines = []
    for path in dict.fromkeys([*before, *after]):
        a, b = (toml_value(side[path]) if path in side else "-" for side in (before, after))
        if a != b and not NAMING & set(path.split(".")):
            lines.append(f"{path}: {a} -> {b}")
    return lines


def preset_names(room: str) -> list[str]:
    """Return the names of the presets in a room: models or runs."""
    folder = resources.files("archwright.presets") / room
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def flatten(values: Values, prefix: str = "") -> Values:
    """Return nested tables as one table of dotted paths; empty tables vanish."""
    flat: Values = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def toml_value(value: Any) -> str:
    """Show one value as TOML writes it."""
    return tomli_w.dumps({"v": value}).removeprefix("v = ").strip()


def paths(cls: type[Spec], prefix: str = "") -> Iterator[str]:
    """Yield every dotted path that an override may name, over all choices of each axis."""
    for name, field in cls.model_fields.items():
        name, inner = field.alias or name, field.annotation
        yield prefix + name
        if isinstance(inner, type) and issubclass(inner, Spec):
            for member in _members(inner):
                yield from paths(member, f"{prefix}{name}.")


def _members(cls: type[Spec]) -> list[type[Spec]]:
    if issubclass(cls, Choice) and cls.is_axis():
        return list(cls.kinds.values())
    return [cls]


def _check_path(cls: type[Spec], keys: list[str]) -> None:
    """Refuse a path that no choice could have, naming the nearest one in the whole spec."""
    path = ".".join(keys)
    if "layer_kinds" in keys or "sources" in keys:
        return
    known = list(dict.fromkeys(paths(cls)))
    if path in known:
        return
    same_leaf = [k for k in known if k.endswith(f".{path}")]
    hint = f' Did you mean "{same_leaf[0]}"?' if same_leaf else nearest(path, known)
    if not hint:
        hint = nearest(keys[-1], [k.split(".")[-1] for k in known])
    raise UserError(f"{path}: unknown key.{hint}")


def _chain(name: str | Path, room: str) -> list[tuple[Path, Values]]:
    """Return a preset's files from its most distant base to itself."""
    files: list[tuple[Path, Values]] = []
    current: str | Path | None = name
    while current is not None:
        path = _find(current, room, beside=files[0][0] if files else None)
        values = _parse(path)
        base = values.pop("base", None)
        if path in [p for p, _ in files]:
            raise UserError(f"{path}: base leads back to itself")
        files.insert(0, (path, values))
        if len(files) > MAX_CHAIN:
            raise UserError(f"{files[-1][0]}: more than {MAX_CHAIN} files in a chain of bases")
        current = base
    return files


def _from_chain(files: list[tuple[Path, Values]]) -> Loaded:
    spec = ModelSpec()
    blame: dict[str, Origin] = {}
    for path, values in files:
        values.setdefault("name", path.stem)
        before, identity = _dump(spec), {"sources": {}, "source": ""}
        spec = _located(path, ModelSpec, merge(before | identity, values))
        stated = flatten(values)
        blame = {
            key: _origin(path, key, values) if key in stated or key not in before_keys else old
            for before_keys in [flatten(before)]
            for key in flatten(_dump(spec))
            for old in [blame.get(key, Origin("default"))]
        }
    return Loaded(spec, blame)


def _origin(path: Path, key: str, values: Values) -> Origin:
    """Name the file, and the closest source it states: for the value, its table, or the whole."""
    sources = values.get("sources", {})
    parts = key.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    source = next((sources[p] for p in prefixes if p in sources), values.get("source", ""))
    return Origin(path.name, source)


def _run_from(values: Values, path: Path) -> RunSpec:
    model = values.pop("model")
    if isinstance(model, str):
        model = {"base": model}
    base = load(model.pop("base")) if "base" in model else ModelSpec()
    values.setdefault("name", path.stem)
    run = RunSpec(model=base)
    return _located(path, RunSpec, merge(_dump(run), values | {"model": model}))


def _located(path: Path, cls: type[S], values: Values) -> S:
    """Validate a file's values; errors name the file."""
    try:
        return validated(cls, values)
    except UserError as error:
        raise UserError(*(f"{path.name}: {line}" for line in error.lines)) from None


def _find(name: str | Path, room: str, beside: Path | None = None) -> Path:
    text = str(name)
    if text.endswith(".toml"):
        path = Path(text)
        if beside is not None and not path.is_absolute():
            path = beside.parent / path
        if path.is_file():
            return path
        raise UserError(f"{text}: no such file")
    for kind in dict.fromkeys((room, "models")):
        found = Path(str(resources.files("archwright.presets"))) / kind / f"{text}.toml"
        if found.is_file():
            return found
    names = [*preset_names("runs"), *preset_names("models")] if room == "runs" else preset_names(room)
    raise UserError(
        f'"{text}": no such preset; there are {", ".join(names)}, or give a file ending in .toml.'
        + nearest(text, names)
    )


def _parse(path: Path) -> Values:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; expected a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None


def _value(text: str) -> Any:
    """Read a value as TOML; what is not TOML is text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _nest(keys: list[str], value: Any) -> Values:
    for key in reversed(keys):
        value = {key: value}
    nested: Values = value
    return nested




def _dump(spec: Spec) -> Values:
    return spec.model_dump(by_alias=True)


def _example(spec: Spec) -> str:
    return "model.dim=256" if isinstance(spec, RunSpec) else "dim=256"
