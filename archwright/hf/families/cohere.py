"""Command R: attention and feed-forward side by side behind one norm, and logits times a number."""

from archwright.hf.families.llama import (
    EPS,
    LLAMA,
    MLP_BIAS,
    NO_MLP_BIAS,
    PRE_RMS,
    ROPE,
    WINDOW,
)
from archwright.hf.families.qwen import HEAD_NORM_NAMES
from archwright.hf.layer_types import Layers, Listed, Role, every_by
from archwright.hf.lenses import Field, Set, Switch
from archwright.hf.rope import Rope

INTERLEAVED = Rope(pairing="interleaved", fraction="")
NORMS_OF_EACH = {
    "attention.qk_norm.kind": "layer",
    "attention.qk_norm.bias": False,
    "attention.qk_norm_over": "per_head",
}

COHERE = LLAMA.derive(
    "cohere",
    "CohereForCausalLM",
    Set({"residual.kind": "parallel", "residual.num_norms": 1}),
    Set({"norm.kind": "layer", "norm.bias": False}),
    Field("layer_norm_eps", "norm.eps"),
    INTERLEAVED,
    Switch(
        "use_qk_norm",
        {
            True: (Set(NORMS_OF_EACH), Field("layer_norm_eps", "attention.qk_norm.eps")),
            False: Set({"attention.qk_norm.kind": "none"}),
        },
    ),
    Field("logit_scale", "head.logit_scale"),
    NO_MLP_BIAS,
    without=(PRE_RMS, EPS, ROPE, MLP_BIAS),
    layer_keys={
        "input_layernorm": "residual.norms.shared",
        "post_attention_layernorm": None,
        **HEAD_NORM_NAMES,
    },
)


COHERE2 = COHERE.derive(
    "cohere2",
    "Cohere2ForCausalLM",
    without=(
        INTERLEAVED,
        *(lens for lens in COHERE.lenses if isinstance(lens, Switch) and lens.key == "use_qk_norm"),
    ),
    layer_keys=dict.fromkeys(HEAD_NORM_NAMES),
    groups=(
        Layers(
            Listed(otherwise=every_by("sliding_window_pattern")),
            {
                "sliding_attention": Role(WINDOW.values, (*WINDOW.lenses, INTERLEAVED)),
                "full_attention": Role({"attention.mask.kind": "causal", "position.kind": "none"}),
            },
        ),
    ),
    undeclared={"sliding_window_pattern": 4, "use_qk_norm": False},
)

COHERE_FAMILIES = (COHERE, COHERE2)
