"""Google T5Gemma: an encoder and a decoder of Gemma 2 layers."""

from __future__ import annotations

from archwright.hf.families import common
from archwright.hf.families.gemma import NORM
from archwright.hf.family import Family
from archwright.hf.layer_types import Listed, Role, every
from archwright.hf.lenses import Activation, Computed, Field, Lens, Set
from archwright.hf.two_stacks import InPart, LayersInPart, in_both
from archwright.hf.weight_map import Mapped

STACK: tuple[Lens, ...] = (
    Field("vocab_size", "vocab_size"),
    Field("hidden_size", "dim"),
    Field("num_hidden_layers", "num_layers"),
    Field("max_position_embeddings", "context_length"),
    Field("num_attention_heads", "attention.num_heads"),
    Field("num_key_value_heads", "attention.num_kv_heads"),
    Field("head_dim", "attention.head_dim"),
    Field("query_pre_attn_scalar", "attention.scale.dim"),
    Field("attn_logit_softcapping", "attention.softcap", or_none=True),
    common.ATTENTION_BIAS,
    Field("rms_norm_eps", "norm.eps"),
    common.ROPE,
    Activation("hidden_activation", gated=True),
    Field("intermediate_size", "feedforward.hidden_dim"),
)
"""Lenses of each stack's nested config."""

CROSS: tuple[Lens, ...] = (
    Field("num_attention_heads", "cross_attention.num_heads"),
    Field("num_key_value_heads", "cross_attention.num_kv_heads"),
    Field("head_dim", "cross_attention.head_dim"),
    Field("query_pre_attn_scalar", "cross_attention.scale.dim"),
    Field("attn_logit_softcapping", "cross_attention.softcap", or_none=True),
    common.flag(
        "attention_bias",
        {f"cross_attention.bias.{part}": True for part in ("query", "key", "value", "out")},
    ),
    Field("final_logit_softcapping", "head.softcap", or_none=True),
)
"""Further lenses of the decoder's config."""

TYPES = Listed(otherwise=every(2))
BOTH_WAYS = {
    "full_attention": Role({"attention.mask.kind": "full"}),
    "sliding_attention": Role(
        {"attention.mask.kind": "symmetric_window"},
        (Field("sliding_window", "attention.mask.radius"),),
    ),
}


def _attention(theirs: str, ours: str) -> dict[str, Mapped]:
    return {
        f"pre_{theirs}_layernorm": f"residual.norms.{ours}",
        f"post_{theirs}_layernorm": f"residual.out_norms.{ours}",
        **common.attention_names(theirs, ours, common.O_PROJ),
    }


LAYER = {
    **_attention("self_attn", "attention"),
    "pre_feedforward_layernorm": "residual.norms.feedforward",
    "post_feedforward_layernorm": "residual.out_norms.feedforward",
    **common.gated("mlp", "feedforward"),
}

T5GEMMA = Family(
    "t5gemma",
    "T5GemmaForConditionalGeneration",
    lenses=(
        Set({"encoder.kind": "stack", "encoder.embeddings": "own"}),
        Set({"cross_attention.kind": "softmax", "cross_attention.scale.kind": "sqrt"}),
        Set({"embedding.scale": "sqrt_dim"}),
        *in_both(
            Set({"residual.kind": "sandwich", "norm.kind": "rms", **NORM}),
            Set({"attention.kind": "softmax", "attention.scale.kind": "sqrt"}),
            Field("dropout_rate", ("residual.dropout", "feedforward.dropout")),
            common.DROPOUT,
        ),
        Field("dropout_rate", "embedding.dropout"),
        Field("attention_dropout", "cross_attention.dropout"),
        InPart("encoder", STACK, at="encoder"),
        InPart("decoder", (*STACK, *CROSS)),
        # The top level repeats the decoder's vocab_size.
        Computed(lambda config: {}, lambda get: {"vocab_size": get("vocab_size")}),
        common.TIED,
    ),
    groups=(
        LayersInPart(
            TYPES, {"full_attention": common.CAUSAL, "sliding_attention": common.WINDOW}, "decoder"
        ),
    ),
    encoder_groups=(LayersInPart(TYPES, BOTH_WAYS, "encoder"),),
    layers="model.decoder.layers.{i}.",
    layer_keys={**LAYER, **_attention("cross_attn", "cross_attention")},
    encoder_layers="model.encoder.layers.{i}.",
    encoder_layer_keys=LAYER,
    model_keys={
        "model.encoder.embed_tokens": "encoder.embedding",
        "model.decoder.embed_tokens": "embedding",
        "model.encoder.norm": "encoder.norm",
        "model.decoder.norm": "norm",
        "lm_head.out_proj": "head",
    },
)
