"""A file with mistakes of every sort names them all at once."""

from pathlib import Path

import pytest

from archwright.spec.checking import checked
from archwright.spec.errors import UserError
from archwright.spec.read import load_run

ODD = """\
base = "modern"
num_layers = "six"
attention.num_heads = 8
attention.num_kv_heads = 3
norm.kind = "rsm"
colour = 3
[layers]
cycle = ["locl"]
"""
"""A type, a kind, a key, a rule between values and a reference."""
PATHS = ["num_layers", "norm.kind", "colour", "attention.num_kv_heads", "layers.cycle"]


def mistakes(file: Path) -> list[str]:
    with pytest.raises(UserError) as caught:
        checked(file)
    return [line.removeprefix(f"{file.name}: ") for line in caught.value.lines]


def test_types_references_and_rules_at_once(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(ODD, "utf-8")
    assert sorted(line.partition(":")[0] for line in mistakes(file)) == sorted(PATHS)
    recipe = tmp_path / "recipe.toml"
    table = ODD.replace(
        'base = "modern"', 'batch_size = 0\nevaluate.stride = 4096\n[model]\nbase = "modern"'
    )
    recipe.write_text(table.replace("[layers]", "[model.layers]"), "utf-8")
    expected = ["batch_size", "evaluate.stride", *(f"model.{path}" for path in PATHS)]
    assert sorted(line.partition(":")[0] for line in mistakes(recipe)) == sorted(expected)


def test_what_follows_from_a_mistake_is_no_other(tmp_path: Path) -> None:
    """Seven heads fit no width that stands in the place of one that is wrong."""
    file = tmp_path / "odd.toml"
    file.write_text('dim = "wide"\nattention.num_heads = 7\n', "utf-8")
    assert [line.partition(":")[0] for line in mistakes(file)] == ["dim"]


def test_a_kind_that_is_none_takes_its_options_with_it(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(
        '[attention.mask]\nkind = "windw"\nsize = 64\n[layers]\ncycle = ["x"]\n', "utf-8"
    )
    assert [line.partition(":")[0] for line in mistakes(file)] == [
        "attention.mask.kind",
        "layers.cycle",
    ]


def test_a_sound_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "modern"\ndim = 256\n', "utf-8")
    assert checked(file) == load_run(file)
