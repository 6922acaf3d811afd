"""Warnings are of what the user chose, not of what a publication or the tool did."""

from pathlib import Path

import pytest

from archwright.cli import main
from archwright.cli.listings import index
from archwright.spec.read import given_model, load
from archwright.spec.rules import SMALLEST_PUBLISHED, suspicions


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(words) == 0
    return [line for text in capsys.readouterr() for line in text.splitlines() if "warning" in line]


@pytest.mark.parametrize("name", ["gemma-2-27b", "gemma-3-1b", "gpt-3-175b"])
def test_published_values(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert suspicions(load(name))
    assert printed(capsys, "show", name) == []
    assert printed(capsys, "show", name, "norm.kind=layer", "--tiny") == []


def test_a_changed_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "show", "gpt-2", "dim=1536") == []
    (line,) = printed(capsys, "show", "gpt-2", "vocab_size=50258")
    assert line.startswith("warning: vocab_size is 50258")
    (line,) = printed(capsys, "show", "modern", "dim=1024", "num_layers=128")
    assert line.startswith("warning: dim / num_layers is 8")


def test_small_models_have_no_published_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert min(map(int, index()["dim"])) == SMALLEST_PUBLISHED
    assert printed(capsys, "show", "modern", "dim=128") == []


@pytest.mark.parametrize("through", [False, True])
def test_a_file_of_ones_own(through: bool, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings of its base are the base's, though others lie between."""
    (place / "between.toml").write_text('base = "modern"\n', "utf-8")
    base = "between.toml" if through else "gpt"
    file = place / "folder" / "mine.toml"
    file.parent.mkdir()
    (file.parent / "between.toml").write_text('base = "gpt"\n', "utf-8")
    file.write_text(f'base = "{base}"\nnum_layers = 8\n', "utf-8")
    assert given_model(file) == load("gpt")
    for words in (["check"], ["show"]):
        assert printed(capsys, *words, str(file)) == []
    file.write_text(f'base = "{base}"\nvocab_size = 1000\n', "utf-8")
    for words in (["check"], ["show"]):
        (line,) = printed(capsys, *words, str(file))
        assert "vocab_size is 1000" in line
    recipe = place / "recipe.toml"
    recipe.write_text('budget = "2steps"\n[model]\nbase = "gpt"\n', "utf-8")
    assert printed(capsys, "check", str(recipe)) == []


def test_a_run_that_is_about_to_be_trained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "notes.txt").write_text("the model and the token\n" * 300, "utf-8")
    words = ["train", "gpt-2", "--tiny", "--dry-run", "data.text=notes.txt"]
    assert printed(capsys, *words) == []
    (line,) = printed(capsys, *words, "attention.head_dim=12")
    assert "attention.head_dim is 12" in line
