"""BigCode: SantaCoder and StarCoder."""

from archwright.hf.families import common
from archwright.hf.families.gpt import GPT2
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers
from archwright.hf.layouts import Layout, Rows
from archwright.hf.lenses import Activation, Either, Field, Set, Write
from archwright.hf.weight_map import Fused
from archwright.spec.model_spec import LayerSpec


def _one_or_by_head(layer: LayerSpec) -> Layout:
    return Rows() if common.attention_size(layer, "num_kv_heads") == 1 else common.by_head(layer)


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
        # With one key-value head: all queries, key, value; otherwise query, key, value per head.
        "attn.c_attn": Fused(common.QKV, _one_or_by_head),
        "attn.c_proj": "attention.out",
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
)


STARCODER2 = LLAMA.derive(
    "starcoder2",
    "Starcoder2ForCausalLM",
    Set(common.LAYER_NORM),
    Field("norm_epsilon", "norm.eps"),
    Field("embedding_dropout", "embedding.dropout"),
    Field("residual_dropout", "residual.dropout"),
    Activation("hidden_act", gated=False),
    common.HIDDEN,
    common.flag("use_bias", common.ALL_BIASES),
    groups=(Layers(common.ALL_OR_NONE, common.ROLES),),
    layer_keys={"mlp.c_fc": "feedforward.up", "mlp.c_proj": "feedforward.down"},
)
