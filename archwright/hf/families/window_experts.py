"""Mixtures with windows beside full attention, which score by sigmoids: K-EXAONE, Trinity and MiMo-V2."""

from archwright.hf.families.experts import (
    BASE,
    QUERY_KEY_NORM,
    experts,
    gated,
    listed,
    qk_norm,
    sparse,
)
from archwright.hf.families.llama import ATTENTION_BIAS, CAUSAL, KV_HEADS, ROPE, WINDOW, bias
from archwright.hf.families.sigmoid_experts import (
    FIRST_DENSE,
    FIRST_OF_LIST,
    NAMES,
    SIGMOID,
    routed,
    shared,
)
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role
from archwright.hf.lenses import Computed, Config, Field, Lens, Refuse, Set, Switch, Table, nested
from archwright.hf.rope import Rope

NEAR = Role({**WINDOW.values, "position.kind": "rope"}, (*WINDOW.lenses, ROPE))
FAR = Role({**CAUSAL.values, "position.kind": "none"})
NEAR_TURNED = {"sliding_attention": NEAR, "full_attention": FAR}
"""Windows with positions, and full attention without."""


def _each(key: str) -> Listed:
    """Return a list of types, or windows in all layers but each config[key]-th."""
    return Listed(
        otherwise=lambda config, n: [
            "sliding_attention" if (i + 1) % int(config[key]) else "full_attention"
            for i in range(n)
        ]
    )


EXAONE_MOE = BASE.derive(
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    *qk_norm("head"),
    groups=(
        Layers(_each("sliding_window_pattern"), NEAR_TURNED),
        sparse(
            Listed("mlp_layer_types", FIRST_DENSE.reads),
            *routed("num_experts", shared("num_shared_experts")),
        ),
    ),
    layer_keys={
        **NAMES,
        **QUERY_KEY_NORM,
        "mlp.gate.e_score_correction_bias": None,
        "mlp.e_score_correction_bias": "feedforward.selection_bias",
    },
    ignored=(*BASE.ignored, r"mtp.*"),
)

AFMOE = BASE.derive(
    "afmoe",
    "AfmoeForCausalLM",
    ATTENTION_BIAS,
    Set({"residual.kind": "sandwich", "norm.scale_in": "float32", "attention.gate": "value"}),
    *qk_norm("head", "float32"),
    Switch(
        "mup_enabled",
        {True: Set({"embedding.scale": "sqrt_dim"}), False: Set({"embedding.scale": "none"})},
    ),
    Refuse("score_func", ("sigmoid",)),
    Refuse("route_norm", (True,)),
    groups=(
        Layers(_each("global_attn_every_n_layers"), NEAR_TURNED),
        sparse(
            CustomPattern(
                lambda config, n: [
                    "dense" if i < config["num_dense_layers"] else "sparse" for i in range(n)
                ],
                lambda roles: {"num_dense_layers": [*roles, "sparse"].index("sparse")},
            ),
            *experts("num_experts", "moe_intermediate_size", **SIGMOID),
            Field("route_scale", "feedforward.routed_scaling_factor"),
            shared("num_shared_experts"),
        ),
    ),
    layer_keys={
        "post_attention_layernorm": "residual.out_norms.attention",
        "pre_mlp_layernorm": "residual.norms.feedforward",
        "post_mlp_layernorm": "residual.out_norms.feedforward",
        "self_attn.gate_proj": "attention.gate",
        "mlp.router.gate": "feedforward.router",
        "mlp.expert_bias": "feedforward.selection_bias",
        **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        **gated("mlp.shared_experts", "feedforward.shared"),
        **QUERY_KEY_NORM,
    },
    undeclared={"score_func": "sigmoid", "route_norm": True},
)


def _window(config: Config) -> Table:
    """Return the window, which old files count without the query's own key."""
    others = config["sliding_window_size"]
    size = config["sliding_window"] if others is None else others + 1
    return nested("attention.mask.size", size)


def _by_type(layer_type: str, sinks: bool, heads: int) -> tuple[Lens, ...]:
    """Return what differs between windows and full attention."""
    return (
        Rope(layer_type=layer_type, scaled=False),
        Set({"attention.sinks": sinks}),
        Field("num_key_value_heads", "attention.num_kv_heads", times=heads),
    )


MIMO_V2_FLASH = BASE.derive(
    "mimo_v2_flash",
    "MiMoV2FlashForCausalLM",
    bias("attention_bias", "attention", "query", "key", "value"),
    Field("v_head_dim", "attention.value_head_dim"),
    Field("attention_value_scale", "attention.value_scale"),
    without=(ROPE, KV_HEADS),
    groups=(
        Layers(
            Listed(
                otherwise=lambda config, n: [
                    "sliding_attention" if i and (i + 1) % 6 else "full_attention" for i in range(n)
                ]
            ),
            {
                "full_attention": Role(CAUSAL.values, _by_type("full_attention", False, 1)),
                "sliding_attention": Role(
                    WINDOW.values,
                    (
                        Computed(
                            _window, lambda get: {"sliding_window": get("attention.mask.size")}
                        ),
                        *_by_type("sliding_attention", True, 2),
                    ),
                ),
            },
        ),
        sparse(FIRST_OF_LIST, *routed("n_routed_experts")),
    ),
    layer_keys={
        **NAMES,
        **dict.fromkeys(gated("mlp.shared_experts", "")),
        "self_attn.attention_sink_bias": "attention.sinks",
    },
    ignored=(*BASE.ignored, r"model\.mtp\..*"),
    key_aliases={"num_local_experts": "n_routed_experts"},
    undeclared={
        "partial_rotary_factor": 0.334,
        "rope_parameters": {
            "full_attention": {"rope_theta": 5000000.0},
            "sliding_attention": {"rope_theta": 10000.0},
        },
        "sliding_window_size": None,
    },
)

WINDOW_EXPERTS_FAMILIES = (EXAONE_MOE, AFMOE, MIMO_V2_FLASH)
