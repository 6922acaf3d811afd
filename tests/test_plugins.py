"""Choices from outside join the registry of their axis, or are refused in one line."""

from pathlib import Path

import pytest

from archwright.parts.feedforward import FEEDFORWARDS
from archwright.parts.norms import NORMS
from archwright.plugins import REGISTRIES, load_parts_file, register, registry_of
from archwright.spec.choice import Choice
from archwright.spec.errors import UserError
from archwright.spec.norms import Norm, RMSNorm

LONELY = """
from typing import Literal

from archwright.spec.norms import Norm


class Lonely(Norm):
    kind: Literal["lonely"] = "lonely"
"""


def test_a_choice_goes_to_the_nearest_registry() -> None:
    assert registry_of(RMSNorm) is NORMS
    assert {registry.base.axis for registry in REGISTRIES} >= {"norm", "optimizer", "schedule"}
    assert all(registry_of(choice) for registry in REGISTRIES for choice in registry)
    assert registry_of(dict) is None
    assert FEEDFORWARDS in REGISTRIES


@pytest.mark.parametrize("wrong", [Norm, Choice])
def test_an_axis_itself_joins_nothing(wrong: type[Choice]) -> None:
    with pytest.raises(ValueError, match="expected a subclass of one of the axes norm"):
        register(wrong, object)


def test_a_choice_without_a_kind_is_refused() -> None:
    class Nameless(Norm):
        """A norm that cannot be asked for."""

    with pytest.raises(ValueError, match=r"Nameless: has no kind, .* kind: Literal"):
        register(Nameless, object)


def test_a_choice_without_a_part_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lonely.py"
    file.write_text(LONELY)
    try:
        with pytest.raises(UserError, match=r"Lonely has no part; end the file with"):
            load_parts_file(file)
    finally:
        Norm.kinds.pop("lonely", None)
