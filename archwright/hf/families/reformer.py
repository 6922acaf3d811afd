"""Reformer: reversible layers of attention by hashes and in chunks, with positions of a grid.

In training, the library drops values of the embedding before positions are added, of the latter whole rows, and some
behind the last norm; here they are dropped from the sum, and none at the end. It leaves the bias of logits of older
files unread.
"""

from typing import Any

from archwright.hf.families.common import FEEDFORWARD_BIASES, LAYER_NORM, flag
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.layouts import AlongAxis
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Refuse,
    Set,
    Switch,
    Table,
    nested,
)
from archwright.hf.weight_map import Fused, filled


def _number_of_layers(config: Config) -> Table:
    return {"num_layers": len(config["attn_layers"])}


def _buckets() -> Computed:
    """Return the lens of a number of buckets, which is a list where it is a product, and null where it follows."""
    path = "attention.num_buckets"

    def read(config: Config) -> Table:
        found = config["num_buckets"]
        found = tuple(found) if isinstance(found, list) else found
        return nested(path, "auto" if found is None else found)

    def write(get: Get) -> dict[str, Any]:
        found = get(path)
        if found is MISSING:
            return {}
        return {"num_buckets": [*found] if isinstance(found, tuple) else found}

    return Computed(read, write, "num_buckets")


def _seed() -> Computed:
    """Return the lens of the seed of rotations; those that the library draws anew in each pass are drawn once here."""
    path = "attention.hash_seed"

    def write(get: Get) -> dict[str, Any]:
        seed = get(path)
        return {} if seed is MISSING else {"hash_seed": seed}

    return Computed(lambda config: nested(path, config["hash_seed"] or 0), write, "hash_seed")


def _grid(key: str, path: str) -> Computed:
    """Return the lens of a list of numbers."""

    def write(get: Get) -> dict[str, Any]:
        found = get(path)
        return {} if found is MISSING else {key: [*found]}

    return Computed(lambda config: nested(path, tuple(config[key])), write, key)


HEADS = (
    Field("num_attention_heads", "attention.num_heads"),
    Field("attention_head_size", "attention.head_dim"),
)
LOCAL = Role(
    {"attention.kind": "softmax", "attention.mask.kind": "chunked"},
    (
        *HEADS,
        # Without a causal mask, the library shows the first chunk the last one.
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
        _buckets(),
        _seed(),
    ),
)

REFORMER = Family(
    "reformer",
    "ReformerModelWithLMHead",
    masked_architecture="ReformerForMaskedLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Computed(_number_of_layers, lambda get: {}, "num_hidden_layers"),
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
                    _grid("axial_pos_shape", "position.shape"),
                    _grid("axial_pos_embds_dim", "position.dims"),
                ),
                False: Set({"position.kind": "learned"}),
            },
        ),
        Refuse("tie_word_embeddings", (False,)),
    ),
    layers="reformer.encoder.layers.{i}.",
    layer_keys={
        "attention.layer_norm": "residual.norms.attention",
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
        "reformer.embeddings.position_embeddings.weights.0": Fused(
            ("position.tables.0.weight",), AlongAxis(0)
        ),
        "reformer.embeddings.position_embeddings.weights.1": Fused(
            ("position.tables.1.weight",), AlongAxis(1)
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
