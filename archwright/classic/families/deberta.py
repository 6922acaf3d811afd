"""DeBERTa versions 1 to 3: disentangled attention.

The published classes omit the pre-training layers that read absolute positions.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from archwright.hf.families.bert import BERT, TOKEN_TYPES
from archwright.hf.families.common import ALL_BIASES, by_head, flag
from archwright.hf.lenses import (
    MISSING,
    Computed,
    Config,
    Field,
    Get,
    Lens,
    Refuse,
    Set,
    Switch,
    Table,
    Write,
    converted,
    refused,
)
from archwright.hf.weight_map import Fused
from archwright.spec.errors import UserError

TERMS = {("c2p", "p2c"): "both", ("c2p",): "content_to_position", ("p2c",): "position_to_content"}


def _terms(config: Config) -> tuple[str, ...]:
    """Return a config's distance terms, from a list or |-separated string."""
    value = config["pos_att_type"] or []
    listed = value.lower().split("|") if isinstance(value, str) else value
    return tuple(sorted(str(term).strip() for term in listed))


def _read_terms(config: Config) -> Table:
    if (terms := _terms(config)) not in TERMS:
        raise UserError(refused("pos_att_type", config["pos_att_type"], map(list, TERMS)))
    return {"attention": {"terms": TERMS[terms]}}


def _write_terms(get: Get) -> dict[str, Any]:
    terms = get("attention.terms")
    named = next(keys for keys, name in TERMS.items() if name == terms)
    return {"pos_att_type": [*named]}


def _read_scale(config: Config) -> Table:
    """Read the score scale, which depends on `pos_att_type` even without relative attention."""
    width = config["hidden_size"] // config["num_attention_heads"]
    return {"attention": {"scale": {"kind": "sqrt", "dim": width * (1 + len(_terms(config)))}}}


def _write_scale(get: Get) -> dict[str, Any]:
    number, rest = divmod(get("attention.scale.dim"), get("attention.head_dim"))
    return {} if rest else {"pos_att_type": ["c2p", "p2c"][: number - 1]}


def _read_distances(config: Config) -> Table:
    """Read the largest distance; by default the maximum number of positions."""
    far = config["max_relative_positions"]
    return {"attention": {"max_distance": far if far > 0 else config["max_position_embeddings"]}}


def _only(key: str, derived: Callable[[Config], int]) -> Computed:
    """Return the lens of a redundant key: null, or equal to `derived`."""

    def read(config: Config) -> Table:
        if config[key] not in (None, derived(config)):
            raise UserError(refused(key, config[key], (derived(config),)))
        return {}

    return Computed(read, key=key)


def _read_types(config: Config) -> Table:
    number = config["type_vocab_size"]
    return {"embedding": {"bias": number == 1, "token_types": number if number > 1 else 0}}


def _write_types(get: Get) -> dict[str, Any]:
    types, bias = get("embedding.token_types"), get("embedding.bias")
    return {} if types is MISSING else {"type_vocab_size": types or int(bias)}


FURTHER = (
    Computed(_read_terms, _write_terms),
    Computed(
        _read_distances, lambda get: {"max_relative_positions": get("attention.max_distance")}
    ),
    Field("hidden_dropout_prob", "attention.distance_dropout"),
)
WITHOUT = (Set({"attention.kind": "softmax"}), Computed(_read_scale, _write_scale))
WITH = Set({"attention.kind": "disentangled"})
SEEN = Set({"attention.mask.kind": "full"})
HEADS = (
    Field("num_attention_heads", "attention.num_heads"),
    Field("attention_probs_dropout_prob", "attention.dropout"),
)
BIASES = {key: True for key in ALL_BIASES if key.startswith("attention")}
HEAD = {
    "lm_predictions.lm_head.dense": "head.transform.dense",
    "lm_predictions.lm_head.LayerNorm": "head.transform.norm",
    "lm_predictions.lm_head.bias": "head.bias",
}
LEGACY = {
    **{
        f"cls.predictions.transform.{name}.{part}": f"lm_predictions.lm_head.{name}.{part}"
        for name in ("dense", "LayerNorm")
        for part in ("weight", "bias")
    },
    "cls.predictions.bias": "lm_predictions.lm_head.bias",
}
"""Names of the head's tensors in older files."""
TABLE = "relatives.distances_0"


_NORM: Mapping[Hashable, Lens | Sequence[Lens]] = {
    "layer_norm": (
        Set({"attention.distance_norm.kind": "layer"}),
        Field("layer_norm_eps", "attention.distance_norm.eps"),
    ),
    "none": Set({"attention.distance_norm.kind": "none"}),
}

DEBERTA_V2 = BERT.derive(
    "deberta-v2",
    "DebertaV2ForMaskedLM",
    Computed(_read_types, _write_types, "type_vocab_size"),
    flag("position_biased_input", {"position.kind": "learned"}, {"position.kind": "none"}),
    Switch(
        "relative_attention",
        {
            False: (*WITHOUT, SEEN, *HEADS, Set(BIASES)),
            True: (
                *(WITH, SEEN, *HEADS, Set(BIASES), *FURTHER),
                converted(
                    "position_buckets",
                    "attention.num_buckets",
                    lambda number: number if number > 0 else "none",
                    lambda number: -1 if number == "none" else number,
                ),
                Switch("norm_rel_ebd", _NORM),
                Switch(
                    "share_att_key",
                    {
                        True: Set({"attention.distance_maps": "content"}),
                        False: Set({"attention.distance_maps": "own"}),
                    },
                ),
            ),
        },
    ),
    Refuse("conv_kernel_size", (0,)),
    _only("embedding_size", lambda config: int(config["hidden_size"])),
    _only(
        "attention_head_size",
        lambda config: int(config["hidden_size"] // config["num_attention_heads"]),
    ),
    Write({"legacy": False}),
    masked_architecture="",
    prefix="deberta.",
    layer_keys={
        "attention.self.query_proj": "attention.query",
        "attention.self.key_proj": "attention.key",
        "attention.self.value_proj": "attention.value",
        "attention.self.pos_key_proj": "attention.distance_key",
        "attention.self.pos_query_proj": "attention.distance_query",
    },
    model_keys={
        "deberta.embeddings.token_type_embeddings.weight": TOKEN_TYPES,
        "deberta.encoder.rel_embeddings.weight": f"{TABLE}.weight",
        "deberta.encoder.LayerNorm": f"{TABLE}.norm",
        **HEAD,
    },
    ignored=(
        r"cls\.predictions\.decoder\.(weight|bias)",
        r"deberta\.embeddings\.(position_ids|position_embeddings\.weight)",
        r"(lm_predictions\.lm_head\.decoder|mask_predictions|pooler|deberta\.pooler)\..*",
    ),
    endings={**BERT.endings, **LEGACY},
    undeclared={
        "share_att_key": False,
        "position_buckets": -1,
        "norm_rel_ebd": "none",
        "conv_kernel_size": 0,
        "attention_head_size": None,
        "embedding_size": None,
    },
)

DEBERTA = DEBERTA_V2.derive(
    "deberta",
    "DebertaForMaskedLM",
    Switch(
        "relative_attention",
        {
            False: (*WITHOUT, SEEN, *HEADS, Set(BIASES | {"attention.bias.key": False})),
            True: (
                *(WITH, SEEN, *HEADS, Set(BIASES | {"attention.bias.key": False}), *FURTHER),
                Set({"attention.num_buckets": "none", "attention.distance_norm.kind": "none"}),
                Set({"attention.distance_maps": "own"}),
            ),
        },
    ),
    Refuse("talking_head", (False,)),
    layer_keys={
        "attention.self.in_proj.weight": Fused(
            ("attention.query.weight", "attention.key.weight", "attention.value.weight"), by_head
        ),
        "attention.self.q_bias": "attention.query.bias",
        "attention.self.v_bias": "attention.value.bias",
        "attention.self.pos_proj": "attention.distance_key",
        "attention.self.pos_q_proj": "attention.distance_query",
    },
    undeclared={"talking_head": False},
)
