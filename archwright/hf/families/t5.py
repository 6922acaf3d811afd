"""Google T5 and its successors: relative positions, unscaled attention scores."""

from typing import Any

from archwright.hf.families.common import TIED, attention_names, flag
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.lenses import (
    GATED_ACTIVATIONS,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Lens,
    Refuse,
    Set,
    Table,
)
from archwright.hf.two_stacks import in_both
from archwright.hf.weight_map import Mapped, When

ATTENTIONS = ("attention", "encoder.attention", "cross_attention")
DROPPED = ("residual", "attention", "feedforward")
GATED = {
    f"gated-{name}": table
    for name, table in GATED_ACTIVATIONS.items()
    if name not in ("gelu", "gelu_pytorch_tanh", "gelu_fast")  # gated-gelu is the approximation
}
FEEDFORWARD = Activation(
    "feed_forward_proj", gated=False, names={"gated-gelu": GATED_ACTIVATIONS["gelu_new"], **GATED}
)
"""Lens of the activation, including its gating."""


def read_head(config: Config) -> Table:
    """Read the head; by default, logits scale by 1 / sqrt(dim) if tied."""
    tied = config["tie_word_embeddings"] is not False
    scaled = config.get("scale_decoder_outputs", tied)
    return {"head": {"tied": tied} | (_scaled(config) if scaled else {})}


def _scaled(config: Config) -> Table:
    return {"logit_scale": config["d_model"] ** -0.5}


def _write_head(get: Get) -> dict[str, Any]:
    tied, scaled = get("head.tied"), get("head.logit_scale") != 1
    scale = {} if tied == scaled else {"scale_decoder_outputs": scaled}
    return {"tie_word_embeddings": tied, **scale}


SELF = "SelfAttention"


def _bias(attention: str = SELF) -> str:
    """Return the name of a layer's bias table (T5: only layer 0)."""
    return f"layer.0.{attention}.relative_attention_bias"


def layer_names(
    feedforward: str, attention: str = SELF, inner: str = "DenseReluDense"
) -> dict[str, Mapped]:
    """Return the tensor names of a layer with these module names."""
    inner = f"{feedforward}.{inner}"
    return {
        "layer.0.layer_norm": "residual.norms.{mixer}",
        **attention_names(f"layer.0.{attention}", maps="qkvo"),
        _bias(attention): "attention.position.table",
        f"{feedforward}.layer_norm": "residual.norms.feedforward",
        f"{inner}.wi": When("feedforward.gated", False, "feedforward.up"),
        f"{inner}.wi_0": "feedforward.gate",
        f"{inner}.wi_1": When("feedforward.gated", True, "feedforward.up"),
        f"{inner}.wo": "feedforward.down",
    }


ENCODER = layer_names("layer.1")
CROSS_ATTENTION = {
    "layer.1.layer_norm": "residual.norms.cross_attention",
    **attention_names("layer.1.EncDecAttention", "cross_attention", maps="qkvo"),
}
DECODER = {**layer_names("layer.2"), **CROSS_ATTENTION}

HEADS: tuple[Lens, ...] = (
    Field("num_heads", tuple(f"{a}.num_heads" for a in ATTENTIONS)),
    Field("d_kv", tuple(f"{a}.head_dim" for a in ATTENTIONS)),
    Set({f"{a}.scale.kind": "none" for a in ATTENTIONS}),
)
DROPOUTS: tuple[Lens, ...] = (
    Field("dropout_rate", ("embedding.dropout", "cross_attention.dropout")),
    *in_both(Field("dropout_rate", tuple(f"{a}.dropout" for a in DROPPED))),
)

T5 = Family(
    "t5",
    "T5ForConditionalGeneration",
    lenses=(
        Set({"encoder.kind": "stack", "cross_attention.kind": "softmax"}),
        Field("vocab_size", "vocab_size"),
        Field("n_positions", "context_length"),
        Field("d_model", "dim"),
        Field("num_layers", "encoder.num_layers"),
        Field("num_decoder_layers", "num_layers", same_as="num_layers"),
        *HEADS,
        *in_both(
            Set({"attention.kind": "softmax", "residual.kind": "pre"}),
            Set({"norm.kind": "rms", "norm.weight": "plain", "norm.scale_in": "input_dtype"}),
            Field("layer_norm_epsilon", "norm.eps"),
            Set({"position.kind": "t5"}),
            Field("relative_attention_num_buckets", "position.num_buckets"),
            Field("relative_attention_max_distance", "position.max_distance"),
            Set({"position.shared": True}),
            FEEDFORWARD,
            Field("d_ff", "feedforward.hidden_dim"),
        ),
        *DROPOUTS,
        Refuse("is_decoder", (False,)),
        Computed(read_head, _write_head, "tie_word_embeddings"),
    ),
    layers="decoder.block.{i}.",
    layer_keys=DECODER,
    encoder_layers="encoder.block.{i}.",
    encoder_layer_keys=ENCODER,
    model_keys={
        "shared": "embedding",
        f"encoder.block.0.{_bias()}": "encoder.relatives.relative_0.table",
        f"decoder.block.0.{_bias()}": "relatives.relative_0.table",
        "encoder.final_layer_norm": "encoder.norm",
        "decoder.final_layer_norm": "norm",
        "lm_head": "head",
    },
    prefix="",
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    endings={f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")},
    undeclared={"n_positions": 512, "tie_word_embeddings": True},
)

MT5 = T5.derive("mt5", "MT5ForConditionalGeneration", TIED)

UMT5 = T5.derive(
    "umt5",
    "UMT5ForConditionalGeneration",
    TIED,
    Computed(lambda config: {"head": _scaled(config)}),
    *in_both(Set({"position.shared": False})),
)


def _sparse(number: str) -> CustomPattern:
    """Return the pattern with config[number] sparse layers: the second layer of each group."""

    def read(config: Config, num_layers: int) -> list[str]:
        return _roles(num_layers, config[number])

    def write(roles: list[str]) -> dict[str, Any]:
        n = len(roles)
        return next(({number: k} for k in range(1, n + 1) if _roles(n, k) == roles), {})

    return CustomPattern(read, write)


def _roles(num_layers: int, sparse: int) -> list[str]:
    step = num_layers // sparse if sparse > 0 else num_layers
    return ["sparse" if i % step == 1 or step == 1 else "dense" for i in range(num_layers)]


def _mixed(number: str) -> Layers:
    """Return the lenses of a stack with config[number] sparse layers; all other layers are dense."""
    dense = (
        Activation("dense_act_fn", gated=False),
        Field("d_ff", "feedforward.hidden_dim"),
        Field("dropout_rate", "feedforward.dropout"),
    )
    experts = (
        Set({"feedforward.top_k": 1, "feedforward.normalize_weights": False}),
        Field("num_experts", "feedforward.num_experts"),
        Field("expert_capacity", "feedforward.capacity"),
        flag("router_bias", {"feedforward.router_bias": True}),
        Refuse("router_dtype", ("float32",)),
        Field("router_aux_loss_coef", "feedforward.balance_loss"),
        Field("router_z_loss_coef", "feedforward.router_z_loss"),
        Activation("dense_act_fn", gated=False, path="feedforward.expert"),
        Field("d_ff", "feedforward.expert.hidden_dim"),
        Field("dropout_rate", "feedforward.expert.dropout"),
    )
    return Layers(
        _sparse(number),
        {"sparse": Role({"feedforward.kind": "experts"}, experts), "dense": Role({}, dense)},
    )


def _switch_layer(feedforward: str) -> dict[str, Mapped]:
    experts = f"{feedforward}.mlp.experts.expert_{{e}}"
    return {
        **layer_names(feedforward, inner="mlp"),
        f"{feedforward}.mlp.router.classifier": "feedforward.router",
        f"{experts}.wi": "feedforward.experts.up",
        f"{experts}.wo": "feedforward.experts.down",
    }


SWITCH_TRANSFORMERS = T5.derive(
    "switch_transformers",
    "SwitchTransformersForConditionalGeneration",
    Computed(
        read_head, lambda get: {"tie_word_embeddings": get("head.tied")}, "tie_word_embeddings"
    ),
    Field("dropout_rate", ("embedding.dropout", "cross_attention.dropout")),
    *in_both(Field("dropout_rate", ("residual.dropout", "attention.dropout"))),
    groups=(_mixed("num_sparse_decoder_layers"),),
    encoder_groups=(_mixed("num_sparse_encoder_layers"),),
    layer_keys={**_switch_layer("layer.2"), **CROSS_ATTENTION},
    encoder_layer_keys=_switch_layer("layer.1"),
)
"""Router losses follow the paper: one per layer, over all sequences. transformers has one per sequence, over layers."""
