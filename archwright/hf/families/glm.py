"""GLM: half of each head turns, in neighbouring coordinates; from GLM 4 on there are four norms in a layer."""

from archwright.hf.families.llama import (
    ATTENTION_BIAS,
    LLAMA,
    MLP_BIAS,
    NO_MLP_BIAS,
    ROPE,
    bias,
)
from archwright.hf.families.llama_like import GATE_UP
from archwright.hf.lenses import Set
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

GLM_FAMILIES = (GLM, GLM4)
