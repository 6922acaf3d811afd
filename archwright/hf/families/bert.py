"""BERT and its relatives, as encoders and decoders.

If a file of BERT or ALBERT has the classifier of the sequence objective, the classifier and its pooler are read.
Otherwise the pooler is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archwright.hf.families.common import (
    ALL_BIASES,
    HIDDEN,
    LAYER_NORM,
    SIZES,
    attention_names,
    attention_size,
    flag,
)
from archwright.hf.family import Family
from archwright.hf.layouts import FirstRow
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Refuse,
    Set,
    Table,
    refused,
)
from archwright.hf.weight_map import Constant, Fused, When
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

HEAD_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Activations of heads with a dense transform."""


def _read_transform(config: Config) -> Table:
    """Read the head's activation from the activation of the layers."""
    name = HEAD_ACTIVATIONS.get(config["hidden_act"])
    return {"head": {"transform": {"activation": name}}}


def _read_types(config: Config) -> Table:
    """Read the token-type table; a single row becomes the embedding bias."""
    number = config["type_vocab_size"]
    if not number:
        raise UserError(refused("type_vocab_size", number, ("1 and more",)))
    return {"embedding": {"bias": number == 1, "token_types": number if number > 1 else 0}}


TYPES = Computed(
    _read_types,
    lambda get: {"type_vocab_size": get("embedding.token_types") or 1},
    "type_vocab_size",
)
TOKEN_TYPES = (
    When("embedding.bias", True, Fused(("embedding.bias",), FirstRow())),
    When("embedding.bias", False, "embedding.token_types.weight"),
)
"""Model tensors in the token-type table."""

BERT = Family(
    "bert",
    "BertLMHeadModel",
    masked_architecture="BertForMaskedLM",
    pretraining_architecture="BertForPreTraining",
    sequence_head="cls.seq_relationship.weight",
    lenses=(
        *SIZES,
        Set({"residual.kind": "post", **LAYER_NORM, "attention.kind": "softmax"}),
        Set({"position.kind": "learned", "embedding.norm.kind": "layer"}),
        TYPES,
        Set({"head.transform.kind": "dense", "head.transform.norm.kind": "layer"}),
        Set({"head.tied": True, "head.bias": True}),
        Field("layer_norm_eps", ("norm.eps", "embedding.norm.eps", "head.transform.norm.eps")),
        Field("hidden_dropout_prob", ("residual.dropout", "embedding.dropout")),
        Field("attention_probs_dropout_prob", "attention.dropout"),
        Activation("hidden_act", gated=False),
        Computed(_read_transform, key="hidden_act"),
        HIDDEN,
        Set(ALL_BIASES),
        flag("is_decoder", {"attention.mask.kind": "causal"}, {"attention.mask.kind": "full"}),
        Refuse("add_cross_attention", (False,)),
        Refuse("position_embedding_type", ("absolute",)),
        Refuse("tie_word_embeddings", (True,)),
    ),
    layers="bert.encoder.layer.{i}.",
    layer_keys={
        "attention.self.query": "attention.query",
        "attention.self.key": "attention.key",
        "attention.self.value": "attention.value",
        "attention.output.dense": "attention.out",
        "attention.output.LayerNorm": "residual.norms.{mixer}",
        "intermediate.dense": "feedforward.up",
        "output.dense": "feedforward.down",
        "output.LayerNorm": "residual.norms.feedforward",
    },
    model_keys={
        "bert.embeddings.word_embeddings.weight": "embedding.weight",
        "bert.embeddings.token_type_embeddings.weight": TOKEN_TYPES,
        "bert.embeddings.position_embeddings": "position.table",
        "bert.embeddings.LayerNorm": "embedding_norm",
        "cls.predictions.transform.dense": "head.transform.dense",
        "cls.predictions.transform.LayerNorm": "head.transform.norm",
        "cls.predictions.bias": "head.bias",
        "bert.pooler.dense": "sequence_head.pooler",
        "cls.seq_relationship": "sequence_head.classifier",
    },
    prefix="bert.",
    ignored=(
        r"cls\.predictions\.decoder\.(weight|bias)",
        r"cls\.seq_relationship\..*",
        r"bert\.pooler\..*",
        r"bert\.embeddings\.position_ids",
    ),
    endings={".gamma": ".weight", ".beta": ".bias"},
    undeclared={"position_embedding_type": "absolute"},
)


def _read_positions(config: Config) -> Table:
    """Read RoBERTa's positions, offset by the padding row."""
    first = config["pad_token_id"] + 1
    length = config["max_position_embeddings"] - first
    return {"position": {"offset": first}, "context_length": length}


def _write_positions(get: Get) -> dict[str, object]:
    first = get("position.offset")
    if first is MISSING or not first:
        return {}
    return {"pad_token_id": first - 1, "max_position_embeddings": get("context_length") + first}


ROBERTA = BERT.derive(
    "roberta",
    "RobertaForCausalLM",
    Computed(_read_positions, _write_positions),
    Set({"head.transform.activation": "gelu"}),
    masked_architecture="RobertaForMaskedLM",
    model_keys={
        "lm_head.dense": "head.transform.dense",
        "lm_head.layer_norm": "head.transform.norm",
        "lm_head.bias": "head.bias",
    },
    prefix="roberta.",
    ignored=(
        r"lm_head\.decoder\.(weight|bias)",
        r"roberta\.pooler\..*",
        r"roberta\.embeddings\.position_ids",
    ),
)


XLM_ROBERTA = ROBERTA.derive(
    "xlm-roberta", "XLMRobertaForCausalLM", masked_architecture="XLMRobertaForMaskedLM"
)
CAMEMBERT = ROBERTA.derive(
    "camembert", "CamembertForCausalLM", masked_architecture="CamembertForMaskedLM"
)

DISTILBERT = BERT.derive(
    "distilbert",
    "DistilBertForMaskedLM",
    Field("dim", "dim"),
    Field("n_layers", "num_layers"),
    Field("n_heads", "attention.num_heads"),
    Field("hidden_dim", "feedforward.hidden_dim"),
    Activation("activation", gated=False),
    Computed(lambda config: _read_transform({"hidden_act": config["activation"]})),
    Set({"attention.mask.kind": "full", "embedding.bias": False}),
    Set({f"{norm}.eps": 1e-12 for norm in ("norm", "embedding.norm", "head.transform.norm")}),
    Field("dropout", ("residual.dropout", "embedding.dropout")),
    Field("attention_dropout", "attention.dropout"),
    # The key only determines the initial values of the position table.
    Refuse("sinusoidal_pos_embds", (False, True)),
    masked_architecture="",
    layers="distilbert.transformer.layer.{i}.",
    layer_keys={
        **attention_names("attention", maps=("q_lin", "k_lin", "v_lin", "out_lin")),
        "sa_layer_norm": "residual.norms.{mixer}",
        "ffn.lin1": "feedforward.up",
        "ffn.lin2": "feedforward.down",
        "output_layer_norm": "residual.norms.feedforward",
    },
    model_keys={
        "vocab_transform": "head.transform.dense",
        "vocab_layer_norm": "head.transform.norm",
        "vocab_projector.bias": "head.bias",
    },
    prefix="distilbert.",
    ignored=(r"vocab_projector\.weight", r"distilbert\.embeddings\.position_ids"),
)


def _read_factors(config: Config) -> Table:
    """Read a factorized embedding, projected to the model width after its norm."""
    width, dim = config["embedding_size"], config["hidden_size"]
    if width == dim:
        return {}
    return {"embedding": {"dim": width, "project": "normed", "project_bias": True}}


FACTORS = Computed(
    _read_factors, lambda get: {"embedding_size": get("embedding.dim")}, "embedding_size"
)


def _read_narrow_embedding(config: Config) -> Table:
    """Read ALBERT's factorized embedding; refuse one as wide as the model."""
    if config["embedding_size"] == config["hidden_size"]:
        width = config["embedding_size"]
        line = f"config.json: embedding_size: found {width}, equal to hidden_size; expected another width"
        raise UserError(line)
    return _read_factors(config)


ALBERT = BERT.derive(
    "albert",
    "AlbertForMaskedLM",
    Computed(_read_narrow_embedding, FACTORS.write, "embedding_size"),
    Set({"attention.mask.kind": "full", "layers.shared": True}),
    Refuse("num_hidden_groups", (1,)),
    Refuse("inner_group_num", (1,)),
    masked_architecture="",
    pretraining_architecture="AlbertForPreTraining",
    sequence_head="sop_classifier.classifier.weight",
    layers="albert.encoder.albert_layer_groups.{i}.albert_layers.0.",
    layer_keys={
        **attention_names("attention", maps=("query", "key", "value", "dense")),
        "attention.LayerNorm": "residual.norms.{mixer}",
        "ffn": "feedforward.up",
        "ffn_output": "feedforward.down",
        "full_layer_layer_norm": "residual.norms.feedforward",
    },
    model_keys={
        "albert.encoder.embedding_hidden_mapping_in": "project_in",
        "predictions.dense": "head.transform.dense",
        "predictions.LayerNorm": "head.transform.norm",
        "predictions.bias": "head.bias",
        "albert.pooler": "sequence_head.pooler",
        "sop_classifier.classifier": "sequence_head.classifier",
    },
    prefix="albert.",
    ignored=(
        r"predictions\.decoder\.(weight|bias)",
        r"sop_classifier\..*",
        r"albert\.pooler\..*",
        r"albert\.embeddings\.(position_ids|token_type_ids)",
    ),
)


def _read_width(config: Config) -> Table:
    """Refuse a factorized embedding."""
    width = config["embedding_size"]
    if width not in (None, config["hidden_size"]):
        raise UserError(refused("embedding_size", width, (config["hidden_size"],)))
    return {}


def _sines(spec: ModelSpec, layer: int) -> Tensor:
    """Return RoFormer's saved sine and cosine table, [context_length, head_dim]."""
    import torch  # not needed to read configs

    width = attention_size(spec, "head_dim")
    pairs = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(spec.context_length)[:, None] * 10_000.0 ** (-pairs / width)
    return torch.cat((angles.sin(), angles.cos()), -1).float()


ROFORMER = BERT.derive(
    "roformer",
    "RoFormerForCausalLM",
    Set({"position.kind": "rope", "position.pairing": "interleaved"}),
    Refuse("rotary_value", (False,)),
    Computed(_read_width, lambda get: {"embedding_size": get("dim")}),
    masked_architecture="RoFormerForMaskedLM",
    model_keys={"roformer.encoder.embed_positions.weight": Constant(_sines)},
    prefix="roformer.",
)
