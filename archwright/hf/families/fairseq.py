"""Families that grew in fairseq: OPT and XGLM of Meta, BioGPT of Microsoft."""

from archwright.hf.families.common import ALL_BIASES, LAYER_NORM, SIZES
from archwright.hf.family import Family
from archwright.hf.lenses import Activation, Field, Refuse, Set, Switch

EMBEDDING_SCALE = Switch(
    "scale_embedding",
    {True: Set({"embedding.scale": "sqrt_dim"}), False: Set({"embedding.scale": "none"})},
)


LAYER_KEYS = {
    "self_attn_layer_norm": "residual.norms.attention",
    "final_layer_norm": "residual.norms.feedforward",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.out",
    "fc1": "feedforward.up",
    "fc2": "feedforward.down",
}


OPT = Family(
    "opt",
    "OPTForCausalLM",
    lenses=(
        *SIZES,
        Switch(
            "do_layer_norm_before",
            {True: Set({"residual.kind": "pre"}), False: Set({"residual.kind": "post"})},
        ),
        Set({"norm.kind": "layer", "norm.eps": 1e-5}),
        Switch(
            "layer_norm_elementwise_affine",
            {
                True: Set({"norm.weight": "plain", "norm.bias": True}),
                False: Set({"norm.weight": "none", "norm.bias": False}),
            },
        ),
        Refuse("_remove_final_layer_norm", (False,)),
        Set({"position.kind": "learned", "position.offset": 2, "attention.kind": "softmax"}),
        Field("word_embed_proj_dim", "embedding.dim", same_as="hidden_size"),
        Field("dropout", "residual.dropout"),
        Field("attention_dropout", "attention.dropout"),
        Activation("activation_function", gated=False),
        Switch(
            "enable_bias", {True: Set(ALL_BIASES), False: Set(dict.fromkeys(ALL_BIASES, False))}
        ),
        Field("ffn_dim", "feedforward.hidden_dim"),
        Field("tie_word_embeddings", "head.tied"),
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
        Field("attention_dropout", "attention.dropout"),
        Activation("activation_function", gated=False),
        Field("activation_dropout", "feedforward.dropout"),
        Field("ffn_dim", "feedforward.hidden_dim"),
        Set(ALL_BIASES),
        Refuse("add_cross_attention", (False,)),
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="model.layers.{i}.",
    layer_keys=LAYER_KEYS,
    model_keys={"model.embed_tokens": "embedding", "model.layer_norm": "norm", "lm_head": "head"},
    ignored=(r".*embed_positions\.weights",),
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "attention_heads",
        "num_hidden_layers": "num_layers",
    },
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
        Field("intermediate_size", "feedforward.hidden_dim"),
        Set(ALL_BIASES),
        Field("tie_word_embeddings", "head.tied"),
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
