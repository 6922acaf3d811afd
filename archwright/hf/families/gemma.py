"""Google Gemma 1 to 3 and VaultGemma."""

import struct
from typing import Any

from archwright.hf.families.common import (
    QKV_BIAS,
    ROLES,
    attention_names,
    by_type,
    gated,
    qk_norm,
)
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every, every_by
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Refuse,
    Set,
    converted,
    nested,
)
from archwright.hf.rope import Rope

TANH = {"kind": "geglu", "approximate": "tanh"}
NORM = {"norm.weight": "unit_offset", "norm.scale_in": "float32"}
TWO_WAY = Refuse("use_bidirectional_attention", (None, False))
EVERY_SECOND = Layers(Listed(otherwise=every(2)), ROLES)
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

GEMMA3 = GEMMA2.derive(
    "gemma3_text",
    "Gemma3ForCausalLM",
    *qk_norm(scale_in="float32"),
    Set({"attention.qk_norm.weight": "unit_offset"}),
    Refuse("attn_logit_softcapping", (None,)),  # declared by the class, but unused
    groups=(
        Layers(
            Listed(otherwise=every_by("sliding_window_pattern")),
            by_type(
                (Rope(fraction="", layer_type="full_attention"),),
                (
                    Rope(
                        fraction="",
                        theta="rope_local_base_freq",
                        layer_type="sliding_attention",
                        scaled=False,
                    ),
                ),
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


def _blocks(config: Config, n: int) -> list[str]:
    return (list(config["block_types"]) * n)[:n]


def _read_recurrence(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    width = config["lru_width"] or config["hidden_size"]
    return nested("recurrence", {"num_heads": heads, "head_dim": width // heads})


def _write_recurrence(get: Get) -> dict[str, Any]:
    heads, width = get("recurrence.num_heads"), get("recurrence.head_dim")
    return {} if width is MISSING else {"num_attention_heads": heads, "lru_width": heads * width}


RECURRENT_GEMMA = GEMMA.derive(
    "recurrent_gemma",
    "RecurrentGemmaForCausalLM",
    Computed(
        lambda config: nested("embedding.scale", _embedding_scale(config["hidden_size"])),
    ),
    Rope(),
    QKV_BIAS,
    Set({"attention.bias.out": True, "feedforward.bias.up": True, "feedforward.bias.down": True}),
    Activation("hidden_activation", gated=True, names={"gelu_pytorch_tanh": TANH}),
    Refuse("hidden_activation", ("gelu_pytorch_tanh",)),
    converted("intermediate_size", "feedforward.hidden_dim", lambda n: n // 2, lambda n: 2 * n),
    Field("logits_soft_cap", "head.softcap"),
    groups=(
        Layers(
            CustomPattern(_blocks, lambda roles: {"block_types": roles}),
            {
                "attention": Role(
                    {"recurrence.kind": "none", "attention.mask.kind": "window"},
                    (Field("attention_window_size", "attention.mask.size"),),
                ),
                "recurrent": Role(
                    {
                        "attention.kind": "none",
                        "position.kind": "none",
                        "recurrence.kind": "rg_lru",
                    },
                    (
                        Computed(_read_recurrence, _write_recurrence),
                        Field("conv1d_width", "recurrence.conv_width"),
                    ),
                ),
            },
        ),
    ),
    layer_keys={
        "temporal_pre_norm": "residual.norms.{mixer}",
        "channel_pre_norm": "residual.norms.feedforward",
        **attention_names("temporal_block", maps=("q_proj", "k_proj", "v_proj", "o_proj")),
        **gated("mlp_block", "feedforward"),
        "temporal_block.linear_x": "recurrence.value",
        "temporal_block.linear_y": "recurrence.gate",
        "temporal_block.linear_out": "recurrence.out",
        "temporal_block.conv_1d": "recurrence.value_conv",
        "temporal_block.rg_lru.recurrent_param": "recurrence.rates",
        "temporal_block.rg_lru.input_gate_weight": "recurrence.input_gate.weight",
        "temporal_block.rg_lru.input_gate_bias": "recurrence.input_gate.bias",
        "temporal_block.rg_lru.recurrent_gate_weight": "recurrence.decay_gate.weight",
        "temporal_block.rg_lru.recurrent_gate_bias": "recurrence.decay_gate.bias",
    },
    model_keys={"model.final_norm": "norm"},
    undeclared={
        "block_types": ["recurrent", "recurrent", "attention"],
        "max_position_embeddings": 8192,  # of training: configs have no length
        "partial_rotary_factor": 0.5,
        "rope_theta": 10_000.0,
    },
)
