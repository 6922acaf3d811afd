"""Registry of families by the `model_type` of config.json."""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from archwright.hf.family import Family
from archwright.spec.installed import load_classic

ORDER = (
    *("llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "gemma", "gemma2"),
    *("gemma3_text", "vaultgemma", "olmo", "olmo2", "olmo3", "exaone4", "cohere", "cohere2"),
    *("granite", "granite_swa", "glm", "glm4", "nemotron", "arcee", "jais2", "apertus", "nanochat"),
    *("phi3", "smollm3", "cwm", "seed_oss", "helium", "ernie4_5", "hunyuan_v1_dense", "bitnet"),
    *("modernbert-decoder", "modernbert", "youtu", "minicpm3", "openai-gpt", "gpt2", "gpt_neo"),
    *("gptj", "codegen", "gpt_bigcode", "gpt_neox", "gpt_neox_japanese", "bloom", "falcon", "mpt"),
    *("opt", "xglm", "biogpt", "ctrl", "phi", "persimmon", "stablelm", "starcoder2", "bert"),
    *("big_bird", "roberta", "xlm-roberta", "camembert", "distilbert", "roformer", "longformer"),
    *("albert", "electra", "deberta", "deberta-v2", "xlnet", "mixtral", "qwen2_moe", "qwen3_moe"),
    *("olmoe", "flex_olmo", "granitemoe", "granitemoeshared", "dbrx", "gpt_oss", "llama4_text"),
    *("solar_open", "hy_v3", "dots1", "glm4_moe", "minimax_m2", "exaone_moe", "afmoe"),
    *("mimo_v2_flash", "ernie4_5_moe", "hunyuan_v1_moe", "cohere2_moe", "phimoe", "deepseek_v2"),
    *("qwen3_5_text", "qwen3_next", "qwen3_5_moe_text", "olmo_hybrid"),
    *("deepseek_v3", "glm4_moe_lite", "t5", "mt5", "umt5", "switch_transformers", "longt5"),
    *("t5gemma", "bart", "led", "plbart", "mbart", "blenderbot", "pegasus", "bigbird_pegasus"),
    *("marian", "m2m_100", "fsmt", "reformer", "lfm2", "lfm2_moe"),
    *("rwkv7", "mamba", "falcon_mamba", "jamba", "recurrent_gemma"),
)
"""Model types in the order in which export tries them, usual ones first; others follow in any order.

Some are in `archwright.classic`, which may be missing."""


def families_in(package: ModuleType) -> dict[str, Family]:
    """Return the families in the modules of a package by `model_type`."""
    names = [f"{package.__name__}.{file.name}" for file in iter_modules(package.__path__)]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return {value.model_type: value for value in values if isinstance(value, Family)}


_FOUND = families_in(sys.modules[__name__])
if (classic := load_classic("families")) is not None:
    _FOUND |= families_in(classic)
FAMILIES = {name: _FOUND[name] for name in dict.fromkeys((*ORDER, *_FOUND)) if name in _FOUND}
"""Families by `model_type`. Export uses the first family that can represent the model."""
