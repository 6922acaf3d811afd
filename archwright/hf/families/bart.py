"""BART and its kin: two stacks that grew in fairseq, Marian and ParlAI, and the first translators among them."""

from __future__ import annotations

from archwright.hf.families.common import ALL_BIASES, DROPOUT, LAYER_NORM, TIED
from archwright.hf.families.fairseq import EMBEDDING_SCALE, LAYER_KEYS
from archwright.hf.family import Family
from archwright.hf.layouts import Reshaped
from archwright.hf.lenses import Activation, Field, Refuse, Set
from archwright.hf.two_stacks import in_both
from archwright.hf.weight_map import Fused, When, filled

CROSS_BIASES = {f"cross_attention.bias.{part}": True for part in ("query", "key", "value", "out")}
DECODER_KEYS = {
    **LAYER_KEYS,
    "encoder_attn_layer_norm": "residual.norms.cross_attention",
    "encoder_attn.q_proj": "cross_attention.query",
    "encoder_attn.k_proj": "cross_attention.key",
    "encoder_attn.v_proj": "cross_attention.value",
    "encoder_attn.out_proj": "cross_attention.out",
}
LOGITS_BIAS = "final_logits_bias"
"""What is added to logits: a buffer, which the library never trains, and which most files have at zero."""

BART = Family(
    "bart",
    "BartForConditionalGeneration",
    lenses=(
        Set({"encoder.kind": "stack", "cross_attention.kind": "softmax", **CROSS_BIASES}),
        Field("vocab_size", "vocab_size"),
        Field("max_position_embeddings", "context_length"),
        Field("d_model", "dim"),
        Field("encoder_layers", "encoder.num_layers"),
        Field("decoder_layers", "num_layers"),
        Field("encoder_attention_heads", "encoder.attention.num_heads"),
        Field("decoder_attention_heads", ("attention.num_heads", "cross_attention.num_heads")),
        Field("encoder_ffn_dim", "encoder.feedforward.hidden_dim"),
        Field("decoder_ffn_dim", "feedforward.hidden_dim"),
        Field("dropout", "embedding.dropout"),
        Field("attention_dropout", "cross_attention.dropout"),
        *in_both(
            Set({"residual.kind": "post", "attention.kind": "softmax"}),
            Set({**LAYER_NORM, "norm.eps": 1e-5, **ALL_BIASES}),
            Set({"position.kind": "learned", "position.offset": 2}),
            Activation("activation_function", gated=False),
            Field("dropout", "residual.dropout"),
            Field("activation_dropout", "feedforward.dropout"),
            DROPOUT,
        ),
        Set({"embedding.norm.kind": "layer", "embedding.norm.eps": 1e-5}),
        EMBEDDING_SCALE,
        Refuse("is_decoder", (False,)),
        TIED,
    ),
    layers="model.decoder.layers.{i}.",
    layer_keys=DECODER_KEYS,
    encoder_layers="model.encoder.layers.{i}.",
    encoder_layer_keys=LAYER_KEYS,
    model_keys={
        "model.shared": "embedding",
        "model.encoder.embed_positions": "encoder.position.table",
        "model.decoder.embed_positions": "position.table",
        "model.encoder.layernorm_embedding": "encoder.embedding_norm",
        "model.decoder.layernorm_embedding": "embedding_norm",
        "lm_head.weight": "head.weight",
        LOGITS_BIAS: (
            When("head.bias", True, Fused(("head.bias",), Reshaped((1, -1)))),
            When("head.bias", False, filled(0.0, lambda spec: (1, int(spec.vocab_size)))),
        ),
    },
    logits_bias=LOGITS_BIAS,
    ignored=(r"model\.(en|de)coder\.version",),
    endings={f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")},
)
