"""ELECTRA: BERT with a factorized embedding, as generator or as detector of replaced tokens."""

from archwright.hf.families.bert import BERT, FACTORS, HEAD_ACTIVATIONS
from archwright.hf.lenses import Config, Set, refused
from archwright.hf.weight_map import When
from archwright.spec.embeddings import Head
from archwright.spec.errors import UserError
from archwright.spec.merge import validated

OF_TOKENS, OF_REPLACED = ("head.predicts", "tokens"), ("head.predicts", "replaced")
"""Conditions for the heads of ELECTRA's generator and discriminator."""


def _read_replaced_head(config: Config) -> Head:
    """Read the discriminator head, with the activation of the layers."""
    act = config["hidden_act"]
    if act not in HEAD_ACTIVATIONS:
        raise UserError(refused("hidden_act", act, tuple(HEAD_ACTIVATIONS)))
    dense = {"kind": "dense", "activation": HEAD_ACTIVATIONS[act], "norm": {"kind": "none"}}
    return validated(Head, {"predicts": "replaced", "bias": True, "transform": dense})


ELECTRA = BERT.derive(
    "electra",
    "ElectraForCausalLM",
    FACTORS,
    Set({"head.transform.activation": "gelu"}),
    masked_architecture="ElectraForMaskedLM",
    pretraining_architecture="ElectraForPreTraining",
    replaced_head="discriminator_predictions.dense_prediction.weight",
    read_replaced_head=_read_replaced_head,
    model_keys={
        "electra.embeddings_project": "project_in",
        "generator_predictions.dense": When(*OF_TOKENS, "head.transform.dense"),
        "generator_predictions.LayerNorm": "head.transform.norm",
        "generator_lm_head.bias": When(*OF_TOKENS, "head.bias"),
        "discriminator_predictions.dense": When(*OF_REPLACED, "head.transform.dense"),
        "discriminator_predictions.dense_prediction": When(*OF_REPLACED, "head"),
    },
    prefix="electra.",
    ignored=(r"generator_lm_head\.weight", r"electra\.embeddings\.(position_ids|token_type_ids)"),
)
