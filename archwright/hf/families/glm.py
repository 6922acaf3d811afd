"""GLM: half of each head turns; from GLM 4 on there are four norms in a layer, then mixtures of experts."""

from archwright.hf.families.common import (
    ATTENTION_BIAS,
    EXPERT_NAMES,
    FIRST_DENSE,
    FIRST_OF_LIST,
    FURTHER,
    GATE_UP,
    MLP_BIAS,
    NO_MLP_BIAS,
    QKV_BIAS_SWITCH,
    QUERY_KEY_NORM,
    ROPE,
    bias,
    qk_norm,
    routed,
    shared,
    sparse,
)
from archwright.hf.families.deepseek import DEEPSEEK_V3
from archwright.hf.families.llama import BASE, LLAMA
from archwright.hf.lenses import Either, Refuse, Set
from archwright.hf.rope import Rope

GLM = LLAMA.derive(
    "glm",
    "GlmForCausalLM",
    Rope(pairing="interleaved"),
    bias("attention_bias", "attention", "query", "key", "value"),
    Set({"attention.bias.out": False}),
    NO_MLP_BIAS,
    without=(ROPE, ATTENTION_BIAS, MLP_BIAS),
    layer_keys={"mlp.gate_proj": None, "mlp.up_proj": None, "mlp.gate_up_proj": GATE_UP},
    undeclared={"partial_rotary_factor": 0.5},
)


GLM4 = GLM.derive(
    "glm4",
    "Glm4ForCausalLM",
    Set({"residual.kind": "sandwich"}),
    layer_keys={
        "post_self_attn_layernorm": "residual.out_norms.attention",
        "post_mlp_layernorm": "residual.out_norms.feedforward",
    },
)


GLM4_MOE = BASE.derive(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    Rope(),
    QKV_BIAS_SWITCH,
    Either(
        lambda config: config["use_qk_norm"],
        lambda get: get("attention.qk_norm.kind") != "none",
        (*qk_norm("head"), Refuse("use_qk_norm", (True,))),
        (Refuse("use_qk_norm", (False,)),),
    ),
    without=(ROPE,),
    groups=(sparse(FIRST_DENSE, *routed("n_routed_experts", shared("n_shared_experts"))),),
    layer_keys={**EXPERT_NAMES, **QUERY_KEY_NORM},
    ignored=(*BASE.ignored, FURTHER),
    key_aliases={"num_local_experts": "n_routed_experts"},
    undeclared={"partial_rotary_factor": 0.5},
)


GLM4_MOE_LITE = DEEPSEEK_V3.derive(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    groups=(sparse(FIRST_OF_LIST, *routed("n_routed_experts", shared("n_shared_experts"))),),
    undeclared={"scoring_func": "sigmoid", "moe_layer_freq": 1, "first_k_dense_replace": 3},
)
