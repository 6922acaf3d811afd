"""Kimi delta attention with latent attention: Moonshot AI's Kimi Linear, inclusionAI's Ling 3.0."""

from typing import Any

from archwright.hf.families import common
from archwright.hf.families.deepseek import LATENT, LATENT_NAMES
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role
from archwright.hf.layouts import View
from archwright.hf.lenses import Config, Either, Field, Lens, Refuse, Set, Write
from archwright.hf.weight_map import Fused, Mapped

MIXTURES = common.sparse(
    Listed("mlp_layer_types", common.FIRST_DENSE.read),
    *common.routed("num_local_experts", common.shared("n_shared_experts")),
)


def _mixers(*lenses: Lens) -> dict[str, Role]:
    """Return two types of layers: delta attention with these lenses, and latent attention."""
    norm = {"kind": "rms", "scale_in": "float32"}
    options = {"decay.kind": "per_channel", "gate": "sigmoid", "out_norm": norm}
    fixed = Set({f"recurrence.{option}": value for option, value in options.items()})
    delta = Role(common.recurrent("linear"), (fixed, common.out_norm_eps("rms_norm_eps"), *lenses))
    return {"linear_attention": delta, "full_attention": common.ATTENDING}


def _names(prefix: str, out: str, **further: str) -> dict[str, Mapped]:
    """Return the tensor names of both mixers; `out` names their last projection."""
    both = {"q_proj": "query", out: "out"}
    return {
        **{name.replace("self_attn", prefix): ours for name, ours in LATENT_NAMES.items()},
        **{f"{prefix}.{n}": (f"attention.{p}", f"recurrence.{p}") for n, p in both.items()},
        **common.recurrence_names(
            prefix,
            k_proj="key",
            v_proj="value",
            b_proj="write",
            q_conv1d="query_conv",
            k_conv1d="key_conv",
            v_conv1d="value_conv",
            o_norm="norm",
            dt_bias="decay.step_bias",
            **further,
        ),
    }


def _read_types(config: Config, n: int) -> list[str]:
    """Return the mixer types; by default every fourth layer is full, from the fifth on."""
    if (types := config["layer_types"]) is not None:
        return list(types)
    if (full := config["linear_attn_config"]["full_attn_layers"]) is None:
        full = range(5, n + 1, 4)
    return ["full_attention" if i in full else "linear_attention" for i in range(1, n + 1)]


def _write_types(roles: list[str]) -> dict[str, Any]:
    """Return the mixer types for the library and as in published files, which count layers from 1."""
    keys = {"kda_layers": "linear_attention", "full_attn_layers": "full_attention"}
    numbers = {k: [i for i, role in enumerate(roles, 1) if role == r] for k, r in keys.items()}
    return {"layer_types": roles, "linear_attn_config": numbers}


FIXED = {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "moe_layer_freq": 1}
"""Keys of published files with values that the library's class takes for granted."""

KIMI_LINEAR = LLAMA.derive(
    "kimi_linear",
    "KimiLinearForCausalLM",
    *LATENT,
    Set({"position.kind": "none"}),
    *(Refuse(key, (value,)) for key, value in FIXED.items()),
    groups=(
        Layers(
            CustomPattern(_read_types, _write_types),
            _mixers(
                # Keys of published files, or else of the library's class.
                Field(
                    "linear_attn_config.head_dim",
                    ("recurrence.head_dim", "recurrence.gate_rank", "recurrence.decay.rank"),
                    same_as="linear_head_dim",
                ),
                Field(
                    "linear_attn_config.num_heads",
                    "recurrence.num_heads",
                    same_as="linear_num_heads",
                ),
                Field(
                    "linear_attn_config.short_conv_kernel_size",
                    "recurrence.conv_width",
                    same_as="linear_conv_kernel_dim",
                ),
            ),
        ),
        MIXTURES,
    ),
    layer_keys={
        **_names(
            "self_attn",
            "o_proj",
            f_a_proj="decay.down",
            f_b_proj="decay.up",
            g_a_proj="gate_down",
            g_b_proj="gate",
        ),
        "self_attn.A_log": Fused(
            ("recurrence.decay.log_rate",), View(lambda rate: rate[None, None, :, None])
        ),
        "block_sparse_moe.gate": "feedforward.router",
        "block_sparse_moe.gate.e_score_correction_bias": "feedforward.selection_bias",
        **common.gated("block_sparse_moe.shared_experts", "feedforward.shared"),
        **common.W_EXPERTS,
    },
    # The library names dense layers like mixtures.
    endings={
        f"block_sparse_moe.{name}_proj.weight": f"mlp.{name}_proj.weight"
        for name in ("gate", "up", "down")
    },
    undeclared={
        "linear_attn_config": dict.fromkeys(
            ("head_dim", "num_heads", "short_conv_kernel_size", "full_attn_layers")
        ),
        "first_k_dense_replace": 1,
        **FIXED,
    },
)


def _last_of_group(config: Config, n: int) -> list[str]:
    """Return the mixer types: the last layer of each group is full."""
    size = config["layer_group_size"]
    return ["linear_attention" if i % size else "full_attention" for i in range(1, n + 1)]


IGNORED = ("q_lora_rank", "expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
"""Keys of published files that the library's class ignores: a latent of queries, and limits of activations."""
LIBRARY_SIZES = ("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")
"""Keys that the library's class writes; its files have another width as `head_dim`."""

BAILING_HYBRID = LLAMA.derive(
    "bailing_hybrid",
    "BailingHybridForCausalLM",
    *LATENT,
    Set({"attention.gate": "head", "position.pairing": "interleaved"}),
    *(Refuse(key, (None,)) for key in IGNORED),
    groups=(
        Layers(
            Listed(otherwise=_last_of_group),
            _mixers(
                Field("head_dim", "recurrence.head_dim"),
                Field("short_conv_kernel_size", "recurrence.conv_width"),
                Field("linear_head_dim", "recurrence.head_dim", same_as="head_dim"),
                Field("linear_num_heads", "recurrence.num_heads", same_as="num_attention_heads"),
                Field(
                    "linear_conv_kernel_dim",
                    "recurrence.conv_width",
                    same_as="short_conv_kernel_size",
                ),
                Either(
                    lambda config: config["kda_safe_gate"],
                    lambda get: get("recurrence.decay.lower_bound") != "none",
                    (Field("kda_lower_bound", "recurrence.decay.lower_bound"),),
                    (Write({"kda_safe_gate": False}),),
                ),
            ),
        ),
        MIXTURES,
    ),
    layer_keys={
        **common.UNBIASED_EXPERT_NAMES,
        "mlp.gate.expert_bias": "feedforward.selection_bias",
        **_names("attention", "dense", f_proj="decay.up", A_log="decay.log_rate"),
        "attention.g_proj": ("attention.gate", "recurrence.gate"),
    },
    model_keys={"model.word_embeddings": "embedding"},
    ignored=(*LLAMA.ignored, common.FURTHER),
    undeclared=dict.fromkeys((*LIBRARY_SIZES, *IGNORED)),
)
