"""The decoder of ModernBERT: LayerNorm, a head with a map of its own, and RoPE of another base in windows."""

from typing import Any

from archwright.hf.families.common import (
    ATTENTION_BIAS,
    CAUSAL,
    DROPOUT,
    GATE_UP,
    HIDDEN,
    MLP_BIAS,
    SIZES,
    SOFTMAX,
    TIED,
    WINDOW,
)
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, first_of
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Set,
    Switch,
    Table,
    Write,
    nested,
)
from archwright.hf.rope import Rope

NORMS = ("norm", "embedding.norm", "head.transform.norm")


FUNCTIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"}


def _read_window(config: Config) -> Table:
    return nested("attention.mask.size", config["local_attention"] // 2)


def _write_window(get: Get) -> dict[str, Any]:
    size = get("attention.mask.size")
    return {} if size is MISSING else {"local_attention": size * 2}


def _one_of(config: Config, num_layers: int) -> list[str]:
    return first_of(config["global_attn_every_n_layers"])(config, num_layers)


MODERNBERT_DECODER = Family(
    "modernbert-decoder",
    "ModernBertDecoderForCausalLM",
    lenses=(
        *SIZES,
        Set({"residual.kind": "pre", "norm.kind": "layer", "embedding.norm.kind": "layer"}),
        Set({"head.transform.kind": "dense", "head.transform.norm.kind": "layer"}),
        Field("norm_eps", tuple(f"{norm}.eps" for norm in NORMS)),
        Field("norm_bias", tuple(f"{norm}.bias" for norm in NORMS)),
        SOFTMAX,
        ATTENTION_BIAS,
        DROPOUT,
        Field("embedding_dropout", "embedding.dropout"),
        Activation("hidden_activation", gated=True),
        HIDDEN,
        Field("mlp_dropout", "feedforward.dropout"),
        MLP_BIAS,
        Switch(
            "classifier_activation",
            {key: Set({"head.transform.activation": f}) for key, f in FUNCTIONS.items()},
        ),
        Field("classifier_bias", "head.transform.bias"),
        Field("decoder_bias", "head.bias"),
        TIED,
        # The class demands them.
        Write({"bos_token_id": 0, "pad_token_id": 0, "cls_token_id": 0, "sep_token_id": 0}),
    ),
    layers="model.layers.{i}.",
    layer_keys={
        "attn_norm": "residual.norms.attention",
        "mlp_norm": "residual.norms.feedforward",
        "attn.q_proj": "attention.query",
        "attn.k_proj": "attention.key",
        "attn.v_proj": "attention.value",
        "attn.Wo": "attention.out",
        "mlp.Wi": GATE_UP,
        "mlp.Wo": "feedforward.down",
    },
    model_keys={
        "model.embeddings.tok_embeddings": "embedding",
        "model.embeddings.norm": "embedding_norm",
        "model.final_norm": "norm",
        "lm_head.dense": "head.transform.dense",
        "lm_head.norm": "head.transform.norm",
        "decoder": "head",
    },
    groups=(
        Layers(
            Listed(otherwise=_one_of),
            {
                "full_attention": Role(
                    CAUSAL.values,
                    (Rope(fraction="", theta="global_rope_theta", layer_type="full_attention"),),
                ),
                "sliding_attention": Role(
                    WINDOW.values,
                    (
                        Computed(_read_window, _write_window),
                        Rope(fraction="", theta="local_rope_theta", layer_type="sliding_attention"),
                    ),
                ),
            },
        ),
        Layers(
            CustomPattern(lambda config, n: ["first"] + ["later"] * (n - 1), lambda roles: {}),
            {
                "later": Role({"residual.skip_norm": "none"}),
                "first": Role({"residual.skip_norm": "attention"}),
            },
        ),
    ),
    undeclared={
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    },
)
