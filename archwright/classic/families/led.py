"""LED: BART with Longformer attention in the encoder."""

from archwright.classic.families.global_tokens import (
    NUM_GLOBAL,
    PARTS,
    global_attention_mask,
    longformer_attention,
    windows,
)
from archwright.hf.families.bart import BART
from archwright.hf.families.fairseq import LAYER_KEYS
from archwright.hf.lenses import Field, Set

LED = BART.derive(
    "led",
    "LEDForConditionalGeneration",
    *longformer_attention("encoder.attention"),
    Field("encoder_attention_heads", "encoder.attention.num_heads"),
    Field(
        "attention_dropout",
        ("attention.dropout", "cross_attention.dropout", "encoder.attention.dropout"),
    ),
    windows("encoder_layers", "encoder"),
    Set({"position.offset": 0, "encoder.position.offset": 0}),
    Field("max_encoder_position_embeddings", "encoder.context_length"),
    Field("max_decoder_position_embeddings", "context_length"),
    further_inputs=global_attention_mask,
    encoder_layer_keys={
        **{name: ours for name, ours in LAYER_KEYS.items() if not name.startswith("self_attn.")},
        **{
            f"self_attn.longformer_self_attn.{name}{ending}": f"attention.{name}{ending}"
            for name in PARTS
            for ending in ("", "_global")
        },
        "self_attn.output": "attention.out",
    },
    prefix="led.",
    undeclared={NUM_GLOBAL: 1},
)
