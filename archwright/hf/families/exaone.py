"""LG EXAONE: norms of branch outputs, and RoPE only in sliding windows."""

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.olmo import OUTPUT_NORM_NAMES
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every, every_by
from archwright.hf.lenses import Config, Set


def _exaone_layers(config: Config, num_layers: int) -> list[str]:
    """Return the layer types; without windows, full layers have RoPE."""
    pattern = config["sliding_window_pattern"]
    all_sliding = config["sliding_window"] is None or not pattern
    derived = every(num_layers + 1 if all_sliding else pattern)
    names = config.get("layer_types") or derived(config, num_layers)
    turns = config["sliding_window"] is None
    return ["full_rope" if turns and name == "full_attention" else name for name in names]


EXAONE4 = LLAMA.derive(
    "exaone4",
    "Exaone4ForCausalLM",
    Set({"residual.kind": "output", "norm.kind": "rms", "norm.scale_in": "input_dtype"}),
    *common.qk_norm(),
    layer_keys=OUTPUT_NORM_NAMES,
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
                "sliding_attention": Role(
                    common.WINDOW.values, (*common.WINDOW.lenses, common.ROPE)
                ),
                "full_attention": Role({"attention.mask.kind": "causal", "position.kind": "none"}),
                "full_rope": Role(
                    {"attention.mask.kind": "causal", "position.kind": "rope"}, (common.ROPE,)
                ),
            },
        ),
    ),
)

EXAONE_MOE = LLAMA.derive(
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    *common.qk_norm(),
    groups=(
        Layers(
            Listed(otherwise=every_by("sliding_window_pattern")),
            common.rope_in_windows(common.ROPE),
        ),
        common.sparse(
            Listed("mlp_layer_types", common.FIRST_DENSE.read),
            *common.routed("num_experts", common.shared("num_shared_experts")),
        ),
    ),
    layer_keys={
        **common.UNBIASED_EXPERT_NAMES,
        "mlp.e_score_correction_bias": "feedforward.selection_bias",
    },
    ignored=(*LLAMA.ignored, r"mtp.*"),
)
