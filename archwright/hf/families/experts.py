"""Mixtures of experts: Mixtral, and those of Qwen and OLMo; and what other files say of mixtures with."""

from typing import Any

from archwright.hf.families.llama import (
    ALL_OR_NONE,
    ATTENTION_BIAS,
    GATED,
    LLAMA,
    MLP_BIAS,
    NO_ATTENTION_BIAS,
    NO_MLP_BIAS,
    NO_QKV_BIAS,
    QKV_BIAS,
    ROLES,
)
from archwright.hf.layer_types import CustomPattern, Layers, MaskPattern, Role
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Field,
    Get,
    Lens,
    Refuse,
    Set,
    Switch,
    Table,
    lookup,
    nested,
)
from archwright.hf.weight_map import Mapped

QUERY_KEY_NORM = {
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}

BASE = LLAMA.derive("", "", NO_ATTENTION_BIAS, without=(ATTENTION_BIAS, MLP_BIAS))
"""Llama without the biases that it can be told of."""


def qk_norm(over: str, scale_in: str = "input_dtype", place: str = "before") -> tuple[Lens, ...]:
    """Return the lenses of an RMS norm of queries and keys with the eps of all norms."""
    values = {"kind": "rms", "scale_in": scale_in}
    return (
        Set({f"attention.qk_norm.{key}": value for key, value in values.items()}),
        Set({"attention.qk_norm_over": over, "attention.qk_norm_position": place}),
        Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps")),
    )


def experts(
    number: str, hidden: str, top_k: str = "num_experts_per_tok", routing: str = "", **fixed: Any
) -> tuple[Lens, ...]:
    """Return the lenses of a mixture, by the keys of how many experts there are, how wide each is, and how
    many of them a token goes through."""
    fixed |= {"routing.kind": routing} if routing else {}
    return (
        Set({"feedforward.kind": "experts", **{f"feedforward.{k}": v for k, v in fixed.items()}}),
        Field(number, "feedforward.num_experts"),
        Field(top_k, "feedforward.top_k"),
        Activation("hidden_act", gated=True, path="feedforward.expert"),
        Field(hidden, "feedforward.expert.hidden_dim"),
    )


def balance(key: str = "router_aux_loss_coef", top_k: str = "num_experts_per_tok") -> Lens:
    """Return the lens of the balance loss, which is of all layers together, and whose f_e adds up to top_k
    there and to 1 here."""

    def read(config: Config) -> Table:
        loss = lookup(config, key) * lookup(config, top_k)
        return {"feedforward": {"balance_loss": loss, "balance_over": "model"}}

    def write(get: Get) -> dict[str, Any]:
        loss = get("feedforward.balance_loss")
        return {} if loss is MISSING else nested(key, loss / get("feedforward.top_k"))

    return Computed(read, write)


def dense(*lenses: Lens, hidden: str = "intermediate_size") -> Role:
    """Return the role of layers without experts; the last of its group, as nothing tells it."""
    return Role({}, (GATED, Field(hidden, "feedforward.hidden_dim"), NO_MLP_BIAS, *lenses))


def sparse(pattern: MaskPattern, *lenses: Lens, other: Role | None = None) -> Layers:
    """Return the group of layers with experts and without."""
    roles = {"sparse": Role({"feedforward.kind": "experts"}, lenses), "dense": other or dense()}
    return Layers(pattern, roles)


def listed(prefix: str, gate: str, up: str, down: str) -> dict[str, Mapped]:
    """Return the names of experts that have tensors of their own."""
    names = {gate: "gate", up: "up", down: "down"}
    return {f"{prefix}.{{e}}.{n}": f"feedforward.experts.{ours}" for n, ours in names.items()}


def gated(prefix: str, ours: str) -> dict[str, Mapped]:
    """Return the names of one gated feed-forward."""
    return {f"{prefix}.{name}_proj": f"{ours}.{name}" for name in ("gate", "up", "down")}


NO_DENSE: dict[str, Mapped | None] = dict.fromkeys(gated("mlp", "feedforward"))
"""Takes away the names of Llama's feed-forward."""

MIXTRAL = BASE.derive(
    "mixtral",
    "MixtralForCausalLM",
    *experts("num_local_experts", "intermediate_size"),
    balance(),
    groups=(Layers(ALL_OR_NONE, ROLES),),
    layer_keys=NO_DENSE
    | {"block_sparse_moe.gate": "feedforward.router"}
    | listed("block_sparse_moe.experts", "w1", "w3", "w2"),
    key_aliases={"num_experts": "num_local_experts"},
)


def _stepped(config: Config, n: int) -> list[str]:
    """Return which layers have experts: each `decoder_sparse_step`-th but for some."""
    left_out, step = config["mlp_only_layers"] or (), config["decoder_sparse_step"]
    return ["dense" if i in left_out or (i + 1) % step else "sparse" for i in range(n)]


STEPPED = CustomPattern(
    _stepped,
    lambda roles: {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, role in enumerate(roles) if role == "dense"],
    },
)


def _alternating(config: Config, n: int) -> list[str]:
    if not config["use_sliding_window"]:
        return ["full_attention"] * n
    if config["layer_types"]:
        return list(config["layer_types"])
    near = config["max_window_layers"]
    return ["full_attention" if i % 2 or i >= near else "sliding_attention" for i in range(n)]


QWEN2_MOE = BASE.derive(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    Switch("qkv_bias", {True: Set(QKV_BIAS), False: Set(NO_QKV_BIAS)}),
    groups=(
        Layers(
            CustomPattern(
                _alternating,
                lambda roles: {
                    "layer_types": roles,
                    "use_sliding_window": "sliding_attention" in roles,
                },
            ),
            ROLES,
        ),
        sparse(
            STEPPED,
            *experts("num_experts", "moe_intermediate_size", shared="gated"),
            Field("norm_topk_prob", "feedforward.normalize_weights"),
            Field("shared_expert_intermediate_size", "feedforward.shared_hidden_dim"),
            balance(),
        ),
    ),
    layer_keys={
        "mlp.gate": "feedforward.router",
        "mlp.shared_expert_gate": "feedforward.shared_gate",
        **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        **gated("mlp.shared_expert", "feedforward.shared"),
    },
)

QWEN3_MOE = BASE.derive(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    ATTENTION_BIAS,
    *qk_norm("head"),
    groups=(
        Layers(
            CustomPattern(
                lambda config, n: (
                    [
                        "sliding_attention"
                        if config["use_sliding_window"] and config["sliding_window"]
                        else "full_attention"
                    ]
                    * n
                ),
                lambda roles: {"use_sliding_window": "sliding_attention" in roles},
            ),
            ROLES,
        ),
        sparse(
            STEPPED,
            *experts("num_experts", "moe_intermediate_size"),
            Field("norm_topk_prob", "feedforward.normalize_weights"),
            balance(),
        ),
    ),
    layer_keys={
        "mlp.gate": "feedforward.router",
        **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        **QUERY_KEY_NORM,
    },
    key_aliases={"num_local_experts": "num_experts"},
)

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

EXPERTS_FAMILIES = (
    MIXTRAL,
    QWEN2_MOE,
    QWEN3_MOE,
    OLMOE,
    FLEX_OLMO,
)
