"""Docstrings of fields are found as they stand in the source."""

from archwright.spec.docstrings import field_docstrings
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import LayerNorm


def test_every_field_has_the_string_below_it():
    found = field_docstrings(LayerNorm)
    assert found["eps"] == "Added to the variance."
    assert found["bias"] == "Add a learned bias."


def test_fields_of_bases_are_included():
    assert field_docstrings(LayerSpec).items() <= field_docstrings(ModelSpec).items()


def test_a_class_without_source_has_none():
    typed = type("Typed", (), {"__annotations__": {"size": int}, "__module__": "__typed__"})
    assert field_docstrings(typed) == {}
