"""Words for specs: every option that differs is told, and nothing else."""

import pytest

from archwright.catalogue.axes import sections
from archwright.catalogue.summaries import arrangement, brief, differences, layer_words
from archwright.spec.errors import UserError
from archwright.spec.masks import Window
from archwright.spec.model_spec import Arrangement, ModelSpec
from archwright.spec.norms import RMSNorm
from archwright.spec.read import load, preset_names

SECTIONS = [section for section in sections() if section.path.startswith("model")]
ASKED = {
    f"{' '.join(option.asks)} beside {' '.join(before) or 'nothing'}": (before, option.asks)
    for section in SECTIONS
    for before, options in [
        ((), (*section.kinds, *section.options)),
        *((kind.asks, kind.options) for kind in section.kinds if section.name != "encoder"),
    ]
    for option in options
    if section.name != "encoder"
}
"""Every kind of the catalogue's page, and every option beside the kind that has it."""

IDLE = ("model.attention.qk_norm_", "model.layer_kinds")
"""What changes nothing by itself: options of a norm that is not there, layers that stand nowhere."""


def changed(spec: ModelSpec, asks: tuple[str, ...]) -> ModelSpec:
    """Return a model with assignments, of those of a run the ones that are its model's."""
    return spec.override(*(a.removeprefix("model.") for a in asks if a.startswith("model.")))


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize(("before", "asks"), ASKED.values(), ids=ASKED)
def test_whatever_is_changed_is_told(before: tuple[str, ...], asks: tuple[str, ...]) -> None:
    old = changed(load("modern"), before)
    try:
        new = changed(old, asks)
        found = differences(old, new)
    except UserError:
        pytest.skip("needs another choice beside it")
    idle = asks[0].startswith(IDLE) and not asks[-1].startswith("model.layers.")
    matters = old.hash() != new.hash() and not idle
    assert bool(found) == matters
    assert all(before != after for _, before, after in found)


@pytest.mark.sampled(fast=20)
@pytest.mark.parametrize("name", preset_names("models"))
def test_a_model_does_not_differ_from_itself_and_differs_from_others(name: str) -> None:
    spec, modern = load(name), load("modern")
    assert differences(spec, spec) == []
    assert bool(differences(modern, spec)) == (name != "modern")
    there, back = differences(modern, spec), differences(spec, modern)
    assert sorted(there) == sorted((at, new, old) for at, old, new in back)


def test_choices_are_told_by_what_is_not_usual() -> None:
    spec = load("modern").override("norm.eps=1e-6", "attention.qk_norm.kind=rms")
    assert brief(spec.norm) == "RMSNorm, eps 1e-06"
    told = brief(layer_words(spec)["default"].attention)
    assert told == (
        "softmax, 8/2 heads of 64, QK-norm RMSNorm, QK-norm over head, QK-norm before positions"
    )
    assert brief(spec.head) == ""
    assert brief(Window()) == "window, size 4,096"
    assert brief(RMSNorm(weight="unit_offset", eps=0.5)) == "RMSNorm, eps 0.5, weight 1 + w"


def test_arrangements() -> None:
    assert arrangement(Arrangement()) == "default"
    mixed = Arrangement(prefix=("a", "a"), cycle=("b", "b", "default"), suffix=("a",))
    assert arrangement(mixed) == "2 a, then 2 b + default, repeated, then a"
