"""ModernBERT and its decoder variant, with a separate RoPE theta in windows."""

from archwright.hf.families import common
from archwright.hf.families.bert import HEAD_ACTIVATIONS
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, first_of
from archwright.hf.layouts import Rows
from archwright.hf.lenses import Activation, Computed, Field, Set, Switch, Write, converted
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused

NORMS = ("norm", "embedding.norm", "head.transform.norm")


TYPES = Listed(
    otherwise=lambda config, n: first_of(config["global_attn_every_n_layers"])(config, n)
)
FIRST_WITHOUT_NORM = Layers(
    CustomPattern(lambda config, n: ["first"] + ["later"] * (n - 1), lambda roles: {}),
    {
        "later": Role({"residual.skip_norm": "none"}),
        "first": Role({"residual.skip_norm": "attention"}),
    },
)
FULL_ROPE = Rope(fraction="", theta="global_rope_theta", layer_type="full_attention")
LOCAL_ROPE = Rope(fraction="", theta="local_rope_theta", layer_type="sliding_attention")


def _local(option: str) -> Computed:
    """Return the lens of a mask option equal to half of `local_attention`."""
    path = f"attention.mask.{option}"
    return converted("local_attention", path, lambda width: width // 2, lambda reach: reach * 2)


MODERNBERT_DECODER = Family(
    "modernbert-decoder",
    "ModernBertDecoderForCausalLM",
    lenses=(
        *common.SIZES,
        Set({"residual.kind": "pre", "norm.kind": "layer", "embedding.norm.kind": "layer"}),
        Set({"head.transform.kind": "dense", "head.transform.norm.kind": "layer"}),
        Field("norm_eps", tuple(f"{norm}.eps" for norm in NORMS)),
        Field("norm_bias", tuple(f"{norm}.bias" for norm in NORMS)),
        common.SOFTMAX,
        common.ATTENTION_BIAS,
        common.DROPOUT,
        Field("embedding_dropout", "embedding.dropout"),
        Activation("hidden_activation", gated=True),
        common.HIDDEN,
        Field("mlp_dropout", "feedforward.dropout"),
        common.MLP_BIAS,
        Switch(
            "classifier_activation",
            {key: Set({"head.transform.activation": f}) for key, f in HEAD_ACTIVATIONS.items()},
        ),
        Field("classifier_bias", "head.transform.bias"),
        Field("decoder_bias", "head.bias"),
        common.TIED,
        # Required by the class.
        Write({"bos_token_id": 0, "pad_token_id": 0, "cls_token_id": 0, "sep_token_id": 0}),
    ),
    layers="model.layers.{i}.",
    layer_keys={
        "attn_norm": "residual.norms.{mixer}",
        "mlp_norm": "residual.norms.feedforward",
        **common.attention_names("attn", maps=("q_proj", "k_proj", "v_proj", "Wo")),
        "mlp.Wi": common.GATE_UP,
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
        Layers(TYPES, common.by_type((FULL_ROPE,), (LOCAL_ROPE,), window=(_local("size"),))),
        FIRST_WITHOUT_NORM,
    ),
    undeclared={
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
    },
)

MODERNBERT = MODERNBERT_DECODER.derive(
    "modernbert",
    "ModernBertForMaskedLM",
    groups=(
        Layers(
            TYPES,
            {
                "full_attention": Role({"attention.mask.kind": "full"}, (FULL_ROPE,)),
                "sliding_attention": Role(
                    {"attention.mask.kind": "symmetric_window"}, (_local("radius"), LOCAL_ROPE)
                ),
            },
        ),
        FIRST_WITHOUT_NORM,
    ),
    layer_keys={"attn.Wqkv": Fused(common.QKV, Rows())},
    model_keys={
        "head.dense": "head.transform.dense",
        "head.norm": "head.transform.norm",
        "decoder": "head",
    },
)
