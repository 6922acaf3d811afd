"""BLOOM: ALiBi positions and an embedding norm."""

from archwright.hf.families import common
from archwright.hf.family import Family
from archwright.hf.lenses import Field, Set, Switch
from archwright.hf.weight_map import Fused

BLOOM = Family(
    "bloom",
    "BloomForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Field("n_layer", "num_layers"),
        Field("seq_length", "context_length"),
        Field("n_head", "attention.num_heads"),
        Switch(
            "apply_residual_connection_post_layernorm",
            {False: Set({"residual.kind": "pre"}), True: Set({"residual.kind": "norm_residual"})},
        ),
        Set({**common.LAYER_NORM, "position.kind": "alibi", "position.scaled": False}),
        Set({"attention.kind": "softmax", "embedding.norm.kind": "layer"}),
        Field("layer_norm_epsilon", ("norm.eps", "embedding.norm.eps")),
        Field("hidden_dropout", "residual.dropout"),
        common.DROPOUT,
        Set({"feedforward.kind": "gelu", "feedforward.approximate": "tanh", **common.ALL_BIASES}),
        Field("hidden_size", "feedforward.hidden_dim", times=4),
        Field("hidden_size", "dim"),
        common.TIED,
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "input_layernorm": "residual.norms.{mixer}",
        "post_attention_layernorm": "residual.norms.feedforward",
        "self_attention.query_key_value": Fused(common.QKV, common.by_head),
        "self_attention.dense": "attention.out",
        **common.FEEDFORWARD_NAMES,
    },
    model_keys={
        "transformer.word_embeddings": "embedding",
        "transformer.word_embeddings_layernorm": "embedding_norm",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
    further_aliases={"n_embed": "hidden_size"},
    undeclared={"seq_length": 2048},
)
