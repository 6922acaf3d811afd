"""`python -m archwright.planning.counts` writes the presets' numbers of parameters, which `list` and `show`
print without building models; a test holds them against the built ones."""

import json
from pathlib import Path

from archwright import presets
from archwright.model.build import build
from archwright.model.decoder import Decoder
from archwright.planning.cost import active_parameters, parameters_by_part
from archwright.spec.model_spec import ModelSpec
from archwright.spec.parameter_counts import Counts
from archwright.spec.read import load, preset_names

LAYER_PARTS = {"attention": "attention", "feedforward": "feed-forward", "residual": "norms"}


def count() -> dict[str, Counts]:
    """Return the numbers of parameters of each preset model."""
    return {name: counts_of(load(name)) for name in preset_names("models")}


def counts_of(spec: ModelSpec) -> Counts:
    """Return a model's numbers of parameters, built without memory: those of each part, and how many one
    token meets."""
    model = build(spec, device="meta")
    assert isinstance(model, Decoder)
    parts: dict[str, int] = {}
    for name, number in parameters_by_part(model).items():
        part = _part(name.split("."))
        parts[part] = parts.get(part, 0) + number
    return Counts(parts, active_parameters(model))


def _part(words: list[str]) -> str:
    """Return what a reader calls the part of a model with this dotted name."""
    if words[0] == "layers":
        return LAYER_PARTS.get(words[1], words[1])
    return "norms" if words[0] == "norm" else words[0]


if __name__ == "__main__":
    file = Path(str(presets.__path__[0])) / "parameters.json"
    table = {name: counts.as_table() for name, counts in count().items()}
    file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
