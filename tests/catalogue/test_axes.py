"""The catalogue finds every choice, in the order of a model, and reads users from presets."""

import runpy
from pathlib import Path
from typing import Literal

import pytest

from archwright.catalogue import usage
from archwright.catalogue.axes import ORDER, Option, Section, command, refusal, sections
from archwright.catalogue.usage import Usage
from archwright.spec.choice import Choice
from archwright.spec.embeddings import Embedding
from archwright.spec.masks import Mask, Window
from archwright.spec.model_spec import ModelSpec
from archwright.spec.norms import NoNorm, Norm, RMSNorm
from archwright.spec.read import load_run

OUTSIDE = Path(__file__).parents[1] / "outside" / "centered_norm.py"


def section(name: str) -> Section:
    (found,) = [section for section in sections() if section.name == name]
    return found


def option(name: str, of: str, kind: str = "") -> Option:
    options = [o for k in section(of).kinds if k.name == kind for o in k.options]
    (found,) = [o for o in (*options, *section(of).options) if o.name == name]
    return found


def test_every_axis_is_found_in_the_order_of_a_model() -> None:
    own = {axis for axis in Choice.axes() if axis.__module__.startswith("archwright.")}
    assert {section.cls for section in sections() if section.kinds} == own
    assert [section.path for section in sections()] == list(ORDER)


def test_places_and_defaults_are_those_of_the_specs() -> None:
    norm = section("norm")
    assert norm.places[0] == "model.norm"
    assert {"model.attention.qk_norm", "model.embedding.norm"} <= set(norm.places)
    assert norm.default == "rms"
    assert [kind.name for kind in norm.kinds] == list(Norm.kinds)


def test_what_kinds_share_stands_once() -> None:
    feedforward = section("feedforward")
    hidden = feedforward.families[-1]
    assert set(hidden.kinds) == {k.name for k in feedforward.kinds} - {
        "none",
        "experts",
        "channel_mix",
    }
    assert "hidden_dim" in [o.name for o in hidden.options]
    own = [k.name for k in feedforward.kinds if "hidden_dim" in [o.name for o in k.options]]
    assert own == ["channel_mix"]


def test_commands() -> None:
    asks = ("model.norm.kind=layer", 'model.layers.cycle=["default"]')
    assert command(asks).endswith(
        """ modern model.norm.kind=layer 'model.layers.cycle=["default"]'"""
    )
    assert refusal(asks) == ""
    assert refusal(("model.dim=7",)).startswith("model.attention.num_heads: found 8; expected")


def test_users_are_counted_by_the_layers_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = ModelSpec().override(
        "layer_kinds.local.attention.mask.kind=window",
        "layer_kinds.never.norm.kind=layer",
        'layers.cycle=["local","default"]',
        "attention.bias.query=true",
        "embedding.norm.kind=rms",
        "head.tied=true",
    )
    monkeypatch.setattr(usage, "preset_names", lambda room: ["mixed"] if room == "models" else [])
    monkeypatch.setattr(usage, "load", lambda name: mixed)
    found = Usage()
    assert found.presets_with_kind("model.attention.mask", Window) == ["mixed"]
    assert found.presets_with_kind("model.attention.mask", Mask.kinds["causal"]) == ["mixed"]
    assert found.presets_with_kind("model.norm", RMSNorm) == ["mixed"]
    assert found.presets_with_kind("model.norm", Norm.kinds["layer"]) == []
    assert found.presets_with_kind("model.embedding.norm", RMSNorm) == ["mixed"]
    assert found.presets_with_kind("model.embedding.norm", NoNorm) == []
    assert found.presets_with_option(option("tied", "head")) == ["mixed"]
    assert found.presets_with_option(option("bias.query", "attention", "softmax")) == ["mixed"]
    assert found.presets_with_option(option("bias.key", "attention", "softmax")) == []
    assert found.presets_with_option(option("dropout", "embedding")) == []


@pytest.mark.slow
def test_recipes_use_optimizers() -> None:
    optimizer = type(load_run("demo").optimizer)
    assert "demo" in Usage().presets_with_kind("optimizer", optimizer)


@pytest.mark.usefixtures("visitors")
def test_a_choice_from_outside_is_in_it() -> None:
    runpy.run_path(str(OUTSIDE))
    assert section("norm").kinds[-1].asks == ("model.norm.kind=centered",)
    assert option("gain", "norm", "centered").asks == ("model.norm.gain=1",)


@pytest.mark.usefixtures("visitors")
def test_an_option_without_a_default_must_be_given() -> None:
    class Sized(Mask):
        kind: Literal["sized"] = "sized"
        size: int

    (found,) = [kind for kind in section("mask").kinds if kind.name == "sized"]
    assert found.asks == ("model.attention.mask.kind=sized", "model.attention.mask.size=VALUE")
    assert found.options[0].default == ""


def test_a_table_that_is_no_axis_has_its_own_options() -> None:
    assert [o.name for o in section("embedding").options] == list(Embedding.model_fields)
