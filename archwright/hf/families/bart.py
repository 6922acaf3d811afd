"""BART and other encoder-decoders from fairseq, Marian and ParlAI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archwright.hf.families.common import ALL_BIASES, DROPOUT, LAYER_NORM, TIED, attention_names
from archwright.hf.families.fairseq import EMBEDDING_SCALE, LAYER_KEYS
from archwright.hf.family import Family
from archwright.hf.layouts import View
from archwright.hf.lenses import (
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Lens,
    Refuse,
    Set,
    Switch,
    Table,
)
from archwright.hf.two_stacks import in_both
from archwright.hf.weight_map import Constant, Fused, Mapped, When, filled
from archwright.spec.model_spec import ModelSpec
from archwright.spec.positions import Sinusoidal as Sines

if TYPE_CHECKING:
    from torch import Tensor

CROSS_BIASES = {f"cross_attention.bias.{part}": True for part in ("query", "key", "value", "out")}
DECODER_KEYS = {
    **LAYER_KEYS,
    "encoder_attn_layer_norm": "residual.norms.cross_attention",
    **attention_names("encoder_attn", "cross_attention"),
}
LAYERS: dict[str, Any] = {
    "layers": "model.decoder.layers.{i}.",
    "layer_keys": DECODER_KEYS,
    "encoder_layers": "model.encoder.layers.{i}.",
    "encoder_layer_keys": LAYER_KEYS,
}
LOGITS_BIAS = "final_logits_bias"
"""Name of the logits bias, an untrained and usually zero buffer in transformers."""
BIASES: dict[str, Mapped] = {
    LOGITS_BIAS: (
        When("head.bias", True, Fused(("head.bias",), View(lambda bias: bias[None]))),
        When("head.bias", False, filled(0.0, lambda spec: (1, int(spec.vocab_size)))),
    ),
}
FINAL_NORMS: dict[str, Mapped] = {
    "model.encoder.layer_norm": "encoder.norm",
    "model.decoder.layer_norm": "norm",
}
SHARED: dict[str, Mapped] = {"model.shared": "embedding", "lm_head.weight": "head.weight"}
REPEATED = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
"""Duplicate names of the shared table in old files."""
TABLES_OF_SINES = (r"model\.(en|de)coder\.embed_positions\.weights?",)


def _table_of_sines(spec: ModelSpec, layer: int) -> Tensor:
    """Return the saved sinusoidal table, with zeros in the padding row."""
    import torch  # not needed to read configs

    from archwright.parts.positions import Sinusoidal
    from archwright.parts.token_layout import TokenLayout

    assert isinstance(spec.position, Sines)
    offset = spec.position.offset
    rows = spec.context_length + offset
    position = Sinusoidal(spec.position.model_copy(update={"offset": 0}), spec.dim, rows)
    table: Tensor = position(TokenLayout(rows, torch.device("cpu")))[0]
    if offset:
        table[offset - 1] = 0
    return table


SAVED_SINES: dict[str, Mapped] = {
    f"model.{stack}.embed_positions.weight": Constant(_table_of_sines)
    for stack in ("encoder", "decoder")
}

STACKS: tuple[Lens, ...] = (
    Set({"encoder.kind": "stack", "cross_attention.kind": "softmax", **CROSS_BIASES}),
    Field("encoder_ffn_dim", "encoder.feedforward.hidden_dim"),
    Field("decoder_ffn_dim", "feedforward.hidden_dim"),
    Field("dropout", "embedding.dropout"),
    Field("attention_dropout", "cross_attention.dropout"),
    *in_both(
        Set({"attention.kind": "softmax", **LAYER_NORM, "norm.eps": 1e-5, **ALL_BIASES}),
        Activation("activation_function", gated=False),
        Field("dropout", "residual.dropout"),
        Field("activation_dropout", "feedforward.dropout"),
        DROPOUT,
    ),
)
"""Lenses shared with ProphetNet."""
KIN: tuple[Lens, ...] = (
    *STACKS,
    Field("max_position_embeddings", "context_length"),
    Field("d_model", "dim"),
    Field("encoder_layers", "encoder.num_layers"),
    Field("decoder_layers", "num_layers"),
    Field("encoder_attention_heads", "encoder.attention.num_heads"),
    Field("decoder_attention_heads", ("attention.num_heads", "cross_attention.num_heads")),
    EMBEDDING_SCALE,
)
"""Lenses common to these families; vocabulary, norms and positions differ."""

ONE_VOCABULARY = (Field("vocab_size", "vocab_size"), TIED)

POST_NORM = in_both(Set({"residual.kind": "post"}))
PRE_NORM = in_both(Set({"residual.kind": "pre"}))
NORMED_EMBEDDING = Set({"embedding.norm.kind": "layer", "embedding.norm.eps": 1e-5})
LEARNED = in_both(Set({"position.kind": "learned", "position.offset": 2}))
SINES = in_both(Set({"position.kind": "sinusoidal", "position.layout": "half"}))

DECODES = Refuse("is_decoder", (False,))
LEARNED_TABLES: dict[str, Mapped] = {
    "model.encoder.embed_positions": "encoder.position.table",
    "model.decoder.embed_positions": "position.table",
}
NORMED_EMBEDDINGS: dict[str, Mapped] = {
    "model.encoder.layernorm_embedding": "encoder.embedding_norm",
    "model.decoder.layernorm_embedding": "embedding_norm",
}

BART = Family(
    "bart",
    "BartForConditionalGeneration",
    lenses=(*KIN, *ONE_VOCABULARY, *POST_NORM, NORMED_EMBEDDING, *LEARNED, DECODES),
    **LAYERS,
    model_keys={**SHARED, **LEARNED_TABLES, **NORMED_EMBEDDINGS, **BIASES},
    logits_bias=LOGITS_BIAS,
    ignored=(r"model\.(en|de)coder\.version",),
    endings=REPEATED,
)

PLBART = BART.derive("plbart", "PLBartForConditionalGeneration")

MBART = Family(
    "mbart",
    "MBartForConditionalGeneration",
    lenses=(*KIN, *ONE_VOCABULARY, *PRE_NORM, NORMED_EMBEDDING, *LEARNED, DECODES),
    **LAYERS,
    model_keys={**SHARED, **LEARNED_TABLES, **NORMED_EMBEDDINGS, **FINAL_NORMS, **BIASES},
    logits_bias=LOGITS_BIAS,
    endings=REPEATED,
)

BLENDERBOT = Family(
    "blenderbot",
    "BlenderbotForConditionalGeneration",
    lenses=(*KIN, *ONE_VOCABULARY, *PRE_NORM, *in_both(Set({"position.kind": "learned"})), DECODES),
    **LAYERS,
    model_keys={**SHARED, **LEARNED_TABLES, **FINAL_NORMS, **BIASES},
    logits_bias=LOGITS_BIAS,
    endings=REPEATED,
)

PEGASUS = BLENDERBOT.derive(
    "pegasus", "PegasusForConditionalGeneration", *SINES, model_keys=SAVED_SINES
)

MARIAN = Family(
    "marian",
    "MarianMTModel",
    lenses=(
        *KIN,
        *ONE_VOCABULARY,
        *POST_NORM,
        *SINES,
        DECODES,
        Switch(
            "share_encoder_decoder_embeddings",
            {
                True: Set({"encoder.embeddings": "shared"}),
                False: (
                    Set({"encoder.embeddings": "own"}),
                    Field("vocab_size", "encoder.vocab_size"),
                    Field("decoder_vocab_size", "vocab_size", same_as="vocab_size"),
                ),
            },
        ),
    ),
    **LAYERS,
    model_keys={
        "model.shared": When("encoder.embeddings", "shared", "embedding"),
        "model.encoder.embed_tokens": "encoder.embedding",
        "model.decoder.embed_tokens": When("encoder.embeddings", "own", "embedding"),
        "lm_head.weight": "head.weight",
        **BIASES,
    },
    logits_bias=LOGITS_BIAS,
    # Duplicates of the shared table, under the names of each stack's table.
    ignored=(*TABLES_OF_SINES, r"model\.(en|de)coder\.embed_tokens\.weight"),
)


def _read_offset(config: Config) -> Table:
    return {"position": {"offset": config["pad_token_id"] + 1}}


def _write_padding(get: Get) -> dict[str, Any]:
    offset = get("position.offset")
    return {"pad_token_id": offset - 1} if type(offset) is int and offset > 0 else {}


AFTER_PADDING = in_both(
    Set({"position.kind": "sinusoidal", "position.layout": "half", "position.spacing": "fairseq"}),
    Computed(_read_offset, _write_padding, "pad_token_id"),
)
"""Sinusoidal positions with fairseq's spacing; the first token follows the padding row."""

M2M_100 = Family(
    "m2m_100",
    "M2M100ForConditionalGeneration",
    lenses=(*KIN, *ONE_VOCABULARY, *PRE_NORM, *AFTER_PADDING),
    **LAYERS,
    model_keys={**SHARED, **FINAL_NORMS},
    ignored=TABLES_OF_SINES,
    endings=REPEATED,
)
"""M2M-100, and NLLB models without experts."""


FSMT = Family(
    "fsmt",
    "FSMTForConditionalGeneration",
    lenses=(
        *KIN,
        *POST_NORM,
        *AFTER_PADDING,
        Field("tgt_vocab_size", "vocab_size"),
        Field("src_vocab_size", "encoder.vocab_size"),
        Switch(
            "tie_word_embeddings",
            {
                True: Set({"head.tied": True, "encoder.embeddings": "shared"}),
                False: Set({"head.tied": False, "encoder.embeddings": "own"}),
            },
        ),
    ),
    **LAYERS,
    model_keys={
        "model.encoder.embed_tokens": "encoder.embedding",
        "model.decoder.embed_tokens": "embedding",
        "model.decoder.output_projection": "head",
        **SAVED_SINES,
    },
    # A duplicate of the shared table.
    ignored=(r"model\.encoder\.embed_tokens\.weight",),
)
