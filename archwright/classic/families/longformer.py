"""Longformer: RoBERTa with windows and global tokens."""

from archwright.classic.families.global_tokens import (
    NUM_GLOBAL,
    PARTS,
    global_attention_mask,
    longformer_attention,
    windows,
)
from archwright.hf.families.bert import ROBERTA
from archwright.hf.lenses import Field

LONGFORMER = ROBERTA.derive(
    "longformer",
    "LongformerForMaskedLM",
    *longformer_attention("attention"),
    Field("num_attention_heads", "attention.num_heads"),
    Field("attention_probs_dropout_prob", "attention.dropout"),
    windows("num_hidden_layers"),
    masked_architecture="",
    further_inputs=global_attention_mask,
    layer_keys={f"attention.self.{name}_global": f"attention.{name}_global" for name in PARTS},
    prefix="longformer.",
    undeclared={NUM_GLOBAL: 1},
)
