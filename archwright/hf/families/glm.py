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

GLM = LLAMA.but(
    "glm",
    "GlmForCausalLM",
    Rope(pairing="interleaved"),
    bias("attention_bias", "attention", "query", "key", "value"),
    Set({"attention.bias.out": False}),
    NO_MLP_BIAS,
    without=(ROPE, ATTENTION_BIAS, MLP_BIAS),
    defaults={
        "pad_token_id": 151329,
        "vocab_size": 151552,
        "intermediate_size": 13696,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    of_layer={"mlp.gate_proj": None, "mlp.up_proj": None, "mlp.gate_up_proj": GATE_UP},
)

GLM4 = GLM.but(
    "glm4",
    "Glm4ForCausalLM",
    Set({"residual.kind": "sandwich"}),
    of_layer={
        "post_self_attn_layernorm": "residual.out_norms.attention",
        "post_mlp_layernorm": "residual.out_norms.feedforward",
    },
)

GLM_FAMILIES = (GLM, GLM4)
