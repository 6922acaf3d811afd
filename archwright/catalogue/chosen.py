"""Index of published models by the values that distinguish them."""

from archwright.catalogue.axes import sections
from archwright.catalogue.table import layers
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import dump, flatten, toml_value
from archwright.spec.read import NAMING, load, preset_names

ELSEWHERE = {*NAMING, "layers", "layer_kinds"}
"""Keys that are not choices, or that repeat values of the layers."""
PLAIN = (".kind", "dim", "num_layers", "vocab_size", "context_length")
"""Suffixes of paths that are listed even if all models agree."""

Index = dict[str, dict[str, str]]


def index() -> Index:
    """Return space-separated names of models, by path and value.

    A model has a value if any of its layers has it. Kinds without models have an empty string.
    """
    users: dict[str, dict[str, list[str]]] = {}
    names = preset_names("models")
    for name in names:
        for path, texts in values(load(name)).items():
            for text in texts:
                users.setdefault(path, {}).setdefault(text, []).append(name)
    kinds = {
        f"{place.removeprefix('model.')}.kind": [kind.name for kind in section.kinds]
        for section in sections()
        for place in section.places
        if section.kinds and place.startswith("model.")
    }
    for path, all_kinds in kinds.items():
        for kind in all_kinds if path in users else ():
            users[path].setdefault(kind, [])
    return {
        path: {text: " ".join(models) for text, models in texts.items()}
        for path, texts in sorted(users.items())
        if path.endswith(PLAIN) or any(models != names for models in texts.values())
    }


def values(spec: ModelSpec) -> dict[str, list[str]]:
    """Return a model's distinct resolved values over all layers, by path."""
    resolved = spec.resolved()
    texts_by_path: dict[str, list[str]] = {}
    for table in (dump(resolved), *map(dump, layers(resolved))):
        for path, value in flatten(table).items():
            below = path.partition(".")[0]
            if below in ELSEWHERE or (below == "encoder" and path != "encoder.kind"):
                continue
            texts = texts_by_path.setdefault(path, [])
            text = value if isinstance(value, str) else toml_value(value)
            if text not in texts:
                texts.append(text)
    return texts_by_path
