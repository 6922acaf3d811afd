"""The values of published models, by path."""

from archwright.catalogue.chosen import values
from archwright.cli.listings import FOLDER, index
from archwright.spec.read import load, preset_names


def test_a_model_has_what_any_layer_has() -> None:
    found = values(load("gemma-3-27b"))
    assert sorted(found["attention.mask.kind"]) == ["causal", "window"]
    assert found["attention.mask.size"] == ["1024"]
    assert found["norm.kind"] == ["rms"]
    assert found["head.tied"] == ["true"]
    assert found["attention.head_dim"] == ["128"]
    assert not [path for path in found if path.startswith(("layers.", "source", "name"))]


def test_the_listing_has_the_values_of_each_model() -> None:
    """Of an encoder-decoder, a mixture and a model with layers of two kinds."""
    chosen = index()
    for name in ("t5-small", "mixtral-8x7b", "gemma-2-2b"):
        for path, texts in values(load(name)).items():
            if path in chosen:
                having = [text for text, names in chosen[path].items() if name in names.split()]
                assert sorted(having) == sorted(texts), path
    assert chosen["feedforward.kind"]["bilinear"] == ""


def test_a_new_model_adds_a_line_and_changes_none() -> None:
    """Two branches with a new model each can then be merged."""
    first, *lines, last = (FOLDER / "chosen.json").read_text("utf-8").splitlines()
    assert (first, last) == ("{", "}")
    assert [line.split('"')[1] for line in lines] == ["", *preset_names("models")]
