"""GLM with partial RoPE, GLM 4, and GLM 4 with experts."""

from archwright.hf.families.common import (
    EXPERT_NAMES,
    FIRST_DENSE,
    FIRST_OF_LIST,
    FURTHER,
    GATE_UP,
    QKV_BIAS,
    ROUTED,
    qk_norm,
    sparse,
)
from archwright.hf.families.deepseek import DEEPSEEK_V3
from archwright.hf.families.llama import LLAMA
from archwright.hf.lenses import Either, Refuse, Set
from archwright.hf.rope import Rope

GLM = LLAMA.derive(
    "glm",
    "GlmForCausalLM",
    Rope(pairing="interleaved"),
    QKV_BIAS,
    layer_keys={"mlp.gate_up_proj": GATE_UP},
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

GLM4_MOE = LLAMA.derive(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    Rope(),
    QKV_BIAS,
    Either(
        lambda config: config["use_qk_norm"],
        lambda get: get("attention.qk_norm.kind") != "none",
        (*qk_norm(), Refuse("use_qk_norm", (True,))),
        (Refuse("use_qk_norm", (False,)),),
    ),
    groups=(sparse(FIRST_DENSE, *ROUTED),),
    layer_keys=EXPERT_NAMES,
    ignored=(*LLAMA.ignored, FURTHER),
    undeclared={"partial_rotary_factor": 0.5},
)

GLM4_MOE_LITE = DEEPSEEK_V3.derive(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    groups=(sparse(FIRST_OF_LIST, *ROUTED),),
    undeclared={"scoring_func": "sigmoid", "moe_layer_freq": 1, "first_k_dense_replace": 3},
)
