"""ProphetNet: a BART encoder, and a decoder with predicting streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archwright.hf.families.bart import NORMED_EMBEDDING, POST_NORM, STACKS
from archwright.hf.families.common import TIED, attention_names, attention_size
from archwright.hf.family import Family
from archwright.hf.layouts import Same
from archwright.hf.lenses import Computed, Config, Field, Get, Refuse, Set, Table
from archwright.hf.two_stacks import in_both
from archwright.hf.weight_map import Fused, Mapped
from archwright.spec.errors import UserError
from archwright.spec.model_spec import LayerSpec

if TYPE_CHECKING:
    from torch import Tensor

    from archwright.hf.layouts import Pairs

STREAMS, ROWS = "ngram", "max_position_embeddings"


def _read_streams(config: Config) -> Table:
    if (number := config[STREAMS]) < 1:
        raise UserError(f"config.json: {STREAMS}: found {number}; expected 1 or more streams")
    return {"predicting_streams": number}


def _write_streams(get: Get) -> dict[str, Any]:
    return {STREAMS: get("predicting_streams")} if get("predicting_streams") else {}


def _read_positions(config: Config) -> Table:
    """Read the positions after padding; decoder streams need one more row."""
    offset = config["pad_token_id"] + 1
    longest = config[ROWS] - offset
    position = {"position": {"offset": offset}}
    return {
        **position,
        "context_length": longest - 1,
        "encoder": {**position, "context_length": longest},
    }


def _write_positions(get: Get) -> dict[str, Any]:
    offset = get("position.offset")
    if type(offset) is not int or offset < 1:
        return {}
    return {"pad_token_id": offset - 1, ROWS: get("context_length") + offset + 1}


@dataclass(frozen=True)
class FirstRowLast(Same):
    """A table with its first row moved to the end."""

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        yield foreign[-1], ours[0][0]
        yield foreign[:-1], ours[0][1:]


@dataclass(frozen=True)
class TurnsSwapped(Same):
    """Interleaved groups: the first rows of all groups, the second rows, ...

    Args:
        groups: Number of groups.
    """

    groups: int

    def pairs(self, foreign: Tensor, ours: Sequence[Tensor]) -> Pairs:
        # [rows of a group, groups, ...]
        theirs = foreign.unflatten(0, (-1, self.groups))
        yield theirs, ours[0].unflatten(0, (self.groups, -1)).transpose(0, 1)


def _buckets_first(layer: LayerSpec) -> TurnsSwapped:
    """Return the layout by bucket, then head, instead of head, then bucket."""
    return TurnsSwapped(groups=attention_size(layer, "num_heads"))


LAYER_KEYS: dict[str, Mapped] = {
    "self_attn_layer_norm": "residual.norms.{mixer}",
    "feed_forward_layer_norm": "residual.norms.feedforward",
    **attention_names("self_attn", maps=("query_proj", "key_proj", "value_proj", "out_proj")),
    "feed_forward.intermediate": "feedforward.up",
    "feed_forward.output": "feedforward.down",
}

PROPHETNET = Family(
    "prophetnet",
    "ProphetNetForConditionalGeneration",
    lenses=(
        *STACKS,
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Field("num_encoder_layers", "encoder.num_layers"),
        Field("num_decoder_layers", "num_layers"),
        Field("num_encoder_attention_heads", "encoder.attention.num_heads"),
        Field("num_decoder_attention_heads", ("attention.num_heads", "cross_attention.num_heads")),
        *in_both(Set({"position.kind": "learned"})),
        *POST_NORM,
        NORMED_EMBEDDING,
        Computed(_read_positions, _write_positions, ROWS),
        Computed(_read_streams, _write_streams, STREAMS),
        Set({"attention.distance_scores.kind": "buckets"}),
        Field("num_buckets", "attention.distance_scores.num_buckets"),
        Field("relative_max_distance", "attention.distance_scores.max_distance"),
        Refuse("add_cross_attention", (True,)),
        TIED,
    ),
    layers="prophetnet.decoder.layers.{i}.",
    layer_keys={
        **LAYER_KEYS,
        "cross_attn_layer_norm": "residual.norms.cross_attention",
        **attention_names(
            "cross_attn", "cross_attention", ("query_proj", "key_proj", "value_proj", "out_proj")
        ),
        "self_attn.relative_pos_embeddings": Fused(
            ("attention.distance_scores.map",), _buckets_first
        ),
    },
    encoder_layers="prophetnet.encoder.layers.{i}.",
    encoder_layer_keys=LAYER_KEYS,
    model_keys={
        "prophetnet.word_embeddings": "embedding",
        "prophetnet.encoder.position_embeddings": "encoder.position.table",
        "prophetnet.encoder.embeddings_layer_norm": "encoder.embedding_norm",
        "prophetnet.decoder.position_embeddings": "position.table",
        "prophetnet.decoder.embeddings_layer_norm": "embedding_norm",
        # The published code reads row i - 1 for stream i = 0, 1, ..., so stream 0 reads the last row.
        "prophetnet.decoder.ngram_embeddings": Fused(("predicting_streams",), FirstRowLast()),
        "lm_head.weight": "head.weight",
    },
    prefix="prophetnet.",
    # Duplicates of the shared table.
    ignored=(r"prophetnet\.(en|de)coder\.word_embeddings\.weight",),
    # For several tokens at once, the class mixes distance scores of other tokens and heads into a stream's scores. The
    # published code does not, and neither does the class with a cache.
    in_steps=True,
)
