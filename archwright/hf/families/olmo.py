"""Ai2 OLMo 1 to 3, and OLMoE and FlexOlmo with experts."""

from archwright.hf.families.common import EXPERTS, balance, by_type, experts, qk_norm
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers, Listed, every
from archwright.hf.lenses import Field, Refuse, Set
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Mapped

OUTPUT_NORM_NAMES: dict[str, Mapped] = {
    "post_attention_layernorm": "residual.norms.{mixer}",
    "post_feedforward_layernorm": "residual.norms.feedforward",
}

OLMOE = LLAMA.derive(
    "olmoe",
    "OlmoeForCausalLM",
    # The norm over all queries has dim weights, so head_dim must be dim / num_heads.
    Set({"attention.head_dim": "auto"}),
    *qk_norm("projection"),
    Refuse("clip_qkv", (None,)),
    *experts("num_experts", "intermediate_size"),
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    balance(),
    layer_keys=EXPERTS,
)

FLEX_OLMO = LLAMA.derive(
    "flex_olmo",
    "FlexOlmoForCausalLM",
    Set({"residual.kind": "output", "norm.scale_in": "input_dtype"}),
    *qk_norm("projection"),
    *experts("num_experts", "intermediate_size"),
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    balance(),
    layer_keys=OUTPUT_NORM_NAMES | EXPERTS,
)

OLMO = LLAMA.derive(
    "olmo",
    "OlmoForCausalLM",
    Set({"residual.kind": "pre", "norm.kind": "layer", "norm.eps": 1e-5}),
    Set({"norm.weight": "none", "norm.bias": False}),
    Field("clip_qkv", "attention.qkv_clip", or_none=True),
)

OLMO2 = LLAMA.derive(
    "olmo2",
    "Olmo2ForCausalLM",
    Set({"residual.kind": "output", "norm.kind": "rms", "norm.scale_in": "float32"}),
    *qk_norm("projection", "float32"),
    layer_keys=OUTPUT_NORM_NAMES,
)

OLMO3 = OLMO2.derive(
    "olmo3",
    "Olmo3ForCausalLM",
    groups=(
        Layers(
            Listed(otherwise=every(4)),
            by_type(
                (Rope(fraction="", layer_type="full_attention"),),
                (Rope(fraction="", layer_type="sliding_attention", scaled=False),),
            ),
        ),
    ),
)
