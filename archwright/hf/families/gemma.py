"""Google Gemma 1 to 3 and VaultGemma."""

import struct
from typing import Any

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every, every_by
from archwright.hf.layouts import Rows, Stacked
from archwright.hf.lenses import (
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Refuse,
    Set,
    Switch,
    Table,
    converted,
    nested,
    refused,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

TANH = {"kind": "geglu", "approximate": "tanh"}
NORM = {"norm.weight": "unit_offset", "norm.scale_in": "float32"}
TWO_WAY = Refuse("use_bidirectional_attention", (None, False))
EVERY_SECOND = Layers(Listed(otherwise=every(2)), common.ROLES)
GEMMA = LLAMA.derive(
    "gemma",
    "GemmaForCausalLM",
    Set({**NORM, "embedding.scale": "sqrt_dim"}),
    # In early files, "gelu" means the tanh approximation.
    Activation("hidden_act", gated=True, names={"gelu_pytorch_tanh": TANH, "gelu": TANH}),
    TWO_WAY,
)

VAULT_GEMMA = LLAMA.derive(
    "vaultgemma",
    "VaultGemmaForCausalLM",
    Set({**NORM, "embedding.scale": "sqrt_dim", "attention.scale.kind": "sqrt"}),
    Field("query_pre_attn_scalar", "attention.scale.dim"),
    Activation("hidden_activation", gated=True),
    Field("attn_logit_softcapping", "attention.softcap", or_none=True),
    Field("final_logit_softcapping", "head.softcap", or_none=True),
    layer_keys={"pre_feedforward_layernorm": "residual.norms.feedforward"},
    groups=(EVERY_SECOND,),
    undeclared={"use_bidirectional_attention": None},
)

GEMMA2 = VAULT_GEMMA.derive(
    "gemma2",
    "Gemma2ForCausalLM",
    Set({"residual.kind": "sandwich"}),
    TWO_WAY,
    layer_keys={
        "post_attention_layernorm": "residual.out_norms.attention",
        "post_feedforward_layernorm": "residual.out_norms.feedforward",
    },
)

LOCAL_ROPE = Rope(
    fraction="", theta="rope_local_base_freq", layer_type="sliding_attention", scaled=False
)
GEMMA3 = GEMMA2.derive(
    "gemma3_text",
    "Gemma3ForCausalLM",
    *common.qk_norm(scale_in="float32"),
    Set({"attention.qk_norm.weight": "unit_offset"}),
    Refuse("attn_logit_softcapping", (None,)),  # declared by the class, but unused
    groups=(
        Layers(
            Listed(otherwise=every_by("sliding_window_pattern")),
            common.by_type(
                (Rope(fraction="", layer_type="full_attention"),),
                (LOCAL_ROPE,),
            ),
        ),
    ),
    undeclared={
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
    },
)


def _embedding_scale(dim: int) -> float:
    """Return sqrt(dim), rounded to bfloat16 as in the published class."""
    (bits,) = struct.unpack("I", struct.pack("f", dim**0.5))
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", rounded))[0])


def _read_heads(config: Config) -> Table:
    heads, width = config["num_attention_heads"], config["lru_width"] or config["hidden_size"]
    return nested("recurrence", {"num_heads": heads, "head_dim": width // heads})


def _write_heads(get: Get) -> dict[str, Any]:
    heads, width = get("recurrence.num_heads"), get("recurrence.head_dim")
    return {"num_attention_heads": heads, "lru_width": heads * width}


RECURRENT_GEMMA = GEMMA.derive(
    "recurrent_gemma",
    "RecurrentGemmaForCausalLM",
    Computed(lambda config: nested("embedding.scale", _embedding_scale(config["hidden_size"]))),
    Rope(),
    common.QKV_BIAS,
    Set({"attention.bias.out": True, **common.FEEDFORWARD_BIASES}),
    Switch(
        "hidden_activation",
        {"gelu_pytorch_tanh": Set({f"feedforward.{key}": value for key, value in TANH.items()})},
    ),
    converted("intermediate_size", "feedforward.hidden_dim", lambda n: n // 2, lambda n: 2 * n),
    Field("logits_soft_cap", "head.softcap"),
    groups=(
        Layers(
            CustomPattern(
                lambda config, n: (list(config["block_types"]) * n)[:n],
                lambda roles: {"block_types": roles},
            ),
            {
                "attention": Role(
                    {"recurrence.kind": "none", "attention.mask.kind": "window"},
                    (Field("attention_window_size", "attention.mask.size"),),
                ),
                "recurrent": Role(
                    common.recurrent("rg_lru"),
                    (
                        Computed(_read_heads, _write_heads),
                        Field("conv1d_width", "recurrence.conv_width"),
                    ),
                ),
            },
        ),
    ),
    layer_keys={
        "temporal_pre_norm": "residual.norms.{mixer}",
        "channel_pre_norm": "residual.norms.feedforward",
        **common.attention_names("temporal_block", maps=common.O_PROJ),
        **common.gated("mlp_block", "feedforward"),
        **common.recurrence_names(
            "temporal_block",
            linear_x="value",
            linear_y="gate",
            linear_out="out",
            conv_1d="value_conv",
        ),
        **common.recurrence_names(
            "temporal_block.rg_lru",
            recurrent_param="rates",
            input_gate_weight="input_gate.weight",
            input_gate_bias="input_gate.bias",
            recurrent_gate_weight="decay_gate.weight",
            recurrent_gate_bias="decay_gate.bias",
        ),
    },
    model_keys={"model.final_norm": "norm"},
    undeclared={
        "block_types": ["recurrent", "recurrent", "attention"],
        "max_position_embeddings": 8192,  # of training: configs have no length
        "partial_rotary_factor": 0.5,
        "rope_theta": 10_000.0,
    },
)


def _read_layer_embedding(config: Config) -> Table:
    width, rows = config["hidden_size_per_layer_input"] or "none", config["vocab_size"]
    needed = {"vocab_size_per_layer_input": rows, "hidden_activation": "gelu_pytorch_tanh"}
    for key, value in needed.items() if width != "none" else ():
        if config[key] != value:
            raise UserError(refused(key, config[key], (value,)))
    return nested("residual.layer_embedding", width)


def _write_layer_embedding(get: Get) -> dict[str, Any]:
    width = get("residual.layer_embedding")
    keys = {"hidden_size_per_layer_input": 0 if width == "none" else width}
    return keys | {"vocab_size_per_layer_input": get("vocab_size")}


def _read_full_heads(config: Config) -> Table:
    """Read the heads of full layers, from their own keys or from a table per layer."""
    shares = config["attention_k_eq_v"]
    heads = {"head_dim": config["global_head_dim"]}
    heads["num_key_value_heads"] = config["num_global_key_value_heads"] if shares else None
    for index, override in (config["per_layer_config"] or {}).items():
        if config["layer_types"][int(index)] == "full_attention":
            heads = dict(override)
    number = heads.get("num_key_value_heads") or config["num_key_value_heads"]
    sizes = {"head_dim": heads["head_dim"], "num_kv_heads": number}
    return nested("attention", {**sizes, "keys_as_values": shares})


def _write_full_heads(get: Get) -> dict[str, Any]:
    shares, number = get("attention.keys_as_values"), get("attention.num_kv_heads")
    return {
        "attention_k_eq_v": shares,
        "global_head_dim": get("attention.head_dim"),
        "num_global_key_value_heads": number if shares else None,
    }


class _KeySharing(Layers):
    """Last layers that share keys and values; their feed-forwards may be twice as wide."""

    def write(self, spec: ModelSpec) -> dict[str, Any]:
        widths = {
            dict(layer.attention).get("shares_kv"): dict(layer.feedforward).get("hidden_dim")
            for layer in map(spec.layer, range(spec.num_layers))
        }
        width = widths.get(False)
        return super().write(spec) | {
            "intermediate_size": width,
            "use_double_wide_mlp": widths.get(True, width) != width,
        }


def _read_hidden(config: Config) -> Table:
    times = 2 if config["use_double_wide_mlp"] else 1
    return nested("feedforward.hidden_dim", config["intermediate_size"] * times)


KEY_SHARING = CustomPattern(
    lambda config, n: [
        "shared" if i >= n - config["num_kv_shared_layers"] else "own" for i in range(n)
    ],
    lambda roles: {"num_kv_shared_layers": roles.count("shared")},
)

GEMMA4 = GEMMA2.derive(
    "gemma4_text",
    "Gemma4ForCausalLM",
    *common.qk_norm(scale_in="float32"),
    Set({"norm.weight": "plain", "attention.scale.kind": "none", "residual.layer_scalar": True}),
    Set({"attention.v_norm": {"kind": "rms", "weight": "none", "scale_in": "float32"}}),
    Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps", "attention.v_norm.eps")),
    Computed(_read_layer_embedding, _write_layer_embedding),
    Refuse("enable_moe_block", (False,)),
    Refuse("use_bidirectional_attention", (None, False, "vision")),  # text has no vision tokens
    groups=(
        Layers(
            Listed(otherwise=every(6)),
            common.by_type(
                (
                    Rope(layer_type="full_attention", scaled=False),
                    Computed(_read_full_heads, _write_full_heads),
                ),
                (
                    Rope(layer_type="sliding_attention", scaled=False),
                    Field("head_dim", "attention.head_dim"),
                    Field("num_key_value_heads", "attention.num_kv_heads"),
                    Set({"attention.keys_as_values": False}),
                ),
            ),
        ),
        _KeySharing(
            KEY_SHARING,
            {
                "own": Role(
                    {"attention.shares_kv": False},
                    (Field("intermediate_size", "feedforward.hidden_dim"),),
                ),
                "shared": Role({"attention.shares_kv": True}, (Computed(_read_hidden),)),
            },
        ),
    ),
    layer_keys={
        "per_layer_input_gate": "layer_embedding.gate",
        "per_layer_projection": "layer_embedding.out",
        "post_per_layer_input_norm": "layer_embedding.norm",
        "layer_scalar": "layer_scalar.value",
    },
    model_keys={
        "model.embed_tokens_per_layer": Fused(("layers.{i}.layer_embedding.table",), Stacked()),
        "model.per_layer_model_projection": Fused(("layers.{i}.layer_embedding.project",), Rows()),
        "model.per_layer_projection_norm": "relatives.layer_embedding_0",
    },
    # Files have unused maps of layers that share keys and values.
    ignored=(*LLAMA.ignored, r"model\.layers\.\d+\.self_attn\.[kv]_(proj|norm)\.weight"),
    undeclared={
        "global_head_dim": 512,
        "num_global_key_value_heads": None,
        "per_layer_config": None,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
    },
)
