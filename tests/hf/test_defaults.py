"""Recorded defaults, and other words for keys, beside the classes they were read from."""

import pytest

from archwright.hf.defaults import recorded
from archwright.hf.families import FAMILIES
from docs._make.hf_defaults import generate

transformers = pytest.importorskip("transformers")


def test_recorded_defaults_are_those_of_the_release_they_name() -> None:
    """Another release may declare others: `test_defaults_are_those_of_the_class` says whether a model is then
    read otherwise, and `make docs` records them."""
    table = generate(FAMILIES)
    assert table["defaults"].keys() == recorded()["defaults"].keys()
    if table["transformers"] == recorded()["transformers"]:
        assert table == recorded()
