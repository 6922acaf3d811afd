"""Every value that tells published models apart, by dotted path, with the models that have it."""

from archwright.catalogue.axes import sections
from archwright.catalogue.table import layers
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import dump, flatten, toml_value
from archwright.spec.read import NAMING, load, preset_names

ELSEWHERE = {*NAMING, "layers", "layer_kinds"}
"""Keys that are no choice, or whose values are those of the layers."""
PLAIN = (".kind", "dim", "num_layers", "vocab_size", "context_length")
"""Ends of paths that are listed even where all models are alike."""

Index = dict[str, dict[str, str]]


def index() -> Index:
    """Return the models that have each value, separated by blanks, by path and value.

    A model has what any layer of it has. Kinds that no model has are there with none.
    """
    found: dict[str, dict[str, list[str]]] = {}
    names = preset_names("models")
    for name in names:
        for path, texts in values(load(name)).items():
            for text in texts:
                found.setdefault(path, {}).setdefault(text, []).append(name)
    kinds = {
        f"{place.removeprefix('model.')}.kind": [kind.name for kind in section.kinds]
        for section in sections()
        for place in section.places
        if section.kinds and place.startswith("model.")
    }
    for path, all_kinds in kinds.items():
        for kind in all_kinds if path in found else ():
            found[path].setdefault(kind, [])
    return {
        path: {text: " ".join(having) for text, having in texts.items()}
        for path, texts in sorted(found.items())
        if path.endswith(PLAIN) or any(having != names for having in texts.values())
    }


def values(spec: ModelSpec) -> dict[str, list[str]]:
    """Return the values of a model, over all its layers, by path; numbers in place of each "auto"."""
    resolved = spec.resolved()
    found: dict[str, list[str]] = {}
    for table in (dump(resolved), *map(dump, layers(resolved))):
        for path, value in flatten(table).items():
            below = path.partition(".")[0]
            if below in ELSEWHERE or (below == "encoder" and path != "encoder.kind"):
                continue
            texts = found.setdefault(path, [])
            text = value if isinstance(value, str) else toml_value(value)
            if text not in texts:
                texts.append(text)
    return found
