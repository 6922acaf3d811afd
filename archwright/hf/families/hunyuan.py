"""Tencent: Hunyuan, dense and with experts, and Youtu."""

from archwright.hf.families.common import (
    FIRST_OF_LIST,
    FURTHER,
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
from archwright.hf.families.llama import LLAMA
from archwright.hf.lenses import Computed, Config, Field, Refuse, Table, nested, refused
from archwright.spec.errors import UserError


def _read_rope(config: Config) -> Table:
    """Read RoPE; a fixed alpha scales theta by alpha^(d / (d - 2))."""
    keys = config.get("rope_scaling") or config.get("rope_parameters") or {}
    alpha, kind = keys.get("alpha"), keys.get("rope_type") or keys.get("type")
    if kind != "dynamic" or not alpha:
        return ROPE.read(config)
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    theta = keys.get("rope_theta") or config["rope_theta"]
    stretched = {"rope_theta": theta * alpha ** (width / (width - 2))}
    return ROPE.read({**config, "rope_scaling": None, "rope_parameters": stretched})


ALPHA_ROPE = Computed(_read_rope, ROPE.write, key=ROPE.key)
HUNYUAN = LLAMA.derive(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    *qk_norm(place="after"),
    ALPHA_ROPE,
    layer_keys={
        "self_attn.query_layernorm": "attention.query_norm",
        "self_attn.key_layernorm": "attention.key_norm",
    },
)

HY_V3 = LLAMA.derive(
    "hy_v3",
    "HYV3ForCausalLM",
    *qk_norm(),
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
        **listed(),
        **gated("mlp.shared_mlp", "feedforward.shared"),
    },
    ignored=(*LLAMA.ignored, FURTHER),
)

YOUTU = LLAMA.derive("youtu", "YoutuForCausalLM", *LATENT, PAIRING, layer_keys=LATENT_NAMES)


def _one(key: str, path: str) -> Computed:
    """Return the lens of a number or a list of equal numbers."""

    def read(config: Config) -> Table:
        numbers = config[key] if isinstance(config[key], list) else [config[key]]
        if len(set(numbers)) != 1:
            raise UserError(f"config.json: {key}: found {numbers}; expected equal numbers")
        return nested(path, numbers[0])

    return Computed(read, lambda get: {key: get(path)})


def _read_shared(config: Config) -> Table:
    """Refuse layers without exactly one shared expert."""
    keys = config["num_shared_expert"]
    if set(keys if isinstance(keys, list) else [keys]) != {1}:
        raise UserError(refused("num_shared_expert", keys, (1,)))
    return {}


HUNYUAN_V1_MOE = LLAMA.derive(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    ALPHA_ROPE,
    *qk_norm(place="after"),
    *experts("num_experts", "intermediate_size", "moe_topk", shared="added", balance_loss=0.0),
    _one("num_experts", "feedforward.num_experts"),
    _one("moe_topk", "feedforward.top_k"),
    Field("intermediate_size", ("feedforward.expert.hidden_dim", "feedforward.shared_hidden_dim")),
    Computed(_read_shared),
    layer_keys={
        "self_attn.query_layernorm": "attention.query_norm",
        "self_attn.key_layernorm": "attention.key_norm",
        "mlp.gate.wg": "feedforward.router",
        **listed(),
        **gated("mlp.shared_mlp", "feedforward.shared"),
    },
    undeclared={"num_shared_expert": 1},
)
