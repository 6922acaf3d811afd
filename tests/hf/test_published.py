"""Published config.json files give the presets of the same models, and models of the published sizes.

`published_configs.json` was recalled or read in public copies, not downloaded: its keys are those that such files have,
in the spelling of their time. `parameters` are the sizes that hubs show, less what is no parameter here (selection
biases, second copies of tied heads), and null where none was known for sure. The factors of LongRoPE of Phi-3.5-MoE are
stand-ins.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from archwright import hf
from archwright.hf.exporting import differences, fit, nearest_fit
from archwright.hf.loading import text_config
from archwright.model.build import build
from archwright.spec.model_spec import ModelSpec
from archwright.spec.read import load, preset_names
from tests.hf.library import OUTSIDE

PUBLISHED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "published_configs.json").read_text("utf-8")
)
OF_PRESET = {entry["preset"]: name for name, entry in PUBLISHED.items() if entry["preset"]}
SIZED = [name for name, entry in PUBLISHED.items() if entry["parameters"]]

BLOCKED = {
    "bigbird-base": "attention.mask.kind",  # which draws no random blocks at inference
    "chinchilla-70b": "position.kind",
    "gated-deltanet": "norm.weight",  # the class with plain norms needs layers with attention, too
    "gopher-280b": "position.kind",
    "gpt-3-175b": "attention.mask.kind",
    "hybrid-3-1": "recurrence.kind",
    "lamda-137b": "position.kind",
    "minimax-text-01": "position.fraction",  # whose class rotates whole heads
    "original-transformer": "embedding.scale",
    "original-transformer-big": "embedding.scale",
    "palm-540b": "head.logit_divisor",
    "phi-3-small": "norm.kind",
    "baichuan-2-13b": "position.kind",
    "switch-xxl": "encoder.feedforward.kind",  # whose feed-forwards have gates
    "textbook": "embedding.scale",
    "transformer-xl": "embedding.scale",
}
"""Presets that no class of the library can hold, and a choice that blocks the nearest one."""
OTHERWISE = {
    "modern": "llama",
    "ling-3.0-flash": "bailing_hybrid",  # whose file has limits of activations
    "baichuan-2-7b": "llama",  # its class is not in the library
    # The first class in the order that holds the model, which is not its own:
    "seed-oss-36b": "qwen2",
    "ernie-4.5-0.3b": "glm",
    "glm-4.7-flash": "deepseek_v3",
    **dict.fromkeys(
        ("mt5-small", "mt5-base", "mt5-large", "mt5-xl", "mt5-xxl"), "t5"
    ),  # as T5 v1.1, which comes first
    "jamba-v0.1": "jamba",
    **dict.fromkeys(
        ("mamba-130m", "mamba-370m", "mamba-790m", "mamba-1.4b", "mamba-2.8b"), "mamba"
    ),
    **dict.fromkeys(("recurrentgemma-2b", "recurrentgemma-9b"), "recurrent_gemma"),
    "nemotron-4-340b": "nemotron",
    "opt-175b": "opt",
    "phi-4": "llama",  # its class is phi3; without partial rotation it is a Llama, which comes first
    **dict.fromkeys(("longt5-large", "longt5-xl"), "longt5"),
    "granite-4.0-micro": "granite",  # its class is granitemoehybrid; without recurrences it is a Granite
    **dict.fromkeys(("granite-4.0-h-tiny", "granite-4.0-h-small"), "granitemoehybrid"),
    "mamba-2-2.7b": "mamba2",  # its file is of the published code
    # Their class bounds steps below, which the published training does not.
    **dict.fromkeys(("nemotron-h-8b", "nemotron-h-47b", "nemotron-h-56b"), "nemotron_h"),
    **dict.fromkeys(("nemotron-nano-2-9b", "nemotron-3-nano-30b-a3b"), "nemotron_h"),
    "nemotron-3-super-120b-a12b": "nemotron_h",
    "switch-c": "switch_transformers",  # of whose file no config is known for sure
    "reformer": "reformer",
    **dict.fromkeys(("rwkv-7-0.1b", "rwkv-7-2.9b"), "rwkv7"),
    "qwen-14b": "qwen2",  # its class is not in the library
    # The same architecture, in other tensors.
    **dict.fromkeys(("qwen-3.5-35b-a3b", "qwen-3.5-397b-a17b"), "qwen3_next"),
    **dict.fromkeys(("t5-3b", "t5-11b", "ul2"), "t5"),
    **dict.fromkeys(("t5-v1.1-base", "t5-v1.1-large", "t5-v1.1-xl", "t5-v1.1-xxl"), "t5"),
}
"""Families of presets whose config is not here, or is of another one."""


def spec_of(name: str) -> ModelSpec:
    config, _ = text_config(PUBLISHED[name]["config"])
    return hf.FAMILIES[config["model_type"]].spec(config, name=name)


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_is_read_written_and_read(name: str) -> None:
    spec = spec_of(name)
    assert fit(spec, hf.FAMILIES[text_type(name)]).blocking == ()


def text_type(name: str) -> str:
    return str(text_config(PUBLISHED[name]["config"])[0]["model_type"])


@pytest.mark.sampled(fast=10)
@pytest.mark.parametrize("preset", OF_PRESET)
def test_a_published_config_is_the_preset_of_its_model(preset: str) -> None:
    """But for what only training knows, and lengths that nothing in the model depends on."""
    own, published = load(preset).resolved().detector, spec_of(OF_PRESET[preset])
    family = hf.FAMILIES[text_type(OF_PRESET[preset])]
    assert list(differences(own, family.with_unsaid(published, own))) == []


@pytest.mark.sampled(fast=5)
@pytest.mark.parametrize("name", SIZED)
def test_a_published_config_has_the_published_number_of_parameters(name: str) -> None:
    model = build(spec_of(name), device="meta")
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED[name]["parameters"]


@pytest.mark.sampled(fast=3)
@pytest.mark.parametrize("preset", preset_names("models"))
def test_a_preset_is_written_as_the_family_of_its_model(preset: str) -> None:
    found = nearest_fit(load(preset))
    if preset in BLOCKED:
        assert any(line.startswith(BLOCKED[preset]) for line in found.blocking)
        return
    assert found.blocking == ()
    expected = OTHERWISE.get(preset) or text_type(OF_PRESET[preset])
    assert found.family.model_type == expected


@pytest.mark.sampled(fast=8)
@pytest.mark.parametrize("name", sorted({*hf.FAMILIES} - OUTSIDE))
def test_other_words_for_keys_are_those_of_the_class(name: str) -> None:
    """A class with words of its own reads those of others, and writes some into config.json."""
    transformers = pytest.importorskip("transformers")
    family = hf.FAMILIES[name]
    words = transformers.AutoConfig.for_model(name).attribute_map
    told = {word: key for word, key in words.items() if key in family.defaults}
    missing = {word: key for word, key in told.items() if family.key_aliases.get(word) != key}
    assert {w: k for w, k in missing.items() if w not in family.defaults} == {}
