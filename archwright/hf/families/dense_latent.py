"""Latent attention beside dense feed-forwards: Youtu, and MiniCPM 3 with its multipliers."""

import math
from collections.abc import Callable
from typing import Any

from archwright.hf.families.deepseek import LATENT, LATENT_NAMES, PAIRING
from archwright.hf.families.granite import embedding_scale
from archwright.hf.families.llama import (
    ATTENTION_BIAS,
    LLAMA,
    MLP_BIAS,
    NO_MLP_BIAS,
)
from archwright.hf.lenses import MISSING, Computed, Config, Get, Table, nested

YOUTU = LLAMA.derive(
    "youtu",
    "YoutuForCausalLM",
    *LATENT,
    PAIRING,
    NO_MLP_BIAS,
    without=(ATTENTION_BIAS, MLP_BIAS),
    layer_keys=LATENT_NAMES,
)


def _read_depth(config: Config) -> Table:
    depth, number = config["scale_depth"], config["num_hidden_layers"]
    each = 1.0 if depth is None else depth / math.sqrt(number)
    return nested("residual.multiplier", {"attention": each, "feedforward": each})


def _write_depth(get: Get) -> dict[str, Any]:
    each, root = get("residual.multiplier.attention"), math.sqrt(get("num_layers"))
    return (
        {} if each is MISSING else {"scale_depth": _shortest(each * root, each, lambda x: x / root)}
    )


def _shortest(near: float, wanted: float, read: Callable[[float], float]) -> float:
    """Return the number with the fewest digits that is read as the one that is wanted."""
    tried = (float(f"{near:.{digits}g}") for digits in range(1, 18))
    return next((number for number in tried if read(number) == wanted), near)


def _read_base(config: Config) -> Table:
    base = config["dim_model_base"]
    return nested("head.logit_divisor", 1.0 if base is None else config["hidden_size"] / base)


def _write_base(get: Get) -> dict[str, Any]:
    base = round(get("dim") / get("head.logit_divisor"))
    return {"dim_model_base": base}


def _read_value_width(config: Config) -> Table:
    shared = config["hidden_size"] // config["num_attention_heads"]
    return nested("attention.value_head_dim", config["v_head_dim"] or shared)


MINICPM3 = LLAMA.derive(
    "minicpm3",
    "MiniCPM3ForCausalLM",
    *LATENT,
    Computed(_read_value_width, lambda get: {}),
    embedding_scale("scale_emb"),
    Computed(_read_depth, _write_depth),
    Computed(_read_base, _write_base),
    without=(ATTENTION_BIAS,),
    layer_keys=LATENT_NAMES,
)

DENSE_LATENT_FAMILIES = (YOUTU, MINICPM3)
