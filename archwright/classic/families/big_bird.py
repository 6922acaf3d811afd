"""BigBird: BERT with block-sparse attention."""

from archwright.classic.families.blocks import has_sparse_blocks, sparse_blocks
from archwright.hf.families.bert import BERT
from archwright.hf.lenses import Refuse
from archwright.hf.weight_map import filled

BIG_BIRD = BERT.derive(
    "big_bird",
    "BigBirdForCausalLM",
    sparse_blocks("attention", Refuse("is_decoder", (False,))),
    Refuse("rescale_embeddings", (False,)),
    Refuse("use_bias", (True,)),
    masked_architecture="BigBirdForMaskedLM",
    counts_padding=has_sparse_blocks,
    model_keys={
        "bert.pooler.weight": filled(0.0, lambda spec: (spec.dim, spec.dim), read=False),
        "bert.pooler.bias": filled(0.0, lambda spec: (spec.dim,), read=False),
    },
)
