"""Vendors of one family each."""

import math
from collections.abc import Callable
from typing import Any

from archwright.hf.families.arcee import ARCEE, PLAIN
from archwright.hf.families.common import (
    ALL_EPS,
    ATTENTION_BIAS,
    CAUSAL,
    EPS,
    EXPERT_NAMES,
    FIRST_DENSE,
    FIRST_OF_LIST,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    KV_HEADS,
    LAYER_NORM,
    MLP_BIAS,
    NO_DENSE,
    NO_MLP_BIAS,
    PRE_RMS,
    QKV,
    QKV_BIAS_SWITCH,
    QUERY_KEY_NORM,
    ROLES,
    ROPE,
    SIGMOID,
    WINDOW,
    balance,
    bias,
    by_head,
    embedding_scale,
    experts,
    gated,
    listed,
    qk_norm,
    routed,
    shared,
    sparse,
    switched,
)
from archwright.hf.families.deepseek import LATENT, LATENT_NAMES
from archwright.hf.families.llama import BASE, LLAMA
from archwright.hf.families.phi import LAYER_QK_NORM, NO_QK_NORM, PHI
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role
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
    Switch,
    Table,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, When, filled
from archwright.spec.model_spec import LayerSpec

SEED_OSS = LLAMA.derive(
    "seed_oss",
    "SeedOssForCausalLM",
    bias("attention_bias", "attention", "query", "key", "value"),
    bias("attention_out_bias", "attention", "out"),
    Field("residual_dropout", "residual.dropout"),
    without=(ATTENTION_BIAS,),
)


HELIUM = LLAMA.derive(
    "helium",
    "HeliumForCausalLM",
    Rope(pairing="interleaved", fraction=""),
    Set({"norm.scale_in": "float32"}),
    bias("attention_bias", "attention", "query", "key", "value"),
    Set({"attention.bias.out": False}),
    without=(ROPE, ATTENTION_BIAS),
)


def _turning(config: Config, num_layers: int) -> list[str]:
    interval = config["no_rope_layer_interval"]
    listed = config["no_rope_layers"] or [(i + 1) % interval for i in range(num_layers)]
    return ["rope" if turns else "nope" for turns in listed]


def _windows(config: Config, num_layers: int) -> list[str]:
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    return [
        "sliding_attention" if slides and role == "nope" else "full_attention"
        for role in _turning(config, num_layers)
    ]


SMOLLM3 = LLAMA.derive(
    "smollm3",
    "SmolLM3ForCausalLM",
    without=(ROPE,),
    groups=(
        Layers(
            CustomPattern(
                _turning,
                lambda roles: {"no_rope_layers": [int(role == "rope") for role in roles]},
            ),
            {
                "rope": Role({"position.kind": "rope"}, (ROPE,)),
                "nope": Role({"position.kind": "none"}),
            },
        ),
        Layers(switched(Listed(otherwise=_windows)), ROLES),
    ),
)


PERSIMMON = PHI.derive(
    "persimmon",
    "PersimmonForCausalLM",
    Set({"residual.kind": "pre", "head.bias": False}),
    Field("hidden_dropout", "residual.dropout"),
    layer_keys={
        "input_layernorm": "residual.norms.attention",
        "post_attention_layernorm": "residual.norms.feedforward",
        "self_attn.q_proj": None,
        "self_attn.k_proj": None,
        "self_attn.v_proj": None,
        "self_attn.query_key_value": Fused(QKV, by_head),
        "mlp.fc1": None,
        "mlp.fc2": None,
        "mlp.dense_h_to_4h": "feedforward.up",
        "mlp.dense_4h_to_h": "feedforward.down",
    },
    without=("num_key_value_heads", "embd_pdrop", "resid_pdrop"),
    undeclared={
        "num_key_value_heads": None,
        "partial_rotary_factor": 0.5,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
)


STABLELM = LLAMA.derive(
    "stablelm",
    "StableLmForCausalLM",
    Rope(),
    Set(LAYER_NORM),
    Field("layer_norm_eps", "norm.eps"),
    Field("hidden_dropout", "residual.dropout"),
    bias("use_qkv_bias", "attention", "query", "key", "value"),
    Switch(
        "use_parallel_residual",
        {
            True: Set({"residual.kind": "parallel", "residual.num_norms": 1}),
            False: Set({"residual.kind": "pre"}),
        },
    ),
    Switch(
        "qk_layernorm",
        {
            True: (
                Set({**LAYER_QK_NORM, "attention.qk_norm.bias": False}),
                Set({"attention.qk_norm_over": "per_head"}),
                Field("layer_norm_eps", "attention.qk_norm.eps"),
            ),
            False: Set(NO_QK_NORM),
        },
    ),
    layer_keys={
        "input_layernorm": (
            "residual.norms.shared",
            When("residual.kind", "pre", "residual.norms.attention"),
        ),
        "self_attn.q_layernorm.norms.{e}": "attention.query_norm",
        "self_attn.k_layernorm.norms.{e}": "attention.key_norm",
    },
    without=(ROPE, "rms_norm_eps", "attention_bias", "mlp_bias"),
    undeclared={"partial_rotary_factor": 0.25},
)


def _far(config: Config, n: int) -> list[str]:
    """Return which layers see a window: those from `max_window_layers` on."""
    first = n if config["sliding_window"] is None else config["max_window_layers"]
    return ["full_attention" if i < first else "sliding_attention" for i in range(n)]


DOTS1 = BASE.derive(
    "dots1",
    "Dots1ForCausalLM",
    ATTENTION_BIAS,
    *qk_norm("head"),
    groups=(
        Layers(Listed(otherwise=_far), ROLES),
        sparse(FIRST_DENSE, *routed("n_routed_experts", shared("n_shared_experts"))),
    ),
    layer_keys={**EXPERT_NAMES, **QUERY_KEY_NORM},
    key_aliases={"num_local_experts": "n_routed_experts"},
)


SOLAR_OPEN = BASE.derive(
    "solar_open",
    "SolarOpenForCausalLM",
    QKV_BIAS_SWITCH,
    *routed("n_routed_experts", shared("n_shared_experts")),
    layer_keys=NO_DENSE | EXPERT_NAMES,
    key_aliases={"num_local_experts": "n_routed_experts"},
    undeclared={"intermediate_size": 11008},
)


MINIMAX_M2 = BASE.derive(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    Rope(),
    Computed(
        lambda config: (
            nested("position.fraction", config["rotary_dim"] / config["head_dim"])
            if config["rotary_dim"]
            else {}
        ),
        lambda get: {},
    ),
    *qk_norm("projection"),
    *experts("num_local_experts", "intermediate_size", **SIGMOID),
    balance(),
    without=(ROPE,),
    layer_keys=NO_DENSE
    | {
        "block_sparse_moe.gate": "feedforward.router",
        "block_sparse_moe.e_score_correction_bias": "feedforward.selection_bias",
        **QUERY_KEY_NORM,
    }
    | listed("block_sparse_moe.experts", "w1", "w3", "w2"),
    key_aliases={"num_experts": "num_local_experts"},
    undeclared={"rotary_dim": None},
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


def _window(config: Config) -> Table:
    """Return the window, which old files count without the query's own key."""
    others = config["sliding_window_size"]
    size = config["sliding_window"] if others is None else others + 1
    return nested("attention.mask.size", size)


def _by_type(layer_type: str, sinks: bool, heads: int) -> tuple[Lens, ...]:
    """Return what differs between windows and full attention."""
    return (
        Rope(layer_type=layer_type, scaled=False),
        Set({"attention.sinks": sinks}),
        Field("num_key_value_heads", "attention.num_kv_heads", times=heads),
    )


MIMO_V2_FLASH = BASE.derive(
    "mimo_v2_flash",
    "MiMoV2FlashForCausalLM",
    bias("attention_bias", "attention", "query", "key", "value"),
    Field("v_head_dim", "attention.value_head_dim"),
    Field("attention_value_scale", "attention.value_scale"),
    without=(ROPE, KV_HEADS),
    groups=(
        Layers(
            Listed(
                otherwise=lambda config, n: [
                    "sliding_attention" if i and (i + 1) % 6 else "full_attention" for i in range(n)
                ]
            ),
            {
                "full_attention": Role(CAUSAL.values, _by_type("full_attention", False, 1)),
                "sliding_attention": Role(
                    WINDOW.values,
                    (
                        Computed(
                            _window, lambda get: {"sliding_window": get("attention.mask.size")}
                        ),
                        *_by_type("sliding_attention", True, 2),
                    ),
                ),
            },
        ),
        sparse(FIRST_OF_LIST, *routed("n_routed_experts")),
    ),
    layer_keys={
        **EXPERT_NAMES,
        **dict.fromkeys(gated("mlp.shared_experts", "")),
        "self_attn.attention_sink_bias": "attention.sinks",
    },
    ignored=(*BASE.ignored, r"model\.mtp\..*"),
    key_aliases={"num_local_experts": "n_routed_experts"},
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
    without=(PRE_RMS, EPS, ROPE),
    undeclared={"partial_rotary_factor": 0.5},
)


JAIS2 = ARCEE.derive(
    "jais2",
    "Jais2ForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": True}),
    Set({"norm.weight": "plain"}),
    Field("layer_norm_eps", "norm.eps"),
    without=(PRE_RMS, EPS),
)


APERTUS = ARCEE.derive(
    "apertus",
    "ApertusForCausalLM",
    Activation("hidden_act", gated=False, names={"xielu": {"kind": "xielu", "beta": 0.5}}),
    Set(HEAD_NORMS),
    ALL_EPS,
    NO_MLP_BIAS,
    without=(PLAIN, EPS, MLP_BIAS),
    layer_keys={
        "input_layernorm": None,
        "post_attention_layernorm": None,
        "attention_layernorm": "residual.norms.attention",
        "feedforward_layernorm": "residual.norms.feedforward",
        "mlp.act_fn.alpha_p": "feedforward.activation.positive",
        "mlp.act_fn.alpha_n": "feedforward.activation.negative",
        "mlp.act_fn.beta": filled(0.5),
        "mlp.act_fn.eps": filled(-1e-6),
        **HEAD_NORM_NAMES,
    },
    undeclared={
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 12000000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
)


def _swapped(layer: LayerSpec) -> HalvesSwapped:
    return HalvesSwapped(layer.attention.model_dump()["head_dim"])


NANOCHAT = ARCEE.derive(
    "nanochat",
    "NanoChatForCausalLM",
    Set({"norm.weight": "none", "norm.scale_in": "float32"}),
    Set({"embedding.norm.kind": "rms", "embedding.norm.weight": "none"}),
    Set({"attention.qk_norm.kind": "rms", "attention.qk_norm.weight": "none"}),
    Set({"attention.qk_norm_over": "head", "attention.qk_norm_position": "after"}),
    Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps", "embedding.norm.eps")),
    Field("final_logit_softcapping", "head.softcap", or_none=True),
    NO_MLP_BIAS,
    without=(EPS, MLP_BIAS),
    layer_keys={
        "self_attn.q_proj": Fused(("attention.query",), _swapped),
        "self_attn.k_proj": Fused(("attention.key",), _swapped),
        "mlp.up_proj": None,
        "mlp.down_proj": None,
        "mlp.fc1": "feedforward.up",
        "mlp.fc2": "feedforward.down",
    },
)
