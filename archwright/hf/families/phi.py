"""Microsoft: Phi, Phi-3, Phi-3.5-MoE and BitNet."""

from typing import Any

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.mistral import MISTRAL
from archwright.hf.layer_types import Layers
from archwright.hf.layouts import Rows
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Refuse,
    Set,
    Table,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused
from archwright.spec.errors import UserError

LONGROPE = Rope(kinds=("default", "longrope"), renamed={"su": "longrope", "yarn": "longrope"})


PHI3 = MISTRAL.derive(
    "phi3",
    "Phi3ForCausalLM",
    LONGROPE,
    Field("resid_pdrop", "residual.dropout"),
    Field("embd_pdrop", "embedding.dropout"),
    layer_keys={
        "self_attn.qkv_proj": Fused(common.QKV, Rows()),
        "mlp.gate_up_proj": common.GATE_UP,
    },
)

BITNET = LLAMA.derive(
    "bitnet",
    "BitNetForCausalLM",
    Set({"attention.out_norm.kind": "rms", "attention.out_norm.scale_in": "input_dtype"}),
    Set({"feedforward.hidden_norm.kind": "rms", "feedforward.hidden_norm.scale_in": "input_dtype"}),
    Field("rms_norm_eps", ("norm.eps", "attention.out_norm.eps", "feedforward.hidden_norm.eps")),
    layer_keys={
        "self_attn.attn_sub_norm": "attention.out_norm",
        "mlp.ffn_sub_norm": "feedforward.norm",
    },
)


PHI = LLAMA.derive(
    "phi",
    "PhiForCausalLM",
    Rope(),
    Set(
        {
            "residual.kind": "parallel",
            "residual.num_norms": 1,
            **common.LAYER_NORM,
            **common.ALL_BIASES,
        }
    ),
    Set({"head.bias": True}),
    Field("layer_norm_eps", "norm.eps"),
    Field("embd_pdrop", "embedding.dropout"),
    Field("resid_pdrop", "residual.dropout"),
    Activation("hidden_act", gated=False),
    common.HIDDEN,
    Set(common.ALL_BIASES),
    common.layer_qk_norm("qk_layernorm", "head", bias=True),
    layer_keys={
        "input_layernorm": "residual.norms.shared",
        "self_attn.dense": "attention.out",
        "self_attn.q_layernorm": "attention.query_norm",
        "self_attn.k_layernorm": "attention.key_norm",
        "mlp.fc1": "feedforward.up",
        "mlp.fc2": "feedforward.down",
    },
    model_keys={"model.final_layernorm": "norm"},
    undeclared={"partial_rotary_factor": 0.5},
)


def _read_mscale(config: Config) -> Table:
    """Read LongRoPE's attention factor; short and long factors must agree."""
    keys = config.get("rope_scaling") or config.get("rope_parameters") or {}
    short, long = keys.get("short_mscale"), keys.get("long_mscale")
    if (keys.get("rope_type") or keys.get("type") or "default") == "default":
        return {}
    if short is None or short != long:
        raise UserError(
            f"config.json: rope_parameters.long_mscale: found {long}; expected the value of "
            f"short_mscale, {short}"
        )
    return nested("position.scaling.attention_factor", float(short))


def _write_mscale(get: Get) -> dict[str, Any]:
    factor = get("position.scaling.attention_factor")
    keys = {"short_mscale": factor, "long_mscale": factor}
    return {} if factor is MISSING else {"rope_parameters": keys}


PHIMOE = LLAMA.derive(
    "phimoe",
    "PhimoeForCausalLM",
    Set({"norm.kind": "layer"}),
    Field("rms_norm_eps", "norm.eps"),
    Rope(fraction="", kinds=("default", "longrope")),
    Computed(_read_mscale, _write_mscale),
    Field("lm_head_bias", "head.bias"),
    *common.experts(
        "num_local_experts", "intermediate_size", routing="sparsemixer", normalize_weights=False
    ),
    Refuse("num_experts_per_tok", (2,)),
    Field("router_jitter_noise", "feedforward.jitter"),
    common.balance(),
    groups=(Layers(common.ALL_OR_NONE, common.ROLES),),
    layer_keys={"block_sparse_moe.gate": "feedforward.router"} | common.W_EXPERTS,
)
