"""OLMo: norms without weights at first, then norms of what branches add; EXAONE 4 is built alike."""

from archwright.hf.families.llama import (
    ATTENTION_BIAS,
    CAUSAL,
    EPS,
    LLAMA,
    MLP_BIAS,
    NO_ATTENTION_BIAS,
    NO_MLP_BIAS,
    PRE_RMS,
    ROPE,
    WINDOW,
)
from archwright.hf.families.qwen import ALL_EPS, HEAD_NORM_NAMES, HEAD_NORMS
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every
from archwright.hf.lenses import Config, Field, Set
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Mapped

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


def _exaone_layers(config: Config, num_layers: int) -> list[str]:
    """Full layers have positions where no layer has a window, and none otherwise."""
    pattern = config["sliding_window_pattern"]
    whole = config["sliding_window"] is None or not pattern
    derived = every(num_layers + 1 if whole else pattern, "full_attention", "sliding_attention")
    names = config.get("layer_types") or derived(config, num_layers)
    turns = config["sliding_window"] is None
    return ["full_rope" if turns and name == "full_attention" else name for name in names]


EXAONE4 = LLAMA.derive(
    "exaone4",
    "Exaone4ForCausalLM",
    Set({"residual.kind": "output", "norm.kind": "rms", "norm.scale_in": "input_dtype"}),
    Set(HEAD_NORMS),
    ALL_EPS,
    NO_ATTENTION_BIAS,
    NO_MLP_BIAS,
    without=(PRE_RMS, EPS, ROPE, ATTENTION_BIAS, MLP_BIAS),
    layer_keys={**OUTPUT_NORM_NAMES, **HEAD_NORM_NAMES},
    groups=(
        Layers(
            CustomPattern(
                _exaone_layers,
                lambda roles: {
                    "layer_types": [role.replace("full_rope", "full_attention") for role in roles],
                    **({"sliding_window": None} if "full_rope" in roles else {}),
                },
            ),
            {
                "sliding_attention": Role(WINDOW.values, (*WINDOW.lenses, ROPE)),
                "full_attention": Role({"attention.mask.kind": "causal", "position.kind": "none"}),
                "full_rope": Role(
                    {"attention.mask.kind": "causal", "position.kind": "rope"}, (ROPE,)
                ),
            },
        ),
    ),
)

OLMO_FAMILIES = (OLMO, OLMO2, OLMO3, EXAONE4)
