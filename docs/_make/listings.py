"""`python -m docs._make.listings` writes archwright/presets/listings. A test compares the files with
these functions."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from archwright.cli.listings import FOLDER
from archwright.planning.model_costs import model_costs
from archwright.reporting.listings import LISTINGS
from archwright.spec.read import load_with_blame, preset_names


def write() -> None:
    """Write all listings into the package, a file for each."""
    for name, resolve in {**LISTINGS, "costs": _costs, "glossary": _glossary}.items():
        text = json.dumps(resolve(), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def _costs() -> dict[str, dict[str, int | None]]:
    """Return the costs of each model by column. Models are built to count them."""
    loaded = {name: load_with_blame(name) for name in preset_names("models")}
    return {name: asdict(model_costs(each.spec, each.objective)) for name, each in loaded.items()}


def _glossary() -> dict[str, str]:
    """Return the meaning of each word of docs/glossary.md."""
    lines = (Path(__file__).parents[1] / "glossary.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    cells = (re.split(r" (?<!\\)\| ", row.strip("| ")) for row in rows)
    return {word: meaning.replace("\\|", "|").replace("`", "") for word, meaning in cells}


if __name__ == "__main__":
    write()
