"""Reading and writing specs: TOML files, chains of bases, dotted overrides, differences."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tomli_w

from archwright.spec.absent import refuse_absent
from archwright.spec.choice import Choice, Spec, Uniform
from archwright.spec.data import SYNTHETIC, DataSpec
from archwright.spec.errors import UserError, hub_hint, nearest
from archwright.spec.installed import preset_files, refuse_classic
from archwright.spec.merge import merge, validated
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import Objective
from archwright.spec.overrides import Values, dump, flatten, override, prefixes, toml_value
from archwright.spec.run_spec import RunSpec
from archwright.spec.study_spec import StudySpec
from archwright.spec.toml import read_toml
from archwright.spec.unpublished import refuse_unpublished, unpublished
from archwright.spec.validation_errors import show
from archwright.spec.version import FORMAT, check_format

S = TypeVar("S", bound=Spec)

NAMING = {"name", "source", "sources"}
"""Keys for names and sources, which do not change the model."""
ONLY_RUNS = {*RunSpec.model_fields} - {*ModelSpec.model_fields}
"""Keys of runs only; a file with one is a run's, except that a model's file may have an objective."""
ONLY_MODELS = {"base", *ModelSpec.model_fields} - {*RunSpec.model_fields}
"""Keys of models only, which a run has in its model's table."""
RUN_FILE = "spec.toml"
"""Name of the spec's file in a run folder."""
REMOVED: Values = {
    "stream_decay": 1.0,
    "predicting_streams": 0,
    "global_tokens": 0,
    "global_norm": False,
    "distance_scores": {"kind": "none"},
}
"""Removed options with their defaults, which run folders of before record."""
MAX_CHAIN = 8
"""Most files in a chain of bases; presets have at most three."""
MOST_NAMES = 10
"""Most presets that an error for an unknown name lists."""


class InvalidValues(UserError):  # noqa: N818
    """Values of a file that are invalid for its spec."""

    def __init__(
        self, lines: Sequence[str], cls: type[Spec], values: Values, reasons: Sequence[str]
    ) -> None:
        super().__init__(*lines)
        self.cls = cls
        self.values = values
        """Values of the file, merged with its bases."""
        self.reasons = reasons
        """The errors without the file's name; each begins with a path."""


@dataclass(frozen=True)
class Origin:
    """Origin of a value: a file (or "default"), and the source stated there."""

    file: str
    source: str = ""
    stated_for: str = dataclasses.field(default="", compare=False)
    """Path with the stated source: the value's or its table's; empty for the file's source."""


@dataclass(frozen=True)
class Loaded:
    """A model's spec, the origin of each value by dotted path, and the published objective."""

    spec: ModelSpec
    blame: dict[str, Origin]
    objective: Objective = RunSpec().objective
    objective_source: str = ""
    """Stated source of the objective."""


def load(name: str | Path | ModelSpec) -> ModelSpec:
    """Return the spec of a preset (`"modern"`), a TOML file (`"mine.toml"`) or a run folder; a spec as it is.

    Raises:
        UserError: No such preset or file, or mistakes in it, one per line.
    """
    return name if isinstance(name, ModelSpec) else load_with_blame(name).spec


load_spec = load
"""Longer name of `load`."""


def load_with_blame(name: str | Path) -> Loaded:
    """Return a model's spec with the file and source of each value."""
    if is_run(name):
        spec = read_run(Path(name) / RUN_FILE).model
        origin = Origin(RUN_FILE, spec.source)
        return Loaded(spec, {k: origin for k in flatten(dump(spec)) if k not in NAMING})
    return _from_chain(_chain(name))


def load_run(name: str | Path | ModelSpec | RunSpec) -> RunSpec:
    """Return the run of a recipe, the default run of a model, or a run that continues a run folder. From a folder, it
    has the model, data and objective and starts from the weights. A run is returned as it is.

    Raises:
        UserError: No such preset or file, or mistakes in it, one per line.
    """
    if isinstance(name, RunSpec):
        return name
    if isinstance(name, ModelSpec):
        return RunSpec(name=name.name, model=name)
    if str(name) not in preset_names("runs") and str(name) in preset_names("models"):
        return _default_run(name)
    if is_run(name):
        before = read_run(Path(name) / RUN_FILE)
        onwards = f"{Path(name).resolve().name}-onwards"
        run = RunSpec(
            name=onwards,
            model=before.model,
            data=before.data,
            objective=before.objective,
            parts=before.parts,
        )
        return override(run, [f"init.from={toml_value(str(Path(name)))}"])
    path = _find(name, "runs")
    values = _read(path, RunSpec)
    return _run_from(values, path) if is_recipe(values) else _default_run(path)


load_run_spec = load_run
"""Longer name of `load_run`."""


def given_model(name: str | Path) -> ModelSpec:
    """Return the model of a preset, or of the preset that a file is based on; without one, the default model."""
    if not str(name).endswith(".toml"):
        return load_run(name).model
    values = _read(Path(name), ModelSpec)
    table = values.get("model", {}) if is_recipe(values) else values
    base = table.get("base") if isinstance(table, dict) else table
    if base is None:
        return ModelSpec()
    beside = str(base).endswith(".toml") and not Path(base).is_absolute()
    return given_model(Path(name).parent / base if beside else base)


def is_recipe(keys: Collection[str]) -> bool:
    """True if a file with these keys describes a run; a model's file may have an objective."""
    found = ONLY_RUNS.intersection(keys)
    return bool(found) and not (found == {"objective"} and ONLY_MODELS.intersection(keys))


def is_study(keys: Collection[str]) -> bool:
    """True if a file with these keys describes a study."""
    return "baseline" in keys


def is_run(name: str | Path) -> bool:
    """True if a name is a run folder."""
    return (Path(name) / RUN_FILE).is_file()


def read_run(path: Path) -> RunSpec:
    """Return the run in the spec.toml of a run folder."""
    return _located(path, RunSpec, _without_removed(_read(path, RunSpec)))


def _without_removed(values: Values) -> Values:
    """Return nested values without `REMOVED` options at their defaults."""
    kept = {key: value for key, value in values.items() if REMOVED.get(key, ...) != value}
    return {k: _without_removed(v) if isinstance(v, dict) else v for k, v in kept.items()}


def load_study(name: str | Path) -> StudySpec:
    """Return a study by name or file.

    Raises:
        UserError: No such study or file, or mistakes in it, one per line.
    """
    return read_study(_find(name, "studies"))


def read_study(path: Path) -> StudySpec:
    """Return the study in a file; the file's name is its default name."""
    values = _read(path, StudySpec)
    values.setdefault("name", path.stem)
    return _located(path, StudySpec, values)


def study_names() -> list[str]:
    """Return the names of the package's studies."""
    return preset_names("studies")


def to_toml(spec: Spec) -> str:
    """Return a spec as TOML; reading it gives an equal spec."""
    return tomli_w.dumps(spec.model_dump(by_alias=True, mode="json"))


def starting_file(spec: ModelSpec, objective: Objective) -> str:
    """Return a model as a file without defaults; reading it gives an equal spec."""
    values = spec.model_dump(by_alias=True, mode="json", exclude={"name"})
    values = _without_defaults(values, ModelSpec().model_dump(by_alias=True, mode="json"))
    usual = RunSpec().objective
    if objective != usual:
        values["objective"] = objective.model_dump(by_alias=True, mode="json")
    return tomli_w.dumps(values)


def _without_defaults(values: Values, defaults: Values) -> Values:
    """Return the values that differ from the defaults; a table of another kind in full, as its defaults may change."""
    found = {}
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict) and key != "layer_kinds":
            same = value.get("kind") == default.get("kind")
            value = _without_defaults(value, default) if same else value
            if value:
                found[key] = value
        elif value != default:
            found[key] = value
    return found


def diff(old: Spec, new: Spec) -> list[str]:
    """Return the values that differ, except names and sources, as `path: old -> new`."""
    return [f"{path}: {a} -> {b}" for path, (a, b) in differing([old, new]).items()]


def differing(specs: Sequence[Spec]) -> dict[str, tuple[str, ...]]:
    """Return path -> text in each spec of values that differ; `-` for a missing value."""
    even = [even_tables(spec) for spec in specs]
    tables = {path for each in even for path in each if all(e.get(path, True) for e in even)}
    sides = [collapse_uniform(flatten(dump(spec)), tables) for spec in specs]
    found, left_out = {}, set[str]().union(*map(not_results, specs))
    for path in dict.fromkeys(path for side in sides for path in side):
        values = tuple(toml_value(side[path]) if path in side else "-" for side in sides)
        if len({*values}) > 1 and path not in left_out and not NAMING & set(path.split(".")):
            found[path] = values
    return found


def preset_names(room: str) -> list[str]:
    """Return the names of the presets in a folder: models, runs or studies."""
    return [*preset_files(room)]


def even_tables(spec: Spec) -> dict[str, bool]:
    """Return True for each path of a `Uniform` table with equal values, False for other `Uniform` tables."""
    return {
        path: table.one is not None for path, table in _tables(spec) if isinstance(table, Uniform)
    }


def not_results(spec: Spec) -> set[str]:
    """Return the paths of the choices' options that change no result."""
    choices = ((path, table) for path, table in _tables(spec) if isinstance(table, Choice))
    return {f"{path}.{name}" for path, choice in choices for name in choice.not_results}


def _tables(spec: Spec, prefix: str = "") -> Iterator[tuple[str, Spec]]:
    """Yield all tables in a spec, with their paths."""
    for name, field in type(spec).model_fields.items():
        value, path = getattr(spec, name), prefix + (field.alias or name)
        if isinstance(value, Spec):
            yield path, value
            yield from _tables(value, f"{path}.")
    if isinstance(spec, ModelSpec):
        for name in spec.layer_kinds:
            yield from _tables(spec.layers_by_kind[name], f"{prefix}layer_kinds.{name}.")


def collapse_uniform(flat: Values, tables: Collection[str]) -> Values:
    """Return dotted paths with one value for each of `tables`, which have equal values."""
    owners = {path: path.rpartition(".")[0] for path in flat}
    return {owners[p] if owners[p] in tables else p: value for p, value in flat.items()}


def _default_run(name: str | Path) -> RunSpec:
    """Return the run of a model with its published objective."""
    loaded = load_with_blame(name)
    return _published_run(loaded).model_copy(update={"name": loaded.spec.name})


def _published_run(loaded: Loaded) -> RunSpec:
    """Return a run of a model with its objective; an objective of pairs uses the synthetic pairs."""
    data = DataSpec(pairs=SYNTHETIC if loaded.objective.has_pairs else "")
    return RunSpec(model=loaded.spec, objective=loaded.objective, data=data)


def _chain(name: str | Path, beside: Path | None = None) -> list[tuple[Path, Values]]:
    """Return a preset's files from its most distant base to itself."""
    files: list[tuple[Path, Values]] = []
    current: str | Path | None = name
    while current is not None:
        path = _base(current, beside) if beside else _find(current, "models")
        values = _read(path, ModelSpec)
        if path.resolve() in [p.resolve() for p, _ in files]:
            raise UserError(f"{path}: base leads back to itself")
        files.insert(0, (path, values))
        if len(files) > MAX_CHAIN:
            raise UserError(f"{files[-1][0]}: more than {MAX_CHAIN} files in a chain of bases")
        current, beside = values.pop("base", None), path
    return files


def _base(name: object, path: Path) -> Path:
    """Return the file of a base named in the file at `path`."""
    if not isinstance(name, (str, Path)):
        raise UserError(f"{path.name}: base: found {show(name)}; expected the name of a model")
    try:
        return _find(name, "models", beside=path)
    except UserError as error:
        raise UserError(*(f"{path.name}: base: {line}" for line in error.lines)) from None


def _from_chain(files: list[tuple[Path, Values]]) -> Loaded:
    spec = ModelSpec()
    blame = dict.fromkeys(flatten(dump(spec)), Origin("default"))
    run, source = RunSpec(), ""
    for path, values in files:
        values.setdefault("name", path.stem)
        source = "" if "objective" in values else source
        if "objective" in values:
            stated = {"objective": values.pop("objective")}
            run = _located(path, RunSpec, merge(dump(run), stated))
        before, identity = dump(spec), {"sources": {}, "source": ""}
        spec = _located(path, ModelSpec, merge(before | identity, values))
        source = spec.sources.get("objective", source)
        blame = _blamed(blame, flatten(before), flatten(dump(spec)), path, values)
    blame = {k: v for k, v in blame.items() if k.split(".")[0] not in NAMING}
    return Loaded(spec, blame, run.objective, source)


def _blamed(
    blame: dict[str, Origin], before: Values, after: Values, path: Path, values: Values
) -> dict[str, Origin]:
    """Return origins after reading a file: the file, the defaults of a new kind, or the previous origin."""
    stated = set(flatten(values))
    turned = {k for k in before if k.endswith(".kind") and before[k] != after.get(k)}
    found = {}
    for key in after:
        above = prefixes(key)
        if stated.intersection(above):
            sources = values.get("sources", {})
            stated_for = next((p for p in prefixes(key) if p in sources), "")
            found[key] = Origin(
                path.name, sources.get(stated_for, values.get("source", "")), stated_for
            )
        elif turned.intersection(f"{table}.kind" for table in above):
            found[key] = Origin("default")
        else:
            found[key] = blame.get(key, Origin("default"))
    return found


def _run_from(values: Values, path: Path) -> RunSpec:
    model = values.pop("model", {})
    if isinstance(model, str):
        model = {"base": model}
    base = model.pop("base", None) if isinstance(model, dict) else None
    loaded = Loaded(ModelSpec(), {}) if base is None else _from_chain(_chain(base, path))
    values.setdefault("name", path.stem)
    run = _published_run(loaded)
    return _located(path, RunSpec, merge(dump(run), RunSpec.implied(values) | {"model": model}))


def _read(path: Path, cls: type[Spec]) -> Values:
    """Return the table in a file, without the format number of run folders."""
    values = read_toml(path)
    if cls is not StudySpec and is_study(values):
        raise UserError(f"{path}: a study, not a model; run it with: archwright compare {path}")
    check_format(path, values.pop("format", FORMAT))
    return values


def _located(path: Path, cls: type[S], values: Values) -> S:
    """Validate a file's values; errors name the file."""
    try:
        return validated(cls, values)
    except UserError as error:
        lines = [f"{path.name}: {line}" for line in error.lines]
        raise InvalidValues(lines, cls, values, error.lines) from None


def _find(name: str | Path, room: str, beside: Path | None = None) -> Path:
    text = str(name)
    if text.endswith(".toml"):
        path = Path(text)
        if beside is not None and not path.is_absolute():
            path = beside.parent / path
        if path.exists():
            return path
        hint = nearest(path.stem, [file.stem for file in path.parent.glob("*.toml")])
        hint = hint.replace('"?', '.toml"?')
        raise UserError(f"{text}: no such file{'.' * bool(hint)}{hint}")
    for kind in dict.fromkeys((room, "models")):
        if text in (files := preset_files(kind)):
            return files[text]
    refuse_unpublished(text)
    refuse_absent(text)
    refuse_classic(text)
    if text in study_names():
        raise UserError(f'"{text}" is a study, not a model; run it with: archwright compare {text}')
    names = (
        [*preset_names("runs"), *preset_names("models")] if room == "runs" else preset_names(room)
    )
    known = "see archwright list" if len(names) > MOST_NAMES else f"there are {', '.join(names)}"
    if (Path(text) / "config.json").is_file():
        raise UserError(
            f'"{text}": a checkpoint of another library: archwright import {text} makes a run of it, and '
            f'archwright.hf.load_spec("{text}") reads its architecture'
        )
    what = "no such preset"
    if Path(text).is_dir():
        what = f"a folder that is no run, as it has no {RUN_FILE}, and no preset"
    elif Path(text).is_file():
        what = "a file that does not end in .toml, and no preset"
    elif Path(text).parent.name == "runs":
        what = "no such run folder"
        known = "archwright list runs says which are there"
    of_hub = text.rstrip("/").rpartition("/")[2]  # meta-llama/Llama-3.2-1B
    raise UserError(
        f'"{text}": {what}; {known}, or give a file ending in .toml.'
        + (nearest(of_hub, [*names, *unpublished()], most=3) or hub_hint(text))
    )
