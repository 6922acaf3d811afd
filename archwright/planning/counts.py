"""`python -m archwright.planning.counts` writes the presets' numbers of parameters, which `list` shows
without building models; a test holds them against the built ones."""

import json
from pathlib import Path

from archwright import presets
from archwright.model.build import build
from archwright.spec.read import load, preset_names


def count() -> dict[str, int]:
    """Return the number of parameters of each preset model, built without memory."""
    return {n: build(load(n), device="meta").num_parameters() for n in preset_names("models")}


if __name__ == "__main__":
    file = Path(str(presets.__path__[0])) / "parameters.json"
    file.write_text(json.dumps(count(), indent=2) + "\n", encoding="utf-8")
