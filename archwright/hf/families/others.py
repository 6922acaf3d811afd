"""Families of vendors with few models."""

import math
from collections.abc import Callable
from typing import Any

from archwright.hf.families import common
from archwright.hf.families.arcee import ARCEE
from archwright.hf.families.deepseek import LATENT, LATENT_NAMES
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.phi import PHI
from archwright.hf.layer_types import Layers, Listed, Role
from archwright.hf.layouts import HalvesSwapped
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Lens,
    Set,
    Table,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, When, filled
from archwright.spec.model_spec import LayerSpec

SEED_OSS = LLAMA.derive(
    "seed_oss",
    "SeedOssForCausalLM",
    common.QKV_BIAS,
    common.flag("attention_out_bias", {"attention.bias.out": True}),
    Field("residual_dropout", "residual.dropout"),
)

HELIUM = LLAMA.derive(
    "helium",
    "HeliumForCausalLM",
    Rope(pairing="interleaved", fraction=""),
    Set({"norm.scale_in": "float32"}),
    common.QKV_BIAS,
)


ROPE_LAYERS = common.rope_in_some("nope")


def _windows(config: Config, num_layers: int) -> list[str]:
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    return [
        "sliding_attention" if slides and role == "nope" else "full_attention"
        for role in ROPE_LAYERS.read(config, num_layers)
    ]


SMOLLM3 = LLAMA.derive(
    "smollm3",
    "SmolLM3ForCausalLM",
    groups=(
        Layers(
            ROPE_LAYERS,
            {
                "rope": Role({"position.kind": "rope"}, (common.ROPE,)),
                "nope": Role({"position.kind": "none"}),
            },
        ),
        Layers(common.switched(Listed(otherwise=_windows).read), common.ROLES),
    ),
)

PERSIMMON = PHI.derive(
    "persimmon",
    "PersimmonForCausalLM",
    Set({"residual.kind": "pre", "head.bias": False}),
    Field("hidden_dropout", "residual.dropout"),
    layer_keys={
        "input_layernorm": "residual.norms.{mixer}",
        "post_attention_layernorm": "residual.norms.feedforward",
        "self_attn.query_key_value": Fused(common.QKV, common.by_head),
        "mlp.dense_h_to_4h": "feedforward.up",
        "mlp.dense_4h_to_h": "feedforward.down",
    },
    undeclared={"partial_rotary_factor": 0.5},
)

STABLELM = LLAMA.derive(
    "stablelm",
    "StableLmForCausalLM",
    Rope(),
    Set(common.LAYER_NORM),
    Field("layer_norm_eps", "norm.eps"),
    Field("hidden_dropout", "residual.dropout"),
    common.flag("use_qkv_bias", common.QKV_BIASES),
    common.flag(
        "use_parallel_residual",
        {"residual.kind": "parallel", "residual.num_norms": 1},
        {"residual.kind": "pre"},
    ),
    common.layer_qk_norm("qk_layernorm", "per_head"),
    layer_keys={
        "input_layernorm": (
            "residual.norms.shared",
            When("residual.kind", "pre", "residual.norms.{mixer}"),
        ),
        "self_attn.q_layernorm.norms.{e}": "attention.query_norm",
        "self_attn.k_layernorm.norms.{e}": "attention.key_norm",
    },
    undeclared={"partial_rotary_factor": 0.25},
)


def _far(config: Config, n: int) -> list[str]:
    """Return the mask types: full attention in the first `max_window_layers` layers, then sliding windows."""
    first = n if config["sliding_window"] is None else config["max_window_layers"]
    return ["full_attention" if i < first else "sliding_attention" for i in range(n)]


DOTS1 = LLAMA.derive(
    "dots1",
    "Dots1ForCausalLM",
    *common.qk_norm(),
    groups=(
        Layers(Listed(otherwise=_far), common.ROLES),
        common.sparse(common.FIRST_DENSE, *common.ROUTED),
    ),
    layer_keys=common.EXPERT_NAMES,
)

SOLAR_OPEN = LLAMA.derive(
    "solar_open",
    "SolarOpenForCausalLM",
    common.QKV_BIAS,
    *common.ROUTED,
    layer_keys=common.EXPERT_NAMES,
)


def _read_depth(config: Config) -> Table:
    depth, number = config["scale_depth"], config["num_hidden_layers"]
    factor = 1.0 if depth is None else depth / math.sqrt(number)
    return nested("residual.multiplier", {"attention": factor, "feedforward": factor})


def _write_depth(get: Get) -> dict[str, Any]:
    factor, root = get("residual.multiplier.attention"), math.sqrt(get("num_layers"))
    if factor is MISSING:
        return {}
    return {"scale_depth": _shortest(factor * root, factor, lambda x: x / root)}


def _shortest(near: float, target: float, read: Callable[[float], float]) -> float:
    """Return the shortest decimal close to `near` for which `read` returns `target`."""
    candidates = (float(f"{near:.{digits}g}") for digits in range(1, 18))
    return next((number for number in candidates if read(number) == target), near)


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
    Computed(_read_value_width),
    common.embedding_scale("scale_emb"),
    Computed(_read_depth, _write_depth),
    Computed(_read_base, _write_base),
    layer_keys=LATENT_NAMES,
)


def _window(config: Config) -> Table:
    """Read the window size; old files exclude the query's position."""
    old_size = config["sliding_window_size"]
    size = config["sliding_window"] if old_size is None else old_size + 1
    return nested("attention.mask.size", size)


def _mimo_type(layer_type: str, sinks: bool, heads: int) -> tuple[Lens, ...]:
    """Return the lenses that differ between window layers and full-attention layers."""
    return (
        Rope(layer_type=layer_type, scaled=False),
        Set({"attention.sinks": sinks}),
        Field("num_key_value_heads", "attention.num_kv_heads", times=heads),
    )


MIMO_V2_FLASH = LLAMA.derive(
    "mimo_v2_flash",
    "MiMoV2FlashForCausalLM",
    common.QKV_BIAS,
    Field("v_head_dim", "attention.value_head_dim"),
    Field("attention_value_scale", "attention.value_scale"),
    groups=(
        Layers(
            Listed(
                otherwise=lambda config, n: [
                    "sliding_attention" if i and (i + 1) % 6 else "full_attention" for i in range(n)
                ]
            ),
            common.by_type(
                _mimo_type("full_attention", False, 1),
                _mimo_type("sliding_attention", True, 2),
                window=(
                    Computed(_window, lambda get: {"sliding_window": get("attention.mask.size")}),
                ),
            ),
        ),
        common.sparse(common.FIRST_OF_LIST, *common.routed("n_routed_experts")),
    ),
    layer_keys={**common.EXPERT_NAMES, "self_attn.attention_sink_bias": "attention.sinks"},
    ignored=(*LLAMA.ignored, r"model\.mtp\..*"),
    undeclared={
        "partial_rotary_factor": 0.334,
        "rope_parameters": {
            "full_attention": {"rope_theta": 5000000.0},
            "sliding_attention": {"rope_theta": 10000.0},
        },
        "sliding_window_size": None,
    },
)

NEMOTRON = ARCEE.derive(
    "nemotron",
    "NemotronForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": True}),
    Set({"norm.weight": "unit_offset"}),
    Field("norm_eps", "norm.eps"),
    Rope(),
    undeclared={"partial_rotary_factor": 0.5},
)

JAIS2 = ARCEE.derive(
    "jais2",
    "Jais2ForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": True}),
    Set({"norm.weight": "plain"}),
    Field("layer_norm_eps", "norm.eps"),
)

APERTUS = ARCEE.derive(
    "apertus",
    "ApertusForCausalLM",
    Activation("hidden_act", gated=False, names={"xielu": {"kind": "xielu", "beta": 0.5}}),
    *common.qk_norm(),
    layer_keys={
        "attention_layernorm": "residual.norms.{mixer}",
        "feedforward_layernorm": "residual.norms.feedforward",
        "mlp.act_fn.alpha_p": "feedforward.activation.positive",
        "mlp.act_fn.alpha_n": "feedforward.activation.negative",
        "mlp.act_fn.beta": filled(0.5),
        "mlp.act_fn.eps": filled(-1e-6),
    },
    undeclared={"rope_parameters": common.llama3(12e6, 8.0)},
)


def _swapped(layer: LayerSpec) -> HalvesSwapped:
    return HalvesSwapped(common.attention_size(layer, "head_dim"))


NANOCHAT = ARCEE.derive(
    "nanochat",
    "NanoChatForCausalLM",
    Set({"norm.weight": "none", "norm.scale_in": "float32"}),
    Set({"embedding.norm.kind": "rms", "embedding.norm.weight": "none"}),
    Set({"attention.qk_norm.kind": "rms", "attention.qk_norm.weight": "none"}),
    Set({"attention.qk_norm_over": "head", "attention.qk_norm_position": "after"}),
    Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps", "embedding.norm.eps")),
    Field("final_logit_softcapping", "head.softcap", or_none=True),
    layer_keys={
        "self_attn.q_proj": Fused(("attention.query",), _swapped),
        "self_attn.k_proj": Fused(("attention.key",), _swapped),
        "mlp.fc1": "feedforward.up",
        "mlp.fc2": "feedforward.down",
    },
)
