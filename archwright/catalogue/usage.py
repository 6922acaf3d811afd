"""Usage of choices by presets."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from archwright.catalogue.axes import Kind, Option, Section
from archwright.catalogue.table import year
from archwright.format import listed
from archwright.spec.choice import Choice, Spec
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.read import load, load_run, preset_names

MOST_NAMES = 6
"""Largest number of presets to name, the oldest. A count of the rest would change with every new preset."""


class Usage:
    """Presets by kind and by option, counting only layers in use."""

    def __init__(self) -> None:
        models = {name: load(name) for name in preset_names("models")}
        self.presets = sorted(models, key=lambda name: (year(models[name].source), name))
        self._kinds: defaultdict[tuple[str, type[Spec]], list[str]] = defaultdict(list)
        self._options: defaultdict[tuple[type[Spec], str], list[str]] = defaultdict(list)
        for name in self.presets:
            self._add(name, _chosen_by_model(models[name]))
        for name in preset_names("runs"):
            run = load_run(name)
            chosen = (_chosen("optimizer", run.optimizer), _chosen("schedule", run.schedule))
            self._add(name, chain(*chosen))

    def presets_with_kind(self, path: str, cls: type[Spec]) -> list[str]:
        """Return the presets with a choice at a path."""
        return self._kinds.get((path, cls), [])

    def presets_with_option(self, option: Option) -> list[str]:
        """Return the presets with a non-default value of an option."""
        names = [
            name
            for (cls, key), names in self._options.items()
            if issubclass(cls, option.owner) and key == option.name
            for name in names
        ]
        return [name for name in (*self.presets, *preset_names("runs")) if name in names]

    def _add(self, preset: str, chosen: Iterable[tuple[str, Spec]]) -> None:
        choices = [*chosen]
        for path, cls in {(path, type(spec)) for path, spec in choices}:
            self._kinds[path, cls].append(preset)
        for cls, name in {(type(spec), name) for _, spec in choices for name in _differences(spec)}:
            self._options[cls, name].append(preset)


def named(presets: Sequence[str]) -> str:
    """Name a few presets, preferably of different families."""
    if len(presets) <= MOST_NAMES:
        return listed([*presets])
    families = {preset.partition("-")[0]: preset for preset in reversed(presets)}
    first = sorted(presets, key=lambda preset: preset not in families.values())[:MOST_NAMES]
    return f"{', '.join(first)} and others"


def used_by(section: Section, kind: Kind, usage: Usage) -> Iterator[str]:
    """Yield a sentence with the presets of a kind, for each path."""
    for place in section.places:
        presets = usage.presets_with_kind(place, kind.cls)
        if presets and place == section.path:
            yield f"Used by {named(presets)}."
        elif presets and kind.name != "none":
            yield f"As {place.removeprefix('model.')} by {named(presets)}."


def _chosen_by_model(model: ModelSpec) -> Iterator[tuple[str, Spec]]:
    for name in dict.fromkeys(model.layers.names(model.num_layers)):
        layer = model.layers_by_kind[name]
        for axis in LayerSpec.model_fields:
            yield from _chosen(f"model.{axis}", getattr(layer, axis))
    for name in ModelSpec.model_fields:
        if name not in LayerSpec.model_fields and isinstance(getattr(model, name), Spec):
            yield from _chosen(f"model.{name}", getattr(model, name))


def _chosen(path: str, spec: Spec) -> Iterator[tuple[str, Spec]]:
    yield path, spec
    for name in type(spec).model_fields:
        if isinstance(inner := getattr(spec, name), Spec):
            yield from _chosen(f"{path}.{name}", inner)


def _differences(spec: Spec) -> Iterator[str]:
    """Yield the names of non-default options, dotted within tables."""
    for name, field in type(spec).model_fields.items():
        value, default = getattr(spec, name), field.get_default(call_default_factory=True)
        if value != default:
            yield name
        if isinstance(value, Spec) and not isinstance(value, Choice):
            yield from (f"{name}.{k}" for k, v in value if v != getattr(default, k))
