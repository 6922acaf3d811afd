"""What every part that is registered must do, tested because it is in a table."""

from typing import Any

import jaxtyping
import pytest
from torch import nn

from archwright.catalogue import axes as catalogue
from archwright.model import build
from archwright.parts.norms import NORMS, RMSNorm
from archwright.plugins import REGISTRIES, register
from archwright.spec import norms
from archwright.spec.choice import Choice
from archwright.spec.feedforward import SparseMixer
from archwright.spec.model_spec import ModelSpec
from archwright.testing import OF_NORMS, Case, Law
from archwright.testing.model_laws import (
    every_parameter_learns,
    nothing_is_drawn_outside_training,
    nothing_sees_what_follows,
    only_parameters_are_saved,
    rows_do_not_meet,
    shapes_and_dtypes,
    shapes_on_meta,
    the_same_seed_gives_the_same_model,
    trains,
    weights_return,
)

PATHS = {
    section.name: section.path.removeprefix("model.")
    for section in catalogue.sections()
    if section.kinds and section.path.startswith("model.")
}
"""Where a model names a choice of each axis."""

ENTRIES = [
    pytest.param(choice.axis, choice, id=f"{choice.axis}-{choice.model_fields['kind'].default}")
    for registry in REGISTRIES.values()
    for choice in registry
    if registry.base.axis in PATHS and not choice.is_axis() and choice is not SparseMixer
]
"""Every choice but SparseMixer, which draws in training."""
ALL = pytest.mark.parametrize(("axis", "choice"), ENTRIES)

SMALL = ModelSpec(dim=16, num_layers=2, vocab_size=32, context_length=12).override(
    "attention.num_heads=2", "attention.num_kv_heads=1"
)
ALONE: tuple[Law, ...] = (
    shapes_and_dtypes,
    shapes_on_meta,
    the_same_seed_gives_the_same_model,
    only_parameters_are_saved,
    nothing_is_drawn_outside_training,
    trains,
    every_parameter_learns,
    weights_return,
    rows_do_not_meet,
    nothing_sees_what_follows,
)
"""Laws that each choice is held against by itself; `tests/laws` has the others, of compositions of all."""


def kind_of(choice: type[Choice]) -> str:
    kind: str = choice.model_fields["kind"].default
    return kind


def spec_with(axis: str, choice: type[Choice]) -> ModelSpec:
    kind = kind_of(choice)
    words = [f"{PATHS[axis]}.kind={kind}"]
    if axis == "routing":
        words.append("feedforward.kind=experts")
    if axis == "decay":
        words.append("recurrence.kind=linear")
    if axis == "mask" and "size" in choice.model_fields:
        words.append("attention.mask.size=3")
    if axis == "mask" and "radius" in choice.model_fields:
        words.append("attention.mask.radius=3")
    if axis == "cross_attention":
        words.append("encoder.kind=stack")
    if axis == "attention" and "position" not in choice.takes:  # type: ignore[attr-defined]
        words.append("position.kind=none")
    if kind == "transient_global":  # whose sums have no angles
        words += ["position.kind=t5", "attention.block_size=4"]
    if kind == "disentangled":  # whose mask shows both sides by default
        words.append("attention.mask.kind=causal")
    return SMALL.override(*words)


def test_every_choice_has_its_part() -> None:
    parts = {choice for registry in REGISTRIES.values() for choice in registry}
    for axis in {registry.base.axis: registry.base for registry in REGISTRIES.values()}.values():
        assert {kind for kind, choice in axis.kinds.items() if choice not in parts} <= {"none"}


@ALL
@pytest.mark.parametrize("law", ALONE, ids=lambda law: law.__name__)
def test_every_choice_is_lawful(law: Law, axis: str, choice: type[Choice]) -> None:
    law(Case(spec_with(axis, choice)))


@ALL
def test_what_sees_the_future_says_so(axis: str, choice: type[Choice]) -> None:
    """By which the law on that knows what to expect."""
    causal = getattr(choice, "causal", True) and not getattr(choice, "shows_future", False)
    assert Case(spec_with(axis, choice)).causal == causal


@ALL
def test_it_says_what_it_is(axis: str, choice: type[Choice]) -> None:
    assert choice.__doc__
    assert repr(build(spec_with(axis, choice), device="meta"))


@pytest.mark.parametrize("choice", list(NORMS), ids=kind_of)
@pytest.mark.parametrize("law", OF_NORMS, ids=lambda law: law.__name__)
def test_every_norm_is_lawful(law: Law, choice: type[norms.Norm]) -> None:
    law(Case(SMALL.override(f"norm.kind={kind_of(choice)}")))


@pytest.mark.usefixtures("visitors")
class TestRegister:
    def test_a_choice_has_one_part(self) -> None:
        register(norms.RMSNorm, RMSNorm)  # once more is no harm
        with pytest.raises(ValueError, match="RMSNorm: has its part RMSNorm already"):
            register(norms.RMSNorm, nn.Identity)

    @pytest.mark.parametrize("wrong", [norms.Norm, Choice])
    def test_what_is_no_choice_is_refused(self, wrong: Any) -> None:
        with pytest.raises(
            ValueError, match=r"expected a subclass of one of the axes norm, residual"
        ):
            register(wrong, RMSNorm)

    def test_what_is_no_choice_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(ValueError, match="int: expected a subclass of one of the axes norm"):
            register(int, RMSNorm)  # type: ignore[arg-type]
