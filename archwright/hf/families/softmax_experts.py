"""Mixtures with a softmax router and ways of their own: ERNIE 4.5, Hunyuan-A13B, Command A+ and
Phi-3.5-MoE."""

from typing import Any

from archwright.hf.families.experts import (
    BASE,
    NO_DENSE,
    balance,
    dense,
    experts,
    gated,
    listed,
    qk_norm,
    sparse,
)
from archwright.hf.families.llama import ALL_OR_NONE, ATTENTION_BIAS, CAUSAL, ROLES, ROPE, WINDOW
from archwright.hf.families.sigmoid_experts import shared
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.layouts import Reshaped
from archwright.hf.lenses import (
    MISSING,
    Computed,
    Config,
    Either,
    Field,
    Get,
    Refuse,
    Set,
    Switch,
    Table,
    Write,
    nested,
    refused,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused
from archwright.spec.errors import UserError

EXPERTS = listed("mlp.experts", "gate_proj", "up_proj", "down_proj")


def _stretch(config: Config, n: int) -> list[str]:
    """Return which layers have experts: each `moe_layer_interval`-th of a stretch."""
    first, last, step = (
        config[f"moe_layer_{key}"] for key in ("start_index", "end_index", "interval")
    )
    last = n - 1 if last == -1 else last
    return ["dense" if (i + 1) % step or not first <= i <= last else "sparse" for i in range(n)]


def _write_stretch(roles: list[str]) -> dict[str, Any]:
    """Return the stretch from the first layer with experts to the last, of the step that fits."""
    places = [i for i, role in enumerate(roles) if role == "sparse"] or [len(roles)]
    for step in range(1, len(roles) + 1):
        keys = {
            "moe_layer_start_index": places[0],
            "moe_layer_end_index": places[-1],
            "moe_layer_interval": step,
        }
        if _stretch(keys, len(roles)) == roles:
            return keys
    return {}


ERNIE4_5_MOE = BASE.derive(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    Set({"position.pairing": "interleaved"}),
    Refuse("use_bias", (False,)),
    groups=(
        sparse(
            CustomPattern(_stretch, _write_stretch),
            *experts("moe_num_experts", "moe_intermediate_size", "moe_k", selection_bias=True),
            Field("moe_norm_min", "feedforward.normalize_min"),
            shared("moe_num_shared_experts", optional=True),
            balance(top_k="moe_k"),
        ),
    ),
    layer_keys={
        "mlp.gate": "feedforward.router",
        "mlp.moe_statics.e_score_correction_bias": Fused(
            ("feedforward.selection_bias",), Reshaped((1, -1))
        ),
        **EXPERTS,
        **gated("mlp.shared_experts", "feedforward.shared"),
    },
    ignored=(*BASE.ignored, r".*mtp.*"),
    key_aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    undeclared={"attention_dropout": 0.0},
)


def _one(key: str, path: str) -> Computed:
    """Return the lens of a number that may be told for each layer, if all are equal."""

    def read(config: Config) -> Table:
        numbers = config[key] if isinstance(config[key], list) else [config[key]]
        if len(set(numbers)) != 1:
            raise UserError(f"config.json: {key}: found {numbers}; this package knows equal ones")
        return nested(path, numbers[0])

    return Computed(read, lambda get: {key: get(path)})


def _read_shared(config: Config) -> Table:
    """Refuse what is not one shared expert in each layer."""
    keys = config["num_shared_expert"]
    if set(keys if isinstance(keys, list) else [keys]) != {1}:
        raise UserError(refused("num_shared_expert", keys, (1,)))
    return {}


def _read_alpha(config: Config) -> Table:
    """Return the base of frequencies that a fixed alpha stretches: theta alpha^(d / (d - 2))."""
    keys = config.get("rope_scaling") or config.get("rope_parameters") or {}
    alpha, kind = keys.get("alpha"), keys.get("rope_type") or keys.get("type")
    if kind != "dynamic" or not alpha:
        return {}
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    theta = keys.get("rope_theta") or config["rope_theta"]
    stretched = theta * alpha ** (width / (width - 2))
    return {"position": {"theta": float(stretched), "scaling": {"kind": "none"}}}


HUNYUAN_V1_MOE = BASE.derive(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    ATTENTION_BIAS,
    Computed(_read_alpha, lambda get: {}),
    *qk_norm("head", place="after"),
    *experts("num_experts", "intermediate_size", "moe_topk", shared="added", balance_loss=0.0),
    _one("num_experts", "feedforward.num_experts"),
    _one("moe_topk", "feedforward.top_k"),
    Field("intermediate_size", ("feedforward.expert.hidden_dim", "feedforward.shared_hidden_dim")),
    Computed(_read_shared, lambda get: {}),
    layer_keys=NO_DENSE
    | {
        "self_attn.query_layernorm": "attention.query_norm",
        "self_attn.key_layernorm": "attention.key_norm",
        "mlp.gate.wg": "feedforward.router",
        **EXPERTS,
        **gated("mlp.shared_mlp", "feedforward.shared"),
    },
    key_aliases={"num_local_experts": "num_experts", "num_experts_per_tok": "moe_topk"},
    undeclared={"num_shared_expert": 1},
)


def _read_types(config: Config, n: int) -> list[str]:
    """Return how far each layer sees, and whether it has experts; the first may be dense."""
    first = config["first_k_dense_replace"]
    step = config["prefix_dense_sliding_window_pattern"]
    kinds = config["mlp_layer_types"] or ["dense" if i < first else "sparse" for i in range(n)]
    sees = config["layer_types"] or [
        *_each(step, first),
        *_each(config["sliding_window_pattern"], n - first),
    ]
    if len(kinds) != len(sees):
        raise UserError(
            f"config.json: mlp_layer_types: found {len(kinds)} layers; expected {len(sees)}"
        )
    roles = [f"{see}_{kind}" for see, kind in zip(sees, kinds, strict=True)]
    turned = {FULL_DENSE: f"turned_{FULL_DENSE}"} if step == 1 else {}
    return [turned.get(role, role) for role in roles]


def _each(step: int, n: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % step else "full_attention" for i in range(n)]


def _write_types(roles: list[str]) -> dict[str, Any]:
    pairs = [role.removeprefix("turned_").rpartition("_") for role in roles]
    return {
        "layer_types": [see for see, _, _ in pairs],
        "mlp_layer_types": [kind for _, _, kind in pairs],
        "prefix_dense_sliding_window_pattern": 4 if FULL_DENSE in roles else 1,
    }


FULL_DENSE = "full_attention_dense"
MIXTURE = (
    *experts("num_experts", "intermediate_size", routing="softmax_of_chosen", balance_loss=0.0),
    Switch(
        "expert_selection_fn",
        {
            "softmax": Set({"feedforward.routing.kind": "softmax_of_chosen"}),
            "sigmoid": (
                Set({"feedforward.routing.kind": "sigmoid"}),
                Field("norm_topk_prob", "feedforward.normalize_weights"),
            ),
        },
    ),
    shared("num_shared_experts", "intermediate_size", optional=True),
    Either(
        lambda config: bool(config["num_shared_experts"]),
        lambda get: get("feedforward.shared") in ("added", "averaged"),
        (
            Switch(
                "shared_expert_combination_strategy",
                {
                    "sum": Set({"feedforward.shared": "added"}),
                    "average": Set({"feedforward.shared": "averaged"}),
                },
            ),
        ),
    ),
)
DENSE = (
    *dense().lenses,
    Field("prefix_dense_intermediate_size", "feedforward.hidden_dim", same_as="intermediate_size"),
)


def _roles() -> dict[str, Role]:
    """Return all types: what sees a window knows positions, and dense layers that see all may."""
    rope = Rope(pairing="interleaved", fraction="")
    mixed, turned, still = (
        {"feedforward.kind": "experts"},
        {"position.kind": "rope"},
        {"position.kind": "none"},
    )
    near, near_values = (*WINDOW.lenses, rope), {**WINDOW.values, **turned}
    return {
        "sliding_attention_sparse": Role({**near_values, **mixed}, (*near, *MIXTURE)),
        "full_attention_sparse": Role({**CAUSAL.values, **still, **mixed}, MIXTURE),
        "sliding_attention_dense": Role(near_values, (*near, *DENSE)),
        f"turned_{FULL_DENSE}": Role({**CAUSAL.values, **turned}, (rope, *DENSE)),
        FULL_DENSE: Role({**CAUSAL.values, **still}, DENSE),
    }


COHERE2_MOE = BASE.derive(
    "cohere2_moe",
    "Cohere2MoeForCausalLM",
    ATTENTION_BIAS,
    Set({"residual.kind": "parallel", "residual.num_norms": 1}),
    Either(
        lambda config: config["rms_norm_eps"] is not None,
        lambda get: get("norm.kind") == "rms",
        (
            Set({"norm.kind": "rms", "norm.scale_in": "input_dtype"}),
            Field("rms_norm_eps", "norm.eps"),
        ),
        (
            Set({"norm.kind": "layer", "norm.bias": False}),
            Field("layer_norm_eps", "norm.eps"),
            Write({"rms_norm_eps": None}),
        ),
    ),
    Field("logit_scale", "head.logit_scale"),
    groups=(Layers(CustomPattern(_read_types, _write_types), _roles()),),
    layer_keys={
        "input_layernorm": "residual.norms.shared",
        "post_attention_layernorm": None,
        "mlp.gate": "feedforward.router",
        **EXPERTS,
        **gated("mlp.shared_experts", "feedforward.shared"),
    },
    undeclared={"first_k_dense_replace": 0},
)


def _read_mscale(config: Config) -> Table:
    """Return what LongRoPE multiplies cosines and sines by, which is told for short and long texts."""
    keys = config.get("rope_scaling") or config.get("rope_parameters") or {}
    short, long = keys.get("short_mscale"), keys.get("long_mscale")
    if (keys.get("rope_type") or keys.get("type") or "default") == "default":
        return {}
    if short is None or short != long:
        raise UserError(
            f"config.json: rope_parameters.long_mscale: found {long}; this package knows that of "
            f"short_mscale, {short}, alone"
        )
    return nested("position.scaling.attention_factor", float(short))


def _write_mscale(get: Get) -> dict[str, Any]:
    factor = get("position.scaling.attention_factor")
    keys = {"short_mscale": factor, "long_mscale": factor}
    return {} if factor is MISSING else {"rope_parameters": keys}


PHIMOE = BASE.derive(
    "phimoe",
    "PhimoeForCausalLM",
    ATTENTION_BIAS,
    Set({"norm.kind": "layer"}),
    Field("rms_norm_eps", "norm.eps"),
    Rope(fraction="", kinds=("default", "longrope")),
    Computed(_read_mscale, _write_mscale),
    Field("lm_head_bias", "head.bias"),
    *experts(
        "num_local_experts", "intermediate_size", routing="sparsemixer", normalize_weights=False
    ),
    Refuse("num_experts_per_tok", (2,)),
    Field("router_jitter_noise", "feedforward.jitter"),
    balance(),
    without=(ROPE,),
    groups=(Layers(ALL_OR_NONE, ROLES),),
    layer_keys=NO_DENSE
    | {"block_sparse_moe.gate": "feedforward.router"}
    | listed("block_sparse_moe.experts", "w1", "w3", "w2"),
)

SOFTMAX_EXPERTS_FAMILIES = (ERNIE4_5_MOE, HUNYUAN_V1_MOE, COHERE2_MOE, PHIMOE)
