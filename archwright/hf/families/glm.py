"""GLM with partial RoPE, GLM 4, and GLM 4 with experts."""

from archwright.hf.families import common
from archwright.hf.families.deepseek import DEEPSEEK_V3
from archwright.hf.families.llama import LLAMA
from archwright.hf.lenses import Either, Refuse, Set
from archwright.hf.rope import Rope

GLM = LLAMA.derive(
    "glm",
    "GlmForCausalLM",
    Rope(pairing="interleaved"),
    common.QKV_BIAS,
    layer_keys={"mlp.gate_up_proj": common.GATE_UP},
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
    common.QKV_BIAS,
    Either(
        lambda config: config["use_qk_norm"],
        lambda get: get("attention.qk_norm.kind") != "none",
        (*common.qk_norm(), Refuse("use_qk_norm", (True,))),
        (Refuse("use_qk_norm", (False,)),),
    ),
    groups=(common.sparse(common.FIRST_DENSE, *common.ROUTED),),
    layer_keys=common.EXPERT_NAMES,
    ignored=(*LLAMA.ignored, common.FURTHER),
    undeclared={"partial_rotary_factor": 0.5},
)

GLM4_MOE_LITE = DEEPSEEK_V3.derive(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    groups=(common.sparse(common.FIRST_OF_LIST, *common.ROUTED),),
    undeclared={"scoring_func": "sigmoid", "moe_layer_freq": 1, "first_k_dense_replace": 3},
)
