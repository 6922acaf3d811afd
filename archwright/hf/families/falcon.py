"""Falcon: parallel branches, few key-value heads, ALiBi or RoPE."""

from archwright.hf.families import common
from archwright.hf.family import Family
from archwright.hf.lenses import Activation, Either, Field, Get, Refuse, Set, Switch, Write
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, When

FALCON = Family(
    "falcon",
    "FalconForCausalLM",
    lenses=(
        *common.SIZES,
        Set({**common.LAYER_NORM, "attention.kind": "softmax"}),
        Field("layer_norm_epsilon", "norm.eps"),
        Switch(
            "alibi",
            {
                False: (Set({"position.kind": "rope"}), Rope()),
                True: Set({"position.kind": "alibi", "position.scaled": True}),
            },
        ),
        Field("hidden_dropout", "residual.dropout"),
        common.DROPOUT,
        Activation("activation", gated=False),
        common.flag("bias", common.ALL_BIASES),
        common.hidden("ffn_hidden_size", "hidden_size"),
        Either(
            lambda config: bool(config["new_decoder_architecture"]),
            lambda get: _is_new(get),
            (
                Write({"new_decoder_architecture": True, "parallel_attn": True}),
                Refuse("parallel_attn", (True,)),
                Set({"residual.kind": "parallel"}),
                Switch(
                    "num_ln_in_parallel_attn",
                    {
                        2: Set({"residual.num_norms": 2}),
                        1: Set({"residual.num_norms": 1}),
                        None: Set({"residual.num_norms": 2}),
                    },
                ),
                Field("num_kv_heads", "attention.num_kv_heads", same_as="num_attention_heads"),
            ),
            (
                common.flag(
                    "parallel_attn",
                    {"residual.kind": "parallel", "residual.num_norms": 1},
                    {"residual.kind": "pre"},
                ),
                Switch(
                    "multi_query",
                    {
                        True: Set({"attention.num_kv_heads": 1}),
                        False: Field("num_attention_heads", "attention.num_kv_heads"),
                    },
                ),
            ),
        ),
        Field("num_attention_heads", "attention.num_heads"),
        common.TIED,
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "input_layernorm": (
            "residual.norms.shared",
            When("residual.kind", "pre", "residual.norms.{mixer}"),
        ),
        "post_attention_layernorm": When("residual.kind", "pre", "residual.norms.feedforward"),
        "ln_attn": When("residual.kind", "parallel", "residual.norms.{mixer}"),
        "ln_mlp": When("residual.kind", "parallel", "residual.norms.feedforward"),
        "self_attention.query_key_value": Fused(common.QKV, common.by_head),
        "self_attention.dense": "attention.out",
        **common.FEEDFORWARD_NAMES,
    },
    model_keys={
        "transformer.word_embeddings": "embedding",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
)


def _is_new(get: Get) -> bool:
    """True if a spec requires the new layout (two norms or grouped heads)."""
    parallel = get("residual.kind") == "parallel"
    grouped = get("attention.num_kv_heads") not in (1, get("attention.num_heads"))
    return bool(parallel and (get("residual.num_norms") == 2 or grouped))
