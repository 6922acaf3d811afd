"""LayerNorm and biases in Llama's frame: Phi, Persimmon, StableLM, StarCoder2."""

from archwright.hf.families.gpt import ALL_BIASES, LAYER_NORM, QKV, by_head
from archwright.hf.families.llama import ALL_OR_NONE, LLAMA, ROLES, ROPE, bias
from archwright.hf.layer_types import Layers
from archwright.hf.lenses import Activation, Field, Set, Switch
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, When

QK_NORM = {"attention.qk_norm.kind": "layer", "attention.qk_norm.weight": "plain"}
NO_QK_NORM = {"attention.qk_norm.kind": "none"}

PHI = LLAMA.derive(
    "phi",
    "PhiForCausalLM",
    Rope(),
    Set({"residual.kind": "parallel", "residual.num_norms": 1, **LAYER_NORM, **ALL_BIASES}),
    Set({"head.bias": True}),
    Field("layer_norm_eps", "norm.eps"),
    Field("embd_pdrop", "embedding.dropout"),
    Field("resid_pdrop", "residual.dropout"),
    Activation("hidden_act", gated=False),
    Field("intermediate_size", "feedforward.hidden_dim"),
    Set(ALL_BIASES),
    Switch(
        "qk_layernorm",
        {
            True: (
                Set({**QK_NORM, "attention.qk_norm.bias": True, "attention.qk_norm_over": "head"}),
                Field("layer_norm_eps", "attention.qk_norm.eps"),
            ),
            False: Set(NO_QK_NORM),
        },
    ),
    layer_keys={
        "input_layernorm": "residual.norms.shared",
        "post_attention_layernorm": None,
        "self_attn.o_proj": None,
        "self_attn.dense": "attention.out",
        "self_attn.q_layernorm": "attention.query_norm",
        "self_attn.k_layernorm": "attention.key_norm",
        "mlp.gate_proj": None,
        "mlp.up_proj": None,
        "mlp.down_proj": None,
        "mlp.fc1": "feedforward.up",
        "mlp.fc2": "feedforward.down",
    },
    model_keys={"model.norm": None, "model.final_layernorm": "norm"},
    without=(
        ROPE,
        "rms_norm_eps",
        "hidden_act",
        "intermediate_size",
        "attention_bias",
        "mlp_bias",
    ),
    undeclared={"partial_rotary_factor": 0.5},
)

PERSIMMON = PHI.derive(
    "persimmon",
    "PersimmonForCausalLM",
    Set({"residual.kind": "pre", "head.bias": False}),
    Field("hidden_dropout", "residual.dropout"),
    layer_keys={
        "input_layernorm": "residual.norms.attention",
        "post_attention_layernorm": "residual.norms.feedforward",
        "self_attn.q_proj": None,
        "self_attn.k_proj": None,
        "self_attn.v_proj": None,
        "self_attn.query_key_value": Fused(QKV, by_head),
        "mlp.fc1": None,
        "mlp.fc2": None,
        "mlp.dense_h_to_4h": "feedforward.up",
        "mlp.dense_4h_to_h": "feedforward.down",
    },
    without=("num_key_value_heads", "embd_pdrop", "resid_pdrop"),
    undeclared={
        "num_key_value_heads": None,
        "partial_rotary_factor": 0.5,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
)

STABLELM = LLAMA.derive(
    "stablelm",
    "StableLmForCausalLM",
    Rope(),
    Set(LAYER_NORM),
    Field("layer_norm_eps", "norm.eps"),
    Field("hidden_dropout", "residual.dropout"),
    bias("use_qkv_bias", "attention", "query", "key", "value"),
    Switch(
        "use_parallel_residual",
        {
            True: Set({"residual.kind": "parallel", "residual.num_norms": 1}),
            False: Set({"residual.kind": "pre"}),
        },
    ),
    Switch(
        "qk_layernorm",
        {
            True: (
                Set({**QK_NORM, "attention.qk_norm.bias": False}),
                Set({"attention.qk_norm_over": "per_head"}),
                Field("layer_norm_eps", "attention.qk_norm.eps"),
            ),
            False: Set(NO_QK_NORM),
        },
    ),
    layer_keys={
        "input_layernorm": (
            "residual.norms.shared",
            When("residual.kind", "pre", "residual.norms.attention"),
        ),
        "self_attn.q_layernorm.norms.{e}": "attention.query_norm",
        "self_attn.k_layernorm.norms.{e}": "attention.key_norm",
    },
    without=(ROPE, "rms_norm_eps", "attention_bias", "mlp_bias"),
    undeclared={"partial_rotary_factor": 0.25},
)

STARCODER2 = LLAMA.derive(
    "starcoder2",
    "Starcoder2ForCausalLM",
    Set(LAYER_NORM),
    Field("norm_epsilon", "norm.eps"),
    Field("embedding_dropout", "embedding.dropout"),
    Field("residual_dropout", "residual.dropout"),
    Activation("hidden_act", gated=False),
    Field("intermediate_size", "feedforward.hidden_dim"),
    Switch("use_bias", {True: Set(ALL_BIASES), False: Set(dict.fromkeys(ALL_BIASES, False))}),
    groups=(Layers(ALL_OR_NONE, ROLES),),
    layer_keys={
        "mlp.gate_proj": None,
        "mlp.up_proj": None,
        "mlp.down_proj": None,
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
    without=("rms_norm_eps", "hidden_act", "intermediate_size", "attention_bias", "mlp_bias"),
)

PHI_FAMILIES = (PHI, PERSIMMON, STABLELM, STARCODER2)
