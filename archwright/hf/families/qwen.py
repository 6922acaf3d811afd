"""Qwen: Llama with biases of queries, keys and values, or with their norms, and windows in the upper layers."""

from archwright.hf.families.llama import (
    ATTENTION_BIAS,
    EPS,
    LLAMA,
    MLP_BIAS,
    NO_MLP_BIAS,
    QKV_BIAS,
    ROLES,
)
from archwright.hf.layer_types import CustomPattern, Layers, Listed
from archwright.hf.lenses import Config, Field, Set

HEAD_NORMS = {
    "attention.qk_norm.kind": "rms",
    "attention.qk_norm.scale_in": "input_dtype",
    "attention.qk_norm_over": "head",
    "attention.qk_norm_position": "before",
}
"""Norms of queries and keys, as most families have them."""
ALL_EPS = Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps"))
HEAD_NORM_NAMES = {
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}


def _upper_layers(config: Config, num_layers: int) -> list[str]:
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    first = config["max_window_layers"] if slides else num_layers
    return ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]


def switched(pattern: Listed) -> CustomPattern:
    """Return a pattern that says in a key of its own whether there is any window."""
    return CustomPattern(
        pattern.read,
        lambda roles: {
            "layer_types": roles,
            "use_sliding_window": "sliding_attention" in roles,
        },
    )


UPPER_LAYERS = switched(Listed(otherwise=_upper_layers))
"""Windows from layer `max_window_layers` on, if they are switched on."""

QWEN2 = LLAMA.derive(
    "qwen2",
    "Qwen2ForCausalLM",
    Set(QKV_BIAS | {"attention.bias.out": False}),
    NO_MLP_BIAS,
    without=(ATTENTION_BIAS, MLP_BIAS),
    groups=(Layers(UPPER_LAYERS, ROLES),),
)

QWEN3 = LLAMA.derive(
    "qwen3",
    "Qwen3ForCausalLM",
    Set(HEAD_NORMS),
    ALL_EPS,
    NO_MLP_BIAS,
    without=(EPS, MLP_BIAS),
    layer_keys=HEAD_NORM_NAMES,
    groups=QWEN2.groups,
)

QWEN_FAMILIES = (QWEN2, QWEN3)
