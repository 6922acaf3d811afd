"""Lenses, layer patterns and tensor names shared by several families."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archwright.hf.layer_types import CustomPattern, Layers, Listed, MaskPattern, Role
from archwright.hf.layouts import ByGroup, Rows, Same, Transposed, View
from archwright.hf.lenses import (
    MISSING,
    Activation,
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
    lookup,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, Mapped
from archwright.spec.model_spec import LayerSpec

SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("hidden_size", "dim"),
    Field("num_hidden_layers", "num_layers"),
    Field("max_position_embeddings", "context_length"),
    Field("num_attention_heads", "attention.num_heads"),
)
"""Lenses of size keys common to most families."""

ROPE = Rope(fraction="")


def rope_in_some(without: str) -> CustomPattern:
    """Return a pattern of two types: `rope`, and `without` for layers without positions."""

    def read(config: Config, n: int) -> list[str]:
        listed, interval = config["no_rope_layers"], config["no_rope_layer_interval"]
        turned = listed[:n] if listed else [(i + 1) % interval for i in range(n)]
        return ["rope" if turns else without for turns in turned]

    return CustomPattern(
        read, lambda roles: {"no_rope_layers": [int(role == "rope") for role in roles]}
    )


QKV_BIASES = {f"attention.bias.{part}": True for part in ("query", "key", "value")}
NO_QKV_BIASES = dict.fromkeys(QKV_BIASES, False)
FEEDFORWARD_BIASES = {"feedforward.bias.up": True, "feedforward.bias.down": True}
ALL_BIASES = {**QKV_BIASES, "attention.bias.out": True, **FEEDFORWARD_BIASES}


def llama3(theta: float, factor: float) -> dict[str, Any]:
    """Return Llama 3's RoPE scaling, from an original context of 8,192 tokens."""
    keys = {"rope_type": "llama3", "rope_theta": theta, "factor": factor}
    lengths = {"original_max_position_embeddings": 8192}
    return keys | lengths | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


SOFTMAX = Set({"attention.kind": "softmax"})
DROPOUT = Field("attention_dropout", "attention.dropout")
GATED = Activation("hidden_act", gated=True)
HIDDEN = Field("intermediate_size", "feedforward.hidden_dim")
TIED = Field("tie_word_embeddings", "head.tied")
CAUSAL = Role({"attention.mask.kind": "causal"})
WINDOW = Role({"attention.mask.kind": "window"}, (Field("sliding_window", "attention.mask.size"),))
ROLES = {"full_attention": CAUSAL, "sliding_attention": WINDOW}


def by_type(
    full: Sequence[Lens], sliding: Sequence[Lens], window: Sequence[Lens] = WINDOW.lenses
) -> dict[str, Role]:
    """Return the roles of full and sliding layers, with their lenses."""
    return {
        "full_attention": Role(CAUSAL.values, full),
        "sliding_attention": Role(WINDOW.values, (*window, *sliding)),
    }


ALL_OR_NONE = CustomPattern(
    lambda config, n: (
        ["full_attention" if config["sliding_window"] is None else "sliding_attention"] * n
    ),
    lambda roles: {} if "sliding_attention" in roles else {"sliding_window": None},
)
"""Pattern with sliding windows in all layers or in none."""


def flag(key: str, yes: Mapping[str, Any], no: Mapping[str, Any] | None = None) -> Switch:
    """Return the lens of a boolean key; by default `no` negates `yes`."""
    return Switch(
        key, {True: Set(yes), False: Set(dict.fromkeys(yes, False) if no is None else no)}
    )


ATTENTION_BIAS = flag("attention_bias", {**QKV_BIASES, "attention.bias.out": True})
MLP_BIAS = flag("mlp_bias", FEEDFORWARD_BIASES)


def qk_norm(
    over: str = "head", scale_in: str = "input_dtype", place: str = "before"
) -> tuple[Lens, ...]:
    """Return the lenses of RMS QK-norm with the eps of all norms."""
    values = {"kind": "rms", "scale_in": scale_in}
    return (
        Set({f"attention.qk_norm.{key}": value for key, value in values.items()}),
        Set({"attention.qk_norm_over": over, "attention.qk_norm_position": place}),
        Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps")),
    )


def layer_qk_norm(key: str, over: str, *, bias: bool = False) -> Switch:
    """Return the lens of a boolean key for QK-norm by LayerNorm."""
    values = {"attention.qk_norm.kind": "layer", "attention.qk_norm.bias": bias}
    norm = Set({**values, "attention.qk_norm_over": over})
    without = Set({"attention.qk_norm.kind": "none"})
    return Switch(
        key, {True: (norm, Field("layer_norm_eps", "attention.qk_norm.eps")), False: without}
    )


GATED_EXPERT = Activation("hidden_act", gated=True, path="feedforward.expert")


def experts(
    number: str,
    hidden: str,
    top_k: str = "num_experts_per_tok",
    routing: str = "",
    act: Activation = GATED_EXPERT,
    **fixed: Any,
) -> tuple[Lens, ...]:
    """Return the lenses of a mixture: names of config keys, the activation, and `fixed` spec values."""
    fixed |= {"routing.kind": routing} if routing else {}
    return (
        Set({"feedforward.kind": "experts", **{f"feedforward.{k}": v for k, v in fixed.items()}}),
        Field(number, "feedforward.num_experts"),
        Field(top_k, "feedforward.top_k"),
        act,
        Field(hidden, "feedforward.expert.hidden_dim"),
    )


def balance(key: str = "router_aux_loss_coef", top_k: str = "num_experts_per_tok") -> Lens:
    """Return the lens of the model-wide balance loss.

    The fractions f_e sum to top_k in transformers and to 1 here, so coefficients differ by that factor."""

    def read(config: Config) -> Table:
        loss = lookup(config, key) * lookup(config, top_k)
        return {"feedforward": {"balance_loss": loss, "balance_over": "model"}}

    def write(get: Get) -> dict[str, Any]:
        loss = get("feedforward.balance_loss")
        return {} if loss is MISSING else nested(key, loss / get("feedforward.top_k"))

    return Computed(read, write)


def dense(*lenses: Lens, hidden: str = "intermediate_size") -> Role:
    """Return the role of dense layers. It matches every layer, so it must come last."""
    return Role({}, (GATED, Field(hidden, "feedforward.hidden_dim"), *lenses))


def sparse(pattern: MaskPattern, *lenses: Lens, other: Role | None = None) -> Layers:
    """Return a group of two layer types: sparse layers and dense layers."""
    roles = {"sparse": Role({"feedforward.kind": "experts"}, lenses), "dense": other or dense()}
    return Layers(pattern, roles)


def listed(
    prefix: str = "mlp.experts",
    gate: str = "gate_proj",
    up: str = "up_proj",
    down: str = "down_proj",
) -> dict[str, Mapped]:
    """Return the tensor names of experts that are stored in separate tensors."""
    names = {gate: "gate", up: "up", down: "down"}
    return {f"{prefix}.{{e}}.{n}": f"feedforward.experts.{ours}" for n, ours in names.items()}


O_PROJ = ("q_proj", "k_proj", "v_proj", "o_proj")


def attention_names(
    prefix: str,
    ours: str = "attention",
    maps: Sequence[str] = ("q_proj", "k_proj", "v_proj", "out_proj"),
) -> dict[str, Mapped]:
    """Return the tensor names of the query, key, value and output projections."""
    parts = ("query", "key", "value", "out")
    return {f"{prefix}.{name}": f"{ours}.{part}" for name, part in zip(maps, parts, strict=True)}


def gated(prefix: str, ours: str) -> dict[str, Mapped]:
    """Return the tensor names of a gated feed-forward."""
    return {f"{prefix}.{name}_proj": f"{ours}.{name}" for name in ("gate", "up", "down")}


def ungated(prefix: str, ours: str) -> dict[str, Mapped]:
    """Return the tensor names of a feed-forward without a gate."""
    return {f"{prefix}.{name}_proj": f"{ours}.{name}" for name in ("up", "down")}


def switched(read: Callable[[Config, int], list[str]]) -> CustomPattern:
    """Return a pattern that also writes the key `use_sliding_window`."""
    return CustomPattern(
        read,
        lambda roles: {"layer_types": roles, "use_sliding_window": "sliding_attention" in roles},
    )


GATE_UP = Fused(("feedforward.gate", "feedforward.up"), Rows())


def embedding_scale(key: str) -> Computed:
    """Return the lens of the embedding multiplier; 1 becomes `none`."""

    def write(get: Get) -> dict[str, Any]:
        scale = get("embedding.scale")
        return {key: 1.0 if scale == "none" else scale} if scale != "sqrt_dim" else {}

    def read(config: Config) -> Table:
        scale = float(config[key])
        return nested("embedding.scale", "none" if scale == 1 else scale)

    return Computed(read, write)


QKV = ("attention.query", "attention.key", "attention.value")
LAYER_NORM = {"norm.kind": "layer", "norm.weight": "plain", "norm.bias": True}
GPT_SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("n_positions", "context_length"),
    Field("n_embd", "dim"),
    Field("n_layer", "num_layers"),
    Field("n_head", "attention.num_heads"),
)

GPT_DROPOUTS = (
    Field("embd_pdrop", "embedding.dropout"),
    Field("resid_pdrop", "residual.dropout"),
    Field("attn_pdrop", "attention.dropout"),
)


def conv1d(*ours: str) -> Fused:
    """Return projections fused into one Conv1D matrix, [in, out]."""
    return Fused(ours, Transposed(Rows()))


def fields(table: str, **options: str) -> tuple[Lens, ...]:
    """Return the lenses of options in a table of the spec, by config key."""
    return tuple(Field(key, f"{table}.{option}") for key, option in options.items())


def recurrent(kind: str) -> dict[str, str]:
    """Return the distinctive values of layers with a recurrence in place of attention."""
    return {"attention.kind": "none", "position.kind": "none", "recurrence.kind": kind}


ATTENDING = Role({"recurrence.kind": "none"})


def recurrence_names(prefix: str, **parts: str | tuple[str, ...]) -> dict[str, Mapped]:
    """Return the tensor names of a recurrence; several parts are concatenated in one tensor."""
    names: dict[str, Mapped] = {}
    for name, ours in parts.items():
        inner = [f"recurrence.{part}" for part in ([ours] if isinstance(ours, str) else ours)]
        names[f"{prefix}.{name}"] = Fused(tuple(inner), Rows()) if inner[1:] else inner[0]
    return names


RECURRENT_QKV = ("recurrence.query", "recurrence.key", "recurrence.value")


def by_key_head(layer: LayerSpec) -> ByGroup:
    """Return the layout with a recurrence's maps grouped by key head, together with its value heads."""
    return ByGroup(groups=dict(layer.recurrence)["num_key_heads"])


def out_norm_eps(key: str) -> Lens:
    """Return the lens of the eps of a recurrence's norm; config[key] belongs to all norms."""
    return Computed(lambda config: nested("recurrence.out_norm.eps", config[key]))


def gated_delta(*lenses: Lens) -> Role:
    """Return the role of layers with a gated delta rule."""
    heads = "num_attention_heads"  # where the class leaves out the others
    return Role(
        recurrent("linear"),
        (
            Field("linear_num_value_heads", "recurrence.num_heads", same_as=heads),
            Field("linear_num_key_heads", "recurrence.num_key_heads", same_as=heads),
            *fields(
                "recurrence",
                linear_key_head_dim="head_dim",
                linear_value_head_dim="value_head_dim",
                linear_conv_kernel_dim="conv_width",
            ),
            Set({"recurrence.decay.kind": "per_head", "recurrence.out_norm.kind": "rms"}),
            Set({"recurrence.out_norm.scale_in": "input_dtype"}),
            Refuse("hidden_act", ("silu", "swish")),  # also the function after convolutions
            *lenses,
        ),
    )


FLAT_NORM = Fused(("recurrence.norm",), View(lambda weight: weight.flatten()))
"""Norm with its weight [groups, width of a group] as a vector."""
# Fused, so that `verify` does not compare its output: the module of the class also applies the gate.
GATED_NORM = Fused(("recurrence.norm",), Same())


def attention_size(layer: LayerSpec, option: str) -> int:
    """Return a size of a resolved attention, such as `num_heads`."""
    size: int = dict(layer.attention)[option]
    return size


def by_head(layer: LayerSpec) -> ByGroup:
    """Return the layout with queries, key and value grouped by key-value head."""
    return ByGroup(head_dim=attention_size(layer, "head_dim"))


def hidden(key: str, dim: str) -> Either:
    """Return the lens of the hidden width; null means 4 * dim."""
    return Either(
        lambda config: config[key] is not None,
        lambda get: True,
        (Field(key, "feedforward.hidden_dim"),),
        (Field(dim, "feedforward.hidden_dim", times=4),),
        key=key,
    )


SIGMOID: dict[str, Any] = {"routing": "sigmoid", "selection_bias": True, "balance_loss": 0.0}

QKV_BIAS = flag("attention_bias", QKV_BIASES)


def shared(key: str, hidden: str = "moe_intermediate_size", *, optional: bool = False) -> Lens:
    """Return the lens of shared experts, read as one wide feed-forward.

    Args:
        optional: Allow layers without shared experts.
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


GROUPS = Computed(
    _read_groups,
    lambda get: {
        "n_group": get("feedforward.num_groups"),
        "topk_group": get("feedforward.top_groups"),
    },
)
"""Lens of group-limited routing: groups are scored by their two best experts."""


ROUTER = (
    Field("norm_topk_prob", "feedforward.normalize_weights"),
    Field("routed_scaling_factor", "feedforward.routed_scaling_factor"),
    GROUPS,
)
"""Lenses of DeepSeek V3's router."""


def routed(number: str, *lenses: Lens) -> tuple[Lens, ...]:
    """Return the lenses of a mixture with DeepSeek V3's router."""
    return (*experts(number, "moe_intermediate_size", **SIGMOID), *ROUTER, *lenses)


ROUTED = routed("n_routed_experts", shared("n_shared_experts"))


def first_dense(key: str) -> CustomPattern:
    """Return the pattern with config[key] dense layers before the sparse ones."""
    return CustomPattern(
        lambda config, n: ["dense" if i < config[key] else "sparse" for i in range(n)],
        lambda roles: {key: [*roles, "sparse"].index("sparse")},
    )


FIRST_DENSE = first_dense("first_k_dense_replace")


def at(key: str, role: str, other: str) -> CustomPattern:
    """Return the pattern with `role` in the layers listed by config[key], from 0."""
    return CustomPattern(
        lambda config, n: [role if i in (config[key] or ()) else other for i in range(n)],
        lambda roles: {key: [i for i, name in enumerate(roles) if name == role]},
    )


def periodic(prefix: str, role: str, other: str) -> CustomPattern:
    """Return the pattern with `role` in layers i, from 0, with i modulo the period equal to the offset.

    The keys are `{prefix}_period` and `{prefix}_offset`. A period beyond the last layer stands for no layer, or one.
    """
    keys = f"{prefix}_period", f"{prefix}_offset"

    def read(config: Config, n: int) -> list[str]:
        period, offset = (config[key] for key in keys)
        return [role if i % period == offset else other for i in range(n)]

    def write(roles: list[str]) -> dict[str, Any]:
        places = [i for i, name in enumerate(roles) if name == role] or [len(roles)]
        period = places[1] - places[0] if places[1:] else len(roles) + 1
        return dict(zip(keys, (period, places[0]), strict=True))

    return CustomPattern(read, write)


FIRST_OF_LIST = Listed(
    "mlp_layer_types", lambda config, n: ["dense" if i < 1 else "sparse" for i in range(n)]
)

W_EXPERTS = listed("block_sparse_moe.experts", "w1", "w3", "w2")
"""Tensor names of Mixtral's experts."""
EXPERTS = {"mlp.gate": "feedforward.router", **listed()}
UNBIASED_EXPERT_NAMES = {**EXPERTS, **gated("mlp.shared_experts", "feedforward.shared")}
EXPERT_NAMES = {
    **UNBIASED_EXPERT_NAMES,
    "mlp.gate.e_score_correction_bias": "feedforward.selection_bias",
}
"""Usual tensor names of a mixture."""

FURTHER = r"model\.layers\.(?P<layer>\d+)\..*"
"""Pattern of multi-token prediction layers, stored after the last layer."""

EXPERTS_GATE_UP = ("feedforward.experts.gate", "feedforward.experts.up")
EXPERTS_GATE_UP_WEIGHTS = tuple(f"{name}.weight" for name in EXPERTS_GATE_UP)


def rope_in_windows(rope: Rope) -> dict[str, Role]:
    """Return two roles: sliding windows with RoPE, and full attention without positions."""
    return {
        "sliding_attention": Role(
            {**WINDOW.values, "position.kind": "rope"}, (*WINDOW.lenses, rope)
        ),
        "full_attention": Role({**CAUSAL.values, "position.kind": "none"}),
    }


FEEDFORWARD_NAMES = {"mlp.dense_h_to_4h": "feedforward.up", "mlp.dense_4h_to_h": "feedforward.down"}
