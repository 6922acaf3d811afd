"""Presets beside published code: where the defaults of a published class are a model that has a preset, the
preset is told in the same numbers, but for what its source gives otherwise."""

import pytest

from archwright.hf.families import FAMILIES
from archwright.spec.read import load

transformers = pytest.importorskip("transformers")

LONGER = {"max_position_embeddings", "rope_parameters"}
"""Keys of a model whose text was made longer after the class was written."""

BALANCE = {"router_aux_loss_coef"}

DEFAULTS: list[tuple[str, str, set[str]]] = [
    ("gpt", "openai-gpt", set()),
    (
        "gpt-2",
        "gpt2",
        {"n_inner"},
    ),  # there None stands for four times the width, here is the number
    ("gpt-j-6b", "gptj", {"n_inner"}),
    ("gpt-neox-20b", "gpt_neox", {"hidden_act"}),  # whose own file says gelu_fast
    ("opt-125m", "opt", set()),
    ("gemma-7b", "gemma", set()),
    ("gemma-2-2b", "gemma2", set()),
    ("olmo-7b", "olmo", set()),
    ("mistral-7b", "mistral", {"max_position_embeddings", "rms_norm_eps"}),
    ("mixtral-8x7b", "mixtral", {"max_position_embeddings", "head_dim"} | BALANCE),
    ("gpt-oss-120b", "gpt_oss", BALANCE),
    ("deepseek-v3", "deepseek_v3", LONGER),
    ("llama-4-scout", "llama4_text", LONGER),
    ("smollm3-3b", "smollm3", LONGER),
    ("glm-4-9b", "glm4", {"max_position_embeddings"}),
    ("glm-4.5-air", "glm4_moe", {"rope_parameters", "attention_bias"}),
    ("qwen-3-next-80b-a3b", "qwen3_next", LONGER),
    ("qwen-3.5-35b-a3b", "qwen3_5_moe_text", LONGER),
    ("olmo-hybrid-7b", "olmo_hybrid", {"rope_parameters"}),
    ("kimi-linear-48b-a3b", "kimi_linear", {"layer_types"}),  # of the class, one layer later
    ("ling-3.0-flash", "bailing_hybrid", {"head_dim"}),  # the class overwrites its default
    ("jamba-v0.1", "jamba", set()),
    # The class has half of the published hidden width by default, and as many key heads as heads.
    (
        "recurrentgemma-2b",
        "recurrent_gemma",
        {"block_types", "intermediate_size", "num_key_value_heads"},
    ),
]
"""A preset, its class, and the keys in which they differ."""

UNTOLD = {"architectures", "dtype", "transformers_version", "bos_token_id", "eos_token_id"}
"""Keys that tell nothing of the architecture."""


@pytest.mark.parametrize(("name", "family", "otherwise"), DEFAULTS, ids=[d[0] for d in DEFAULTS])
def test_a_preset_is_the_default_of_its_class(name: str, family: str, otherwise: set[str]) -> None:
    published = transformers.AutoConfig.for_model(family).to_dict()
    told = FAMILIES[family].config(load(name).resolved())
    both = (told.keys() & published.keys()) - UNTOLD
    assert len(both) >= 10
    differ = {key for key in both if not same(told[key], published[key])}
    assert differ == otherwise


def same(told: object, published: object) -> bool:
    """Return whether values are equal, and tables in the keys that both have."""
    if isinstance(told, dict) and isinstance(published, dict):
        return all(told[key] == published[key] for key in told.keys() & published.keys())
    return told == published
