"""Mixtures that score by sigmoids and choose with a bias of their own, as DeepSeek V3 does: MiniMax-M2,
GLM-4.5, dots.llm1, Solar Open and Hunyuan 3."""

from typing import Any

from archwright.hf.families.experts import (
    BASE,
    NO_DENSE,
    QUERY_KEY_NORM,
    balance,
    experts,
    gated,
    listed,
    qk_norm,
    sparse,
)
from archwright.hf.families.llama import (
    ATTENTION_BIAS,
    NO_QKV_BIAS,
    QKV_BIAS,
    ROLES,
    ROPE,
)
from archwright.hf.layer_types import CustomPattern, Layers, Listed
from archwright.hf.lenses import (
    Computed,
    Config,
    Either,
    Field,
    Get,
    Lens,
    Refuse,
    Set,
    Switch,
    Table,
    nested,
)
from archwright.hf.rope import Rope

SIGMOID: dict[str, Any] = {"routing": "sigmoid", "selection_bias": True, "balance_loss": 0.0}
QKV = Switch("attention_bias", {True: Set(QKV_BIAS), False: Set(NO_QKV_BIAS)})


def shared(key: str, hidden: str = "moe_intermediate_size", *, optional: bool = False) -> Lens:
    """Return the lens of shared experts, which are as wide as so many others.

    Args:
        optional: there may be none.
    """

    def read(config: Config) -> Table:
        number = config[key] or 0
        if optional and not number:
            return {}
        return {"feedforward": {"shared": "added", "shared_hidden_dim": number * config[hidden]}}

    def write(get: Get) -> dict[str, Any]:
        if get("feedforward.shared") not in ("added", "averaged"):
            return {key: 0} if optional else {}
        number, rest = divmod(
            get("feedforward.shared_hidden_dim"), get("feedforward.expert.hidden_dim")
        )
        return {} if rest else {key: number}

    return Computed(read, write)


def _read_groups(config: Config) -> Table:
    number = config["n_group"] or 1
    table: Table = {"num_groups": number, "top_groups": config["topk_group"] or 1}
    return {"feedforward": table | ({"group_score": "top_two"} if number > 1 else {})}


def _write_groups(get: Get) -> dict[str, Any]:
    return {"n_group": get("feedforward.num_groups"), "topk_group": get("feedforward.top_groups")}


GROUPS = Computed(_read_groups, _write_groups)
"""Groups of experts by their best two, of which there is none where there is one group."""


def routed(number: str, *lenses: Lens, scale: str = "routed_scaling_factor") -> tuple[Lens, ...]:
    """Return the lenses of a router of DeepSeek V3."""
    return (
        *experts(number, "moe_intermediate_size", **SIGMOID),
        Field("norm_topk_prob", "feedforward.normalize_weights"),
        Field(scale, "feedforward.routed_scaling_factor"),
        GROUPS,
        *lenses,
    )


FIRST_DENSE = CustomPattern(
    lambda config, n: [
        "dense" if i < config["first_k_dense_replace"] else "sparse" for i in range(n)
    ],
    lambda roles: {"first_k_dense_replace": [*roles, "sparse"].index("sparse")},
)
FIRST_OF_LIST = Listed(
    "mlp_layer_types", lambda config, n: ["dense" if i < 1 else "sparse" for i in range(n)]
)
NAMES = {
    "mlp.gate": "feedforward.router",
    "mlp.gate.e_score_correction_bias": "feedforward.selection_bias",
    **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    **gated("mlp.shared_experts", "feedforward.shared"),
}
"""Names of a mixture's tensors in files of most of these families."""
FURTHER = r"model\.layers\.(?P<layer>\d+)\..*"
"""Layers behind the last, which predict further tokens."""

GLM4_MOE = BASE.derive(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    Rope(),
    QKV,
    Either(
        lambda config: config["use_qk_norm"],
        lambda get: get("attention.qk_norm.kind") != "none",
        (*qk_norm("head"), Refuse("use_qk_norm", (True,))),
        (Refuse("use_qk_norm", (False,)),),
    ),
    without=(ROPE,),
    groups=(sparse(FIRST_DENSE, *routed("n_routed_experts", shared("n_shared_experts"))),),
    layer_keys={**NAMES, **QUERY_KEY_NORM},
    ignored=(*BASE.ignored, FURTHER),
    key_aliases={"num_local_experts": "n_routed_experts"},
    undeclared={"partial_rotary_factor": 0.5},
)


def _far(config: Config, n: int) -> list[str]:
    """Return which layers see a window: those from `max_window_layers` on."""
    first = n if config["sliding_window"] is None else config["max_window_layers"]
    return ["full_attention" if i < first else "sliding_attention" for i in range(n)]


DOTS1 = BASE.derive(
    "dots1",
    "Dots1ForCausalLM",
    ATTENTION_BIAS,
    *qk_norm("head"),
    groups=(
        Layers(Listed(otherwise=_far), ROLES),
        sparse(FIRST_DENSE, *routed("n_routed_experts", shared("n_shared_experts"))),
    ),
    layer_keys={**NAMES, **QUERY_KEY_NORM},
    key_aliases={"num_local_experts": "n_routed_experts"},
)

SOLAR_OPEN = BASE.derive(
    "solar_open",
    "SolarOpenForCausalLM",
    QKV,
    *routed("n_routed_experts", shared("n_shared_experts")),
    layer_keys=NO_DENSE | NAMES,
    key_aliases={"num_local_experts": "n_routed_experts"},
    undeclared={"intermediate_size": 11008},
)

HY_V3 = BASE.derive(
    "hy_v3",
    "HYV3ForCausalLM",
    ATTENTION_BIAS,
    *qk_norm("head"),
    Refuse("mlp_bias", (False,)),
    groups=(
        sparse(
            FIRST_OF_LIST,
            *experts("num_experts", "moe_intermediate_size", **SIGMOID),
            Field("router_scaling_factor", "feedforward.routed_scaling_factor"),
            shared("num_shared_experts"),
        ),
    ),
    layer_keys={
        "mlp.router.gate": "feedforward.router",
        "mlp.expert_bias": "feedforward.selection_bias",
        **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        **gated("mlp.shared_mlp", "feedforward.shared"),
        **QUERY_KEY_NORM,
    },
    ignored=(*BASE.ignored, FURTHER),
    key_aliases={"num_local_experts": "num_experts"},
)

MINIMAX_M2 = BASE.derive(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    Rope(),
    Computed(
        lambda config: (
            nested("position.fraction", config["rotary_dim"] / config["head_dim"])
            if config["rotary_dim"]
            else {}
        ),
        lambda get: {},
    ),
    *qk_norm("projection"),
    *experts("num_local_experts", "intermediate_size", **SIGMOID),
    balance(),
    without=(ROPE,),
    layer_keys=NO_DENSE
    | {
        "block_sparse_moe.gate": "feedforward.router",
        "block_sparse_moe.e_score_correction_bias": "feedforward.selection_bias",
        **QUERY_KEY_NORM,
    }
    | listed("block_sparse_moe.experts", "w1", "w3", "w2"),
    key_aliases={"num_experts": "num_local_experts"},
    undeclared={"rotary_dim": None},
)

SIGMOID_EXPERTS_FAMILIES = (
    SOLAR_OPEN,
    HY_V3,
    DOTS1,
    GLM4_MOE,
    MINIMAX_M2,
)
"""Special cases come first: a model is written as the first family that can hold it."""
