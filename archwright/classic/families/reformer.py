"""Reformer: reversible layers with LSH and chunked attention, and axial positions.

Dropout differs from transformers, which drops embedding values, entire rows of positions, and values after the last
norm; here dropout applies only to the sum of embedding and positions. transformers ignores the logits bias of older
files.
"""

from typing import Any

from archwright.hf.families.common import FEEDFORWARD_BIASES, LAYER_NORM, flag
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.layouts import View
from archwright.hf.lenses import Activation, Computed, Field, Refuse, Set, Switch, converted
from archwright.hf.weight_map import Fused, filled


def _read_buckets(number: Any) -> Any:
    """Convert a number of buckets or its factors; null becomes `auto`."""
    return "auto" if number is None else tuple(number) if isinstance(number, list) else number


def _write_buckets(number: Any) -> Any:
    return [*number] if isinstance(number, tuple) else number


HEADS = (
    Field("num_attention_heads", "attention.num_heads"),
    Field("attention_head_size", "attention.head_dim"),
)
LOCAL = Role(
    {"attention.kind": "softmax", "attention.mask.kind": "chunked"},
    (
        *HEADS,
        # Without a causal mask, the first chunk attends to the last one in transformers.
        Refuse("is_decoder", (True,)),
        Field("local_attn_chunk_length", "attention.mask.size"),
        Field("local_num_chunks_before", "attention.mask.chunks_before"),
        Refuse("local_num_chunks_after", (0,)),
        Field("local_attention_probs_dropout_prob", "attention.dropout"),
    ),
)
LSH = Role(
    {"attention.kind": "lsh"},
    (
        *HEADS,
        flag("is_decoder", {"attention.mask.kind": "causal"}, {"attention.mask.kind": "full"}),
        Field("lsh_attn_chunk_length", "attention.chunk_size"),
        Field("lsh_num_chunks_before", "attention.chunks_before"),
        Field("lsh_num_chunks_after", "attention.chunks_after"),
        Field("lsh_attention_probs_dropout_prob", "attention.dropout"),
        Field("num_hashes", "attention.num_hashes"),
        converted("num_buckets", "attention.num_buckets", _read_buckets, _write_buckets),
        # transformers draws rotations in every pass; here they are drawn once.
        converted("hash_seed", "attention.hash_seed", lambda seed: seed or 0, int),
    ),
)

REFORMER = Family(
    "reformer",
    "ReformerModelWithLMHead",
    masked_architecture="ReformerForMaskedLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Computed(
            lambda config: {"num_layers": len(config["attn_layers"])}, key="num_hidden_layers"
        ),
        Field("max_position_embeddings", "context_length"),
        Set({"residual.kind": "reversible", "residual.join": "concat", **LAYER_NORM}),
        Field("layer_norm_eps", "norm.eps"),
        Field(
            "hidden_dropout_prob", ("residual.dropout", "feedforward.dropout", "embedding.dropout")
        ),
        Activation("hidden_act", gated=False),
        Field("feed_forward_size", "feedforward.hidden_dim"),
        Set(FEEDFORWARD_BIASES),
        Switch(
            "axial_pos_embds",
            {
                True: (
                    Set({"position.kind": "axial"}),
                    converted("axial_pos_shape", "position.shape", tuple, list),
                    converted("axial_pos_embds_dim", "position.dims", tuple, list),
                ),
                False: Set({"position.kind": "learned"}),
            },
        ),
        Refuse("tie_word_embeddings", (False,)),
    ),
    layers="reformer.encoder.layers.{i}.",
    layer_keys={
        "attention.layer_norm": "residual.norms.{mixer}",
        "attention.self_attention.query_key": "attention.query_key",
        "attention.self_attention.query": "attention.query",
        "attention.self_attention.key": "attention.key",
        "attention.self_attention.value": "attention.value",
        "attention.output.dense": "attention.out",
        "feed_forward.layer_norm": "residual.norms.feedforward",
        "feed_forward.dense.dense": "feedforward.up",
        "feed_forward.output.dense": "feedforward.down",
    },
    model_keys={
        "reformer.embeddings.word_embeddings": "embedding",
        "reformer.embeddings.position_embeddings.embedding": "position.table",
        # [rows, 1, width] and [1, columns, width]
        "reformer.embeddings.position_embeddings.weights.0": Fused(
            ("position.tables.0.weight",), View(lambda table: table[:, None])
        ),
        "reformer.embeddings.position_embeddings.weights.1": Fused(
            ("position.tables.1.weight",), View(lambda table: table[None])
        ),
        "reformer.encoder.layer_norm": "norm",
        "lm_head.decoder": "head",
        "lm_head.bias": filled(0.0, lambda spec: (int(spec.vocab_size),), read=False),
    },
    groups=(
        Layers(
            CustomPattern(
                lambda config, n: [*config["attn_layers"]], lambda roles: {"attn_layers": roles}
            ),
            {"local": LOCAL, "lsh": LSH},
        ),
    ),
    prefix="reformer.",
    undeclared={
        "attn_layers": ["local", "lsh"] * 3,
        "axial_pos_shape": [64, 64],
        "axial_pos_embds_dim": [64, 192],
    },
    ignored=(r"lm_head\.decoder\.bias",),
)
