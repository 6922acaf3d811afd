"""Llama with other biases, pairs of coordinates that turn, layers without positions, or matrices side by side."""

from typing import Any

from archwright.hf.families.llama import (
    ATTENTION_BIAS,
    DROPOUT,
    EPS,
    LLAMA,
    MISTRAL,
    MLP_BIAS,
    NO_MLP_BIAS,
    ROLES,
    ROPE,
    bias,
)
from archwright.hf.families.mistral import MINISTRAL
from archwright.hf.families.qwen import ALL_EPS, HEAD_NORMS, switched
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, first_of
from archwright.hf.layouts import Rows
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Set, Table, Write
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused

GATE_UP = Fused(("feedforward.gate", "feedforward.up"), Rows())

CWM = MINISTRAL.derive(
    "cwm",
    "CwmForCausalLM",
    MLP_BIAS,
    Write({"bos_token_id": 0}),  # the class demands one
    without=(NO_MLP_BIAS,),
    groups=(Layers(Listed(otherwise=first_of(4)), ROLES),),
    undeclared={
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        }
    },
)


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

ERNIE4_5 = LLAMA.derive(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    Rope(pairing="interleaved", fraction=""),
    bias("use_bias", "attention", "query", "key", "value", "out"),
    bias("use_bias", "feedforward", "up", "down"),
    without=(ROPE, ATTENTION_BIAS, MLP_BIAS, DROPOUT),
)


LONGROPE = Rope(kinds=("default", "longrope"), renamed={"su": "longrope", "yarn": "longrope"})


def _write_original(get: Get) -> dict[str, Any]:
    length = get("position.scaling.original_length")
    return {} if length is MISSING else {"original_max_position_embeddings": length}


PHI3 = MISTRAL.derive(
    "phi3",
    "Phi3ForCausalLM",
    LONGROPE,
    Computed(lambda config: {}, _write_original),
    Field("resid_pdrop", "residual.dropout"),
    Field("embd_pdrop", "embedding.dropout"),
    without=(ROPE,),
    layer_keys={
        "self_attn.q_proj": None,
        "self_attn.k_proj": None,
        "self_attn.v_proj": None,
        "mlp.gate_proj": None,
        "mlp.up_proj": None,
        "self_attn.qkv_proj": Fused(
            ("attention.query", "attention.key", "attention.value"), Rows()
        ),
        "mlp.gate_up_proj": GATE_UP,
    },
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


def _with_alpha(config: Config) -> Table:
    """Read a base that `alpha` stretches, for which these files say "dynamic"."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not scaling.get("alpha"):
        return ROPE.read(config)
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    theta = scaling.get("rope_theta") or config["rope_theta"]
    stretched = theta * scaling["alpha"] ** (width / (width - 2))
    return ROPE.read({**config, "rope_scaling": None, "rope_parameters": {"rope_theta": stretched}})


HUNYUAN_ROPE = Computed(_with_alpha, ROPE.write)

HUNYUAN = LLAMA.derive(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    Set(HEAD_NORMS),
    Set({"attention.qk_norm_position": "after"}),
    ALL_EPS,
    HUNYUAN_ROPE,
    NO_MLP_BIAS,
    without=(EPS, ROPE, MLP_BIAS),
    layer_keys={
        "self_attn.query_layernorm": "attention.query_norm",
        "self_attn.key_layernorm": "attention.key_norm",
    },
)

BITNET = LLAMA.derive(
    "bitnet",
    "BitNetForCausalLM",
    Set({"attention.out_norm.kind": "rms", "attention.out_norm.scale_in": "input_dtype"}),
    Set({"feedforward.hidden_norm.kind": "rms", "feedforward.hidden_norm.scale_in": "input_dtype"}),
    Field("rms_norm_eps", ("norm.eps", "attention.out_norm.eps", "feedforward.hidden_norm.eps")),
    NO_MLP_BIAS,
    without=(EPS, MLP_BIAS),
    layer_keys={
        "self_attn.attn_sub_norm": "attention.out_norm",
        "mlp.ffn_sub_norm": "feedforward.norm",
    },
)

LLAMA_LIKE_FAMILIES = (PHI3, SMOLLM3, CWM, SEED_OSS, HELIUM, ERNIE4_5, HUNYUAN, BITNET)
