"""Kimi delta attention beside latent attention: Moonshot AI's Kimi Linear, inclusionAI's Ling 3.0."""

from typing import Any

from archwright.hf.families import common
from archwright.hf.families.deepseek import LATENT, LATENT_NAMES
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role
from archwright.hf.layouts import View
from archwright.hf.lenses import Computed, Config, Either, Field, Lens, Refuse, Set, nested
from archwright.hf.weight_map import Fused, Mapped

MLP_TYPES = Listed("mlp_layer_types", common.FIRST_DENSE.read)
MIXTURES = common.sparse(
    MLP_TYPES, *common.routed("num_local_experts", common.shared("n_shared_experts"))
)
ALIASES = {
    "model_max_length": "max_position_embeddings",
    "num_experts": "num_local_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
}
"""Keys in files -> keys of both classes."""


def _mixers(*lenses: Lens) -> dict[str, Role]:
    """Return two types of layers: delta attention with these lenses, and latent attention."""
    kinds = {"attention.kind": "none", "position.kind": "none", "recurrence.kind": "linear"}
    norm = {"kind": "rms", "scale_in": "float32"}
    options = {"decay.kind": "per_channel", "gate": "sigmoid", "out_norm": norm}
    fixed = Set({f"recurrence.{option}": value for option, value in options.items()})
    eps = Computed(lambda config: nested("recurrence.out_norm.eps", config["rms_norm_eps"]))
    return {
        "linear_attention": Role(kinds, (fixed, eps, *lenses)),
        "full_attention": Role({"recurrence.kind": "none"}),
    }


def _names(prefix: str, out: str) -> dict[str, Mapped]:
    """Return the tensor names of both mixers, without those of gates.

    Args:
        prefix: Name of a layer's mixer.
        out: Name of its last projection.
    """
    parts = {
        **{f"{name[0]}_proj": f"recurrence.{name}" for name in ("key", "value")},
        **{f"{name[0]}_conv1d": f"recurrence.{name}_conv" for name in ("query", "key", "value")},
        **{"b_proj": "recurrence.write", "o_norm": "recurrence.norm"},
        **{"dt_bias": "recurrence.decay.step_bias", "A_log": "recurrence.decay.log_rate"},
    }
    latent = {name.replace("self_attn", prefix): ours for name, ours in LATENT_NAMES.items()}
    return {
        **latent,
        **{f"{prefix}.{name}": ours for name, ours in parts.items()},
        f"{prefix}.q_proj": ("attention.query", "recurrence.query"),
        f"{prefix}.{out}": ("attention.out", "recurrence.out"),
    }


def _read_types(config: Config, n: int) -> list[str]:
    """Return the mixer types; by default every fourth layer is full, from the fifth on."""
    if (types := config["layer_types"]) is not None:
        return list(types)
    full = config["linear_attn_config"]["full_attn_layers"] or range(5, n + 1, 4)
    return ["full_attention" if i in full else "linear_attention" for i in range(1, n + 1)]


def _write_types(roles: list[str]) -> dict[str, Any]:
    """Return the mixer types, for the library and as in published files, where layers count from 1."""
    keys = {"kda_layers": "linear_attention", "full_attn_layers": "full_attention"}
    numbered = [*enumerate(roles, 1)]
    places = {key: [i for i, role in numbered if role == kind] for key, kind in keys.items()}
    return {"layer_types": roles, "linear_attn_config": places}


KIMI_LINEAR = LLAMA.derive(
    "kimi_linear",
    "KimiLinearForCausalLM",
    *LATENT,
    Set({"position.kind": "none"}),
    Refuse("mla_use_nope", (True,)),
    Refuse("moe_router_activation_func", ("sigmoid",)),
    Refuse("moe_layer_freq", (1,)),
    groups=(
        Layers(
            CustomPattern(_read_types, _write_types),
            _mixers(
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
        **_names("self_attn", "o_proj"),
        "self_attn.A_log": Fused(
            ("recurrence.decay.log_rate",), View(lambda rate: rate[None, None, :, None])
        ),
        "self_attn.f_a_proj": "recurrence.decay.down",
        "self_attn.f_b_proj": "recurrence.decay.up",
        "self_attn.g_a_proj": "recurrence.gate_down",
        "self_attn.g_b_proj": "recurrence.gate",
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
    further_aliases=ALIASES,
    undeclared={
        "linear_attn_config": dict.fromkeys(
            ("head_dim", "num_heads", "short_conv_kernel_size", "full_attn_layers")
        ),
        "first_k_dense_replace": 1,
        "mla_use_nope": True,
        "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1,
    },
)


def _last_of_group(config: Config, n: int) -> list[str]:
    """Return the mixer types: the last layer of each group is full."""
    size = config["layer_group_size"]
    return ["linear_attention" if i % size else "full_attention" for i in range(1, n + 1)]


BAILING_HYBRID = LLAMA.derive(
    "bailing_hybrid",
    "BailingHybridForCausalLM",
    *LATENT,
    Set({"attention.gate": "head", "position.pairing": "interleaved"}),
    Refuse("q_lora_rank", (None,)),
    Refuse("use_mla_nope", (False,)),
    # Limits of activations in late layers, which the library ignores.
    Refuse("expert_swiglu_limit_list", (None,)),
    Refuse("share_expert_swiglu_limit_list", (None,)),
    groups=(
        Layers(
            Listed(otherwise=_last_of_group),
            _mixers(
                # The library's files have another width as `head_dim`.
                Field("head_dim", "recurrence.head_dim"),
                Field("linear_head_dim", "recurrence.head_dim", same_as="head_dim"),
                Field("linear_num_heads", "recurrence.num_heads", same_as="num_attention_heads"),
                Field("short_conv_kernel_size", "recurrence.conv_width"),
                Field(
                    "linear_conv_kernel_dim",
                    "recurrence.conv_width",
                    same_as="short_conv_kernel_size",
                ),
                Either(
                    lambda config: config["kda_safe_gate"],
                    lambda get: get("recurrence.decay.lower_bound") != "none",
                    (Field("kda_lower_bound", "recurrence.decay.lower_bound"),),
                    (Computed(lambda config: {}, lambda get: {"kda_safe_gate": False}),),
                ),
            ),
        ),
        MIXTURES,
    ),
    layer_keys={
        **common.UNBIASED_EXPERT_NAMES,
        **_names("attention", "dense"),
        "mlp.gate.expert_bias": "feedforward.selection_bias",
        "attention.f_proj": "recurrence.decay.up",
        "attention.g_proj": ("attention.gate", "recurrence.gate"),
    },
    model_keys={"model.word_embeddings": "embedding"},
    ignored=(*LLAMA.ignored, common.FURTHER),
    further_aliases=ALIASES,
    undeclared=dict.fromkeys(
        (
            *("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim", "q_lora_rank"),
            *("expert_swiglu_limit_list", "share_expert_swiglu_limit_list"),
        )
    )
    | {"use_mla_nope": False},
)
