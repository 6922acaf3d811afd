"""Tencent: Hunyuan, dense and with experts, and Youtu."""

from archwright.hf.families.common import (
    ALL_EPS,
    ATTENTION_BIAS,
    EPS,
    EXPERTS,
    FIRST_OF_LIST,
    FURTHER,
    HEAD_NORMS,
    MLP_BIAS,
    NO_DENSE,
    NO_MLP_BIAS,
    QUERY_KEY_NORM,
    ROPE,
    SIGMOID,
    experts,
    gated,
    listed,
    qk_norm,
    shared,
    sparse,
)
from archwright.hf.families.deepseek import LATENT, LATENT_NAMES, PAIRING
from archwright.hf.families.llama import BASE, LLAMA
from archwright.hf.lenses import Computed, Config, Field, Refuse, Set, Table, nested, refused
from archwright.spec.errors import UserError


def _with_alpha(config: Config) -> Table:
    """Read a base that `alpha` stretches, for which these files say "dynamic"."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not scaling.get("alpha"):
        return ROPE.read(config)
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    theta = scaling.get("rope_theta") or config["rope_theta"]
    stretched = theta * scaling["alpha"] ** (width / (width - 2))
    return ROPE.read({**config, "rope_scaling": None, "rope_parameters": {"rope_theta": stretched}})


HUNYUAN_ROPE = Computed(_with_alpha, ROPE.write)


HUNYUAN = LLAMA.derive(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    Set(HEAD_NORMS),
    Set({"attention.qk_norm_position": "after"}),
    ALL_EPS,
    HUNYUAN_ROPE,
    NO_MLP_BIAS,
    without=(EPS, ROPE, MLP_BIAS),
    layer_keys={
        "self_attn.query_layernorm": "attention.query_norm",
        "self_attn.key_layernorm": "attention.key_norm",
    },
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


YOUTU = LLAMA.derive(
    "youtu",
    "YoutuForCausalLM",
    *LATENT,
    PAIRING,
    NO_MLP_BIAS,
    without=(ATTENTION_BIAS, MLP_BIAS),
    layer_keys=LATENT_NAMES,
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
