"""Values of the published models, for filters."""

from archwright.catalogue.axes import sections
from archwright.catalogue.table import layers
from archwright.spec.model_spec import ModelSpec
from archwright.spec.overrides import dump, flatten, toml_value
from archwright.spec.read import NAMING, load, preset_names

ELSEWHERE = {*NAMING, "layers", "layer_kinds"}
"""Keys that are not choices, or that repeat values of the layers."""
Values = dict[str, list[str]]
"""Texts of values by path."""


def chosen() -> dict[str, Values]:
    """Return the values of each model, and under "" all kinds of each axis; a new model adds one entry."""
    kinds = {
        f"{place.removeprefix('model.')}.kind": [kind.name for kind in section.kinds]
        for section in sections()
        for place in section.places
        if section.kinds and place.startswith("model.")
    }
    return {"": kinds} | {name: values(load(name)) for name in preset_names("models")}


def values(spec: ModelSpec) -> Values:
    """Return a model's distinct resolved values over all layers, by path."""
    resolved = spec.resolved()
    texts_by_path: Values = {}
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
