"""Families from fairseq: Meta's OPT and XGLM, Microsoft's BioGPT."""

from archwright.hf.families.common import (
    ALL_BIASES,
    DROPOUT,
    HIDDEN,
    LAYER_NORM,
    SIZES,
    TIED,
    attention_names,
    flag,
)
from archwright.hf.family import Family
from archwright.hf.lenses import Activation, Field, Refuse, Set

EMBEDDING_SCALE = flag(
    "scale_embedding", {"embedding.scale": "sqrt_dim"}, {"embedding.scale": "none"}
)
LAYER_KEYS = {
    "self_attn_layer_norm": "residual.norms.{mixer}",
    "final_layer_norm": "residual.norms.feedforward",
    **attention_names("self_attn"),
    "fc1": "feedforward.up",
    "fc2": "feedforward.down",
}

OPT = Family(
    "opt",
    "OPTForCausalLM",
    lenses=(
        *SIZES,
        flag("do_layer_norm_before", {"residual.kind": "pre"}, {"residual.kind": "post"}),
        Set({"norm.kind": "layer", "norm.eps": 1e-5}),
        flag(
            "layer_norm_elementwise_affine",
            {"norm.weight": "plain", "norm.bias": True},
            {"norm.weight": "none", "norm.bias": False},
        ),
        Refuse("_remove_final_layer_norm", (False,)),
        Set({"position.kind": "learned", "position.offset": 2, "attention.kind": "softmax"}),
        Field("word_embed_proj_dim", "embedding.dim", same_as="hidden_size"),
        Field("dropout", "residual.dropout"),
        DROPOUT,
        Activation("activation_function", gated=False),
        flag("enable_bias", ALL_BIASES),
        Field("ffn_dim", "feedforward.hidden_dim"),
        TIED,
    ),
    layers="model.decoder.layers.{i}.",
    layer_keys=LAYER_KEYS,
    model_keys={
        "model.decoder.embed_tokens": "embedding",
        "model.decoder.embed_positions": "position.table",
        "model.decoder.project_in": "embedding.project_in",
        "model.decoder.project_out": "head.project_out",
        "model.decoder.final_layer_norm": "norm",
        "lm_head": "head",
    },
)

XGLM = Family(
    "xglm",
    "XGLMForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("max_position_embeddings", "context_length"),
        Field("d_model", "dim"),
        Field("num_layers", "num_layers"),
        Field("attention_heads", "attention.num_heads"),
        Set({"residual.kind": "pre", **LAYER_NORM, "norm.eps": 1e-5, "attention.kind": "softmax"}),
        Set({"position.kind": "sinusoidal", "position.layout": "half"}),
        Set({"position.spacing": "fairseq", "position.offset": 2}),
        EMBEDDING_SCALE,
        Field("dropout", ("residual.dropout", "embedding.dropout")),
        DROPOUT,
        Activation("activation_function", gated=False),
        Field("activation_dropout", "feedforward.dropout"),
        Field("ffn_dim", "feedforward.hidden_dim"),
        Set(ALL_BIASES),
        Refuse("add_cross_attention", (False,)),
        TIED,
    ),
    layers="model.layers.{i}.",
    layer_keys=LAYER_KEYS,
    model_keys={"model.embed_tokens": "embedding", "model.layer_norm": "norm", "lm_head": "head"},
    ignored=(r".*embed_positions\.weights",),
)

BIOGPT = Family(
    "biogpt",
    "BioGptForCausalLM",
    lenses=(
        *SIZES,
        Set({"residual.kind": "pre", **LAYER_NORM, "norm.eps": 1e-5, "attention.kind": "softmax"}),
        Set({"position.kind": "learned", "position.offset": 2}),
        EMBEDDING_SCALE,
        Field("hidden_dropout_prob", ("residual.dropout", "embedding.dropout")),
        Field("attention_probs_dropout_prob", "attention.dropout"),
        Activation("hidden_act", gated=False),
        Field("activation_dropout", "feedforward.dropout"),
        HIDDEN,
        Set(ALL_BIASES),
        TIED,
    ),
    layers="biogpt.layers.{i}.",
    layer_keys=LAYER_KEYS,
    model_keys={
        "biogpt.embed_tokens": "embedding",
        "biogpt.embed_positions": "position.table",
        "biogpt.layer_norm": "norm",
        "output_projection": "head",
    },
    prefix="biogpt.",
)
