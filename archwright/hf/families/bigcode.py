"""BigCode: SantaCoder and StarCoder."""

from archwright.hf.families.common import ALL_BIASES, ALL_OR_NONE, LAYER_NORM, QKV, ROLES, by_head
from archwright.hf.families.gpt import GPT2
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers
from archwright.hf.layouts import Layout, Rows
from archwright.hf.lenses import Activation, Either, Field, Set, Switch, Write
from archwright.hf.weight_map import Fused
from archwright.spec.attention import SoftmaxAttention
from archwright.spec.model_spec import LayerSpec

GPT_BIGCODE = GPT2.derive(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    Either(
        lambda config: bool(config["multi_query"]),
        lambda get: get("attention.num_kv_heads") == 1,
        (Set({"attention.num_kv_heads": 1}), Write({"multi_query": True})),
        (Write({"multi_query": False}),),
    ),
    layer_keys={
        # One key-value head: queries, key, value; otherwise the three of each head together.
        "attn.c_attn": Fused(QKV, lambda layer: _bigcode(layer)),
        "attn.c_proj": "attention.out",
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
    without=("scale_attn_by_inverse_layer_idx",),
    undeclared={"scale_attn_by_inverse_layer_idx": False},
)


def _bigcode(layer: LayerSpec) -> Layout:
    assert isinstance(layer.attention, SoftmaxAttention)
    return Rows() if layer.attention.num_kv_heads == 1 else by_head(layer)


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
