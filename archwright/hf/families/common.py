"""Lenses, patterns of layers and names of tensors that families of several vendors share."""

from typing import Any

from archwright.hf.layer_types import CustomPattern, Layers, Listed, MaskPattern, Role
from archwright.hf.layouts import ByGroup, Rows, Transposed
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Either,
    Field,
    Get,
    Lens,
    Set,
    Switch,
    Table,
    lookup,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, Mapped
from archwright.spec.attention import SoftmaxAttention
from archwright.spec.model_spec import LayerSpec

SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("hidden_size", "dim"),
    Field("num_hidden_layers", "num_layers"),
    Field("max_position_embeddings", "context_length"),
    Field("num_attention_heads", "attention.num_heads"),
)
"""Lenses of the keys that almost all families share."""


HEAD_DIM = Either(
    lambda config: config["head_dim"] is not None,
    lambda get: True,
    (Field("head_dim", "attention.head_dim"),),
)
"""The width of heads; null leaves it to dim / num_heads."""


KV_HEADS = Field("num_key_value_heads", "attention.num_kv_heads", same_as="num_attention_heads")


RMS = {"norm.kind": "rms", "norm.scale_in": "input_dtype"}


PRE_RMS = Set({"residual.kind": "pre", **RMS})


EPS = Field("rms_norm_eps", "norm.eps")


ROPE = Rope(fraction="")


QKV_BIAS = {"attention.bias.query": True, "attention.bias.key": True, "attention.bias.value": True}


NO_QKV_BIAS = dict.fromkeys(QKV_BIAS, False)


SOFTMAX = Set({"attention.kind": "softmax"})


DROPOUT = Field("attention_dropout", "attention.dropout")


GATED = Activation("hidden_act", gated=True)


HIDDEN = Field("intermediate_size", "feedforward.hidden_dim")


TIED = Field("tie_word_embeddings", "head.tied")


CAUSAL = Role({"attention.mask.kind": "causal"})


WINDOW = Role({"attention.mask.kind": "window"}, (Field("sliding_window", "attention.mask.size"),))


ROLES = {"full_attention": CAUSAL, "sliding_attention": WINDOW}


ALL_OR_NONE = CustomPattern(
    lambda config, n: (
        ["full_attention" if config["sliding_window"] is None else "sliding_attention"] * n
    ),
    lambda roles: {} if "sliding_attention" in roles else {"sliding_window": None},
)
"""A window in all layers, or in none."""


def bias(key: str, path: str, *parts: str) -> Switch:
    """Return the lens of a key that gives a module's maps their biases."""
    values = {f"{path}.bias.{part}": True for part in parts}
    return Switch(key, {True: Set(values), False: Set(dict.fromkeys(values, False))})


ATTENTION_BIAS = bias("attention_bias", "attention", "query", "key", "value", "out")


MLP_BIAS = bias("mlp_bias", "feedforward", "up", "down")


NO_ATTENTION_BIAS = Set(NO_QKV_BIAS | {"attention.bias.out": False})


NO_MLP_BIAS = Set({"feedforward.bias.up": False, "feedforward.bias.down": False})


QUERY_KEY_NORM = {
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}


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


def switched(pattern: Listed) -> CustomPattern:
    """Return a pattern that says in a key of its own whether there is any window."""
    return CustomPattern(
        pattern.read,
        lambda roles: {
            "layer_types": roles,
            "use_sliding_window": "sliding_attention" in roles,
        },
    )


GATE_UP = Fused(("feedforward.gate", "feedforward.up"), Rows())


def embedding_scale(key: str) -> Computed:
    """Return the lens of a number that embeddings are multiplied by; 1 is none."""

    def write(get: Get) -> dict[str, Any]:
        scale = get("embedding.scale")
        return {key: 1.0 if scale == "none" else scale} if scale != "sqrt_dim" else {}

    def read(config: Config) -> Table:
        scale = float(config[key])
        return nested("embedding.scale", "none" if scale == 1 else scale)

    return Computed(read, write)


QKV = ("attention.query", "attention.key", "attention.value")


QKV_BIASES = {f"attention.bias.{part}": True for part in ("query", "key", "value")}


FEEDFORWARD_BIASES = {"feedforward.bias.up": True, "feedforward.bias.down": True}


ALL_BIASES = {**QKV_BIASES, "attention.bias.out": True, **FEEDFORWARD_BIASES}


NO_QKV_BIASES = dict.fromkeys(QKV_BIASES, False)


LAYER_NORM = {"norm.kind": "layer", "norm.weight": "plain", "norm.bias": True}


GPT_SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("n_positions", "context_length"),
    Field("n_embd", "dim"),
    Field("n_layer", "num_layers"),
    Field("n_head", "attention.num_heads"),
)


USUAL_WORDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
"""The words of other families, which classes with words of their own understand, too."""


GPT_DROPOUTS = (
    Field("embd_pdrop", "embedding.dropout"),
    Field("resid_pdrop", "residual.dropout"),
    Field("attn_pdrop", "attention.dropout"),
)


def conv1d(*ours: str) -> Fused:
    """Return maps side by side in one matrix of [in, out]."""
    return Fused(ours, Transposed(Rows()))


def by_head(layer: LayerSpec) -> ByGroup:
    """Return the layout of a matrix in which each key-value head has its queries, key and value together."""
    assert isinstance(layer.attention, SoftmaxAttention)
    assert layer.attention.head_dim != "auto"
    return ByGroup(head_dim=layer.attention.head_dim)


def hidden(key: str, dim: str) -> Either:
    """Return the lens of a hidden width that is 4 times the model's where the key is null."""
    return Either(
        lambda config: config[key] is not None,
        lambda get: True,
        (Field(key, "feedforward.hidden_dim"),),
        (Field(dim, "feedforward.hidden_dim", times=4),),
    )


SIGMOID: dict[str, Any] = {"routing": "sigmoid", "selection_bias": True, "balance_loss": 0.0}


QKV_BIAS_SWITCH = Switch("attention_bias", {True: Set(QKV_BIAS), False: Set(NO_QKV_BIAS)})


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


EXPERT_NAMES = {
    "mlp.gate": "feedforward.router",
    "mlp.gate.e_score_correction_bias": "feedforward.selection_bias",
    **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    **gated("mlp.shared_experts", "feedforward.shared"),
}
"""Names of a mixture's tensors in files of most of these families."""


FURTHER = r"model\.layers\.(?P<layer>\d+)\..*"
"""Layers behind the last, which predict further tokens."""


EXPERTS_GATE_UP = ("feedforward.experts.gate", "feedforward.experts.up")


EXPERTS_GATE_UP_WEIGHTS = tuple(f"{name}.weight" for name in EXPERTS_GATE_UP)


EXPERTS = listed("mlp.experts", "gate_proj", "up_proj", "down_proj")


NEAR = Role({**WINDOW.values, "position.kind": "rope"}, (*WINDOW.lenses, ROPE))


FAR = Role({**CAUSAL.values, "position.kind": "none"})


NEAR_TURNED = {"sliding_attention": NEAR, "full_attention": FAR}
"""Windows with positions, and full attention without."""


FEEDFORWARD_NAMES = {
    "mlp.dense_h_to_4h": "feedforward.up",
    "mlp.dense_4h_to_h": "feedforward.down",
}
