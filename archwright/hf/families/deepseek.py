"""DeepSeek V2 and V3: latent attention and mixtures of experts."""

import math
from typing import Any

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layouts import ByGroup, Rows
from archwright.hf.lenses import MISSING, Computed, Config, Field, Get, Refuse, Set, Switch, Table
from archwright.hf.rope import mscale
from archwright.hf.weight_map import Fused, Mapped
from archwright.spec.model_spec import LayerSpec

BIASES = tuple(f"attention.bias.{part}" for part in ("query_down", "latent", "rope_key", "out"))


def _heads_apart(layer: LayerSpec) -> ByGroup:
    """Return the layout with keys and values alternating by head."""
    return ByGroup(groups=common.attention_size(layer, "num_heads"))


def _read_scale(config: Config) -> Table:
    """Read the score scale; it increases with RoPE's scaling factor."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    weight = scaling.get("mscale_all_dim")
    if kind == "default" or not weight:
        return {"attention": {"scale": {"kind": "sqrt"}}}
    scale: float = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
    grown = scale * mscale(scaling["factor"], weight) ** 2
    return {"attention": {"scale": {"kind": "fixed", "value": grown}}}


def _write_scale(get: Get) -> dict[str, Any]:
    value, factor = get("attention.scale.value"), get("position.scaling.factor")
    widths = (get("attention.nope_head_dim"), get("attention.rope_head_dim"))
    if MISSING in (value, factor, *widths) or factor <= 1:
        return {}
    growth = math.sqrt(value * math.sqrt(sum(widths)))
    # Rounded to recover the exact number of the original file.
    weight = float(f"{(growth - 1) / (0.1 * math.log(factor)):.10g}")
    return {"rope_parameters": {"mscale_all_dim": weight}}


LATENT = (
    Set({"attention.kind": "latent"}),
    Field("num_attention_heads", "attention.num_heads"),
    Computed(lambda config: {}, lambda get: {"num_key_value_heads": get("attention.num_heads")}),
    Field("q_lora_rank", "attention.query_rank", or_none=True),
    Field("kv_lora_rank", "attention.kv_rank"),
    Field("qk_nope_head_dim", "attention.nope_head_dim"),
    Field("qk_rope_head_dim", "attention.rope_head_dim"),
    Field("v_head_dim", "attention.value_head_dim"),
    Set({"attention.norm.kind": "rms", "attention.norm.eps": 1e-6}),
    Set({"attention.norm.scale_in": "input_dtype"}),
    common.flag("attention_bias", dict.fromkeys(BIASES, True)),
    Computed(_read_scale, _write_scale),
    common.DROPOUT,
)
"""Lenses of latent attention; the latent norms have a fixed eps."""

PAIRING = common.flag(
    "rope_interleave", {"position.pairing": "interleaved"}, {"position.pairing": "half"}
)

LATENT_NAMES: dict[str, Mapped] = {
    "self_attn.q_a_proj": "attention.query_down",
    "self_attn.q_a_layernorm": "attention.query_norm",
    "self_attn.q_b_proj": "attention.query_up",
    "self_attn.kv_a_proj_with_mqa": Fused(("attention.latent", "attention.rope_key"), Rows()),
    "self_attn.kv_a_layernorm": "attention.latent_norm",
    "self_attn.kv_b_proj": Fused(("attention.key_up", "attention.value_up"), _heads_apart),
}

DEEPSEEK_V2 = LLAMA.derive(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    *LATENT,
    Set({"position.pairing": "interleaved"}),
    Refuse("mlp_bias", (False,)),
    Refuse("scoring_func", ("softmax",)),
    Refuse("moe_layer_freq", (1,)),
    Refuse("norm_topk_prob", (False, None)),
    groups=(
        common.sparse(
            common.FIRST_DENSE,
            *common.experts(
                "n_routed_experts",
                "moe_intermediate_size",
                normalize_weights=False,
                balance_loss=0.0,
            ),
            Field("routed_scaling_factor", "feedforward.routed_scaling_factor"),
            Switch(
                "topk_method",
                {
                    "greedy": Set({"feedforward.num_groups": 1, "feedforward.top_groups": 1}),
                    "group_limited_greedy": (
                        Set({"feedforward.group_score": "max"}),
                        Field("n_group", "feedforward.num_groups"),
                        Field("topk_group", "feedforward.top_groups"),
                    ),
                },
            ),
            common.shared("n_shared_experts"),
        ),
    ),
    layer_keys=LATENT_NAMES | common.EXPERT_NAMES,
    undeclared={"scoring_func": "softmax", "moe_layer_freq": 1},
)

DEEPSEEK_V3 = LLAMA.derive(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    *LATENT,
    PAIRING,
    Refuse("scoring_func", ("sigmoid",)),
    Refuse("moe_layer_freq", (1,)),
    groups=(common.sparse(common.FIRST_DENSE, *common.ROUTED),),
    layer_keys=LATENT_NAMES | common.EXPERT_NAMES,
    ignored=(*LLAMA.ignored, common.FURTHER),
    undeclared={"scoring_func": "sigmoid", "moe_layer_freq": 1},
)
