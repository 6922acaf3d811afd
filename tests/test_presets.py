"""Every preset is good, within its lineage, and counted."""

import tomllib
from pathlib import Path

import pytest

from archwright import presets
from archwright.planning.counts import count
from archwright.spec.read import load, load_run, parameter_counts, preset_names
from archwright.spec.rules import enforce, suspicions

MODELS = preset_names("models")
FOLDER = Path(str(presets.__path__[0]))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_keeps_the_rules_and_says_where_it_comes_from(name: str) -> None:
    spec = load(name)
    enforce(spec)
    assert suspicions(spec) == []
    assert spec.name == name
    assert spec.source
    stated = tomllib.loads((FOLDER / "models" / f"{name}.toml").read_text("utf-8"))
    assert "source" in stated


@pytest.mark.parametrize("name", preset_names("runs"))
def test_a_recipe_keeps_the_rules(name: str) -> None:
    enforce(load_run(name).model)


def test_the_numbers_of_parameters_are_those_of_the_built_models() -> None:
    assert parameter_counts() == count(), "run `make docs`"


@pytest.mark.parametrize("dim", [128, 256, 384, 1024, 4096])
@pytest.mark.parametrize("name", ["modern", "textbook"])
def test_the_anchors_work_at_any_size(name: str, dim: int) -> None:
    resolved = load(name).override(f"dim={dim}").resolved()
    assert resolved.attention.head_dim == dim // 8
