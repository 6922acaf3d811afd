"""BigBird-Pegasus: Blenderbot's pre-norm layers with BigBird attention in the encoder."""

from archwright.classic.families.blocks import has_sparse_blocks, sparse_blocks
from archwright.hf.families.bart import BLENDERBOT
from archwright.hf.families.common import flag
from archwright.hf.families.fairseq import LAYER_KEYS
from archwright.hf.lenses import Set

BIASES = {
    f"{attention}.bias.{part}": True
    for attention in ("attention", "cross_attention", "encoder.attention")
    for part in ("query", "key", "value", "out")
}

BIGBIRD_PEGASUS = BLENDERBOT.derive(
    "bigbird_pegasus",
    "BigBirdPegasusForConditionalGeneration",
    flag("use_bias", BIASES),
    sparse_blocks("encoder.attention", full=Set({"encoder.attention.mask.kind": "full"})),
    counts_padding=has_sparse_blocks,
    encoder_layer_keys={
        **{name: ours for name, ours in LAYER_KEYS.items() if not name.startswith("self_attn.")},
        **{f"self_attn.self.{part}": f"attention.{part}" for part in ("query", "key", "value")},
        "self_attn.output": "attention.out",
    },
    model_keys={
        "model.encoder.layernorm_embedding": "encoder.norm",
        "model.decoder.layernorm_embedding": "norm",
    },
)
