"""OLMo: norms without weights at first, then norms of what branches add; and mixtures of experts."""

from archwright.hf.families.common import (
    ALL_EPS,
    ATTENTION_BIAS,
    CAUSAL,
    EPS,
    HEAD_NORM_NAMES,
    HEAD_NORMS,
    MLP_BIAS,
    NO_DENSE,
    NO_MLP_BIAS,
    PRE_RMS,
    QUERY_KEY_NORM,
    ROPE,
    WINDOW,
    balance,
    experts,
    listed,
    qk_norm,
)
from archwright.hf.families.llama import BASE, LLAMA
from archwright.hf.layer_types import Layers, Listed, Role, every
from archwright.hf.lenses import Field, Refuse, Set
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Mapped

OLMOE = BASE.derive(
    "olmoe",
    "OlmoeForCausalLM",
    # The norm of all queries has dim weights, so that heads share out dim.
    Set({"attention.head_dim": "auto"}),
    ATTENTION_BIAS,
    *qk_norm("projection"),
    Refuse("clip_qkv", (None,)),
    *experts("num_experts", "intermediate_size"),
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    balance(),
    layer_keys=NO_DENSE
    | {"mlp.gate": "feedforward.router", **QUERY_KEY_NORM}
    | listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    key_aliases={"num_local_experts": "num_experts"},
)


FLEX_OLMO = BASE.derive(
    "flex_olmo",
    "FlexOlmoForCausalLM",
    ATTENTION_BIAS,
    Set({"residual.kind": "output", "norm.scale_in": "input_dtype"}),
    *qk_norm("projection"),
    *experts("num_experts", "intermediate_size"),
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    balance(),
    layer_keys=NO_DENSE
    | {
        "input_layernorm": None,
        "post_attention_layernorm": "residual.norms.attention",
        "post_feedforward_layernorm": "residual.norms.feedforward",
        "mlp.gate": "feedforward.router",
        **QUERY_KEY_NORM,
    }
    | listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    key_aliases={"num_local_experts": "num_experts"},
)


OLMO = LLAMA.derive(
    "olmo",
    "OlmoForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.eps": 1e-5}),
    Set({"norm.weight": "none", "norm.bias": False}),
    Field("clip_qkv", "attention.qkv_clip", or_none=True),
    NO_MLP_BIAS,
    without=(PRE_RMS, EPS, MLP_BIAS),
)


OUTPUT_NORM_NAMES: dict[str, Mapped | None] = {
    "input_layernorm": None,
    "post_attention_layernorm": "residual.norms.attention",
    "post_feedforward_layernorm": "residual.norms.feedforward",
}


OLMO2 = LLAMA.derive(
    "olmo2",
    "Olmo2ForCausalLM",
    Set({"residual.kind": "output", "norm.kind": "rms", "norm.scale_in": "float32"}),
    Set(HEAD_NORMS),
    Set({"attention.qk_norm_over": "projection", "attention.qk_norm.scale_in": "float32"}),
    ALL_EPS,
    NO_MLP_BIAS,
    without=(PRE_RMS, EPS, MLP_BIAS),
    layer_keys={**OUTPUT_NORM_NAMES, **HEAD_NORM_NAMES},
)


OLMO3 = OLMO2.derive(
    "olmo3",
    "Olmo3ForCausalLM",
    without=(ROPE,),
    groups=(
        Layers(
            Listed(otherwise=every(4, "full_attention", "sliding_attention")),
            {
                "full_attention": Role(
                    CAUSAL.values, (Rope(fraction="", layer_type="full_attention"),)
                ),
                "sliding_attention": Role(
                    WINDOW.values,
                    (
                        *WINDOW.lenses,
                        Rope(fraction="", layer_type="sliding_attention", scaled=False),
                    ),
                ),
            },
        ),
    ),
)
