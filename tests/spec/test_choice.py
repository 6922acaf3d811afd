from typing import ClassVar, Literal

import pytest
from pydantic import ValidationError

from archwright.spec.attention import AttentionBias, SoftmaxAttention
from archwright.spec.choice import Choice
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import LayerNorm, Norm, RMSNorm


def test_specs_are_frozen_strict_and_closed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RMSNorm().eps = 1.0  # type: ignore[misc]
    for wrong in ({"eps": "1e-5"}, {"eps": float("inf")}, {"epsilon": 1e-5}):
        with pytest.raises(ValidationError):
            RMSNorm.model_validate(wrong)


def test_a_field_of_an_axis_takes_each_of_its_choices() -> None:
    for kind, choice in Norm.kinds.items():
        picked = LayerSpec.model_validate({"norm": {"kind": kind}}).norm
        assert type(picked) is choice
        assert LayerSpec(norm=picked).norm is picked


def test_every_choice_is_in_the_table_of_its_axis_alone() -> None:
    axes = Choice.axes()
    assert len({axis.axis for axis in axes}) == len(axes)
    for axis in axes:
        for kind, choice in axis.kinds.items():
            assert issubclass(choice, axis)
            assert choice.model_fields["kind"].default == kind
            assert choice.__doc__


@pytest.mark.usefixtures("visitors")
def test_a_choice_from_outside_joins_by_subclassing() -> None:
    class Peri(Norm):
        """Somebody's norm."""

        kind: Literal["peri"] = "peri"
        power: int = 2

    spec = ModelSpec().override("norm.kind=peri", "norm.power=3")
    assert spec.norm == Peri(power=3)
    assert ModelSpec.model_validate(spec.model_dump()) == spec


@pytest.mark.usefixtures("visitors")
def test_a_kind_that_is_taken_is_refused() -> None:
    message = r'norm\.kind = "rms" is taken by archwright\.spec\.norms\.RMSNorm; give .*\.RMSNorm'
    with pytest.raises(ValueError, match=message):
        type("RMSNorm", (Norm,), {"__annotations__": {"kind": Literal["rms"]}, "kind": "rms"})
    assert Norm.kinds["rms"] is RMSNorm


@pytest.mark.usefixtures("visitors")
def test_a_module_may_be_loaded_again() -> None:
    def load() -> type[Norm]:
        class Again(Norm):
            kind: Literal["again"] = "again"

        return Again

    first, second = load(), load()
    assert first is not second
    assert Norm.kinds["again"] is second


@pytest.mark.usefixtures("visitors")
def test_an_axis_of_its_own_shares_no_table() -> None:
    class Colour(Choice):
        axis: ClassVar[str] = "colour"

    class Red(Colour):
        kind: Literal["rms"] = "rms"  # taken among norms, free here

    assert Colour.kinds == {"rms": Red}


def test_one_boolean_switches_all() -> None:
    on = AttentionBias(query=True, key=True, value=True, out=True)
    assert SoftmaxAttention.model_validate({"kind": "softmax", "bias": True}).bias == on
    assert SoftmaxAttention.model_validate({"bias": False}).bias == AttentionBias()
    assert SoftmaxAttention.model_validate({"bias": {"out": True}}).bias == AttentionBias(out=True)


def test_specs_can_be_keys() -> None:
    assert {RMSNorm(): 1, LayerNorm(): 2}[LayerNorm()] == 2
