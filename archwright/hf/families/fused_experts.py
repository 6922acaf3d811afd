"""Mixtures whose experts stand in one tensor: Granite, DBRX, gpt-oss and Llama 4."""

from typing import Any

from archwright.hf.families.experts import (
    BASE,
    NO_DENSE,
    balance,
    dense,
    experts,
    gated,
    sparse,
)
from archwright.hf.families.granite import GRANITE
from archwright.hf.families.llama import ATTENTION_BIAS, CAUSAL, MLP_BIAS, ROLES, ROPE, SOFTMAX
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every
from archwright.hf.layouts import Flattened, Rows, Stacked, Transposed
from archwright.hf.lenses import (
    MISSING,
    Activation,
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
    lookup,
    nested,
)
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused

GATE_UP = ("feedforward.experts.gate", "feedforward.experts.up")


GRANITEMOE = GRANITE.derive(
    "granitemoe",
    "GraniteMoeForCausalLM",
    *experts("num_local_experts", "intermediate_size", routing="softmax_of_chosen"),
    balance(),
    without=(MLP_BIAS,),
    layer_keys=NO_DENSE
    | {
        "block_sparse_moe.router.layer": "feedforward.router",
        "block_sparse_moe.input_linear": Fused(GATE_UP, Stacked()),
        "block_sparse_moe.output_linear": "feedforward.experts.down",
    },
)

GRANITEMOESHARED = GRANITEMOE.derive(
    "granitemoeshared",
    "GraniteMoeSharedForCausalLM",
    Either(
        lambda config: config["shared_intermediate_size"] > 0,
        lambda get: get("feedforward.shared") == "added",
        (
            Set({"feedforward.shared": "added"}),
            Field("shared_intermediate_size", "feedforward.shared_hidden_dim"),
        ),
    ),
    layer_keys={
        "shared_mlp.input_linear": Fused(
            ("feedforward.shared.gate", "feedforward.shared.up"), Rows()
        ),
        "shared_mlp.output_linear": "feedforward.shared.down",
    },
)


def _read_theta(config: Config) -> Table:
    """Return the base of the frequencies: old files have it inside `attn_config`."""
    base = (config.get("rope_parameters") or {}).get("rope_theta")
    inside = (config.get("attn_config") or {}).get("rope_theta")
    return nested("position.theta", float(base or inside or config["rope_theta"]))


def _read_power(config: Config) -> Table:
    """Return what the norm of the chosen weights is, if they are divided by it."""
    power = lookup(config, "ffn_config.moe_normalize_expert_weights")
    table: Table = {"normalize_weights": power is not None}
    return {"feedforward": table if power is None else table | {"normalize_power": float(power)}}


def _write_power(get: Get) -> dict[str, Any]:
    power = get("feedforward.normalize_power") if get("feedforward.normalize_weights") else None
    return {} if power is MISSING else nested("ffn_config.moe_normalize_expert_weights", power)


DBRX = Family(
    "dbrx",
    "DbrxForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("d_model", "dim"),
        Field("n_heads", "attention.num_heads"),
        Field("n_layers", "num_layers"),
        Field("max_seq_len", ("context_length",)),
        Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": False, "norm.eps": 1e-5}),
        Field("resid_pdrop", "residual.dropout"),
        Field("emb_pdrop", "embedding.dropout"),
        ROPE,
        SOFTMAX,
        Computed(_read_theta, lambda get: {"attn_config": {"rope_theta": get("position.theta")}}),
        Field("attn_config.attn_pdrop", "attention.dropout"),
        Field("attn_config.clip_qkv", "attention.qkv_clip", or_none=True),
        Field("attn_config.kv_n_heads", "attention.num_kv_heads"),
        Set({"feedforward.kind": "experts"}),
        Activation("ffn_config.ffn_act_fn.name", gated=True, path="feedforward.expert"),
        Field("ffn_config.ffn_hidden_size", "feedforward.expert.hidden_dim"),
        Field("ffn_config.moe_num_experts", "feedforward.num_experts"),
        Field("ffn_config.moe_top_k", "feedforward.top_k"),
        balance("ffn_config.moe_loss_weight", "ffn_config.moe_top_k"),
        Computed(_read_power, _write_power),
        Refuse("tie_word_embeddings", (False,)),
        Set({"head.tied": False}),
    ),
    layers="transformer.blocks.{i}.",
    layer_keys={
        "norm_attn_norm.norm_1": "residual.norms.attention",
        "norm_attn_norm.norm_2": "residual.norms.feedforward",
        "norm_attn_norm.attn.Wqkv": Fused(
            ("attention.query", "attention.key", "attention.value"), Rows()
        ),
        "norm_attn_norm.attn.out_proj": "attention.out",
        "ffn.router.layer": "feedforward.router",
        "ffn.experts.mlp.w1": Fused(("feedforward.experts.gate.weight",), Flattened()),
        "ffn.experts.mlp.v1": Fused(("feedforward.experts.up.weight",), Flattened()),
        "ffn.experts.mlp.w2": Fused(
            ("feedforward.experts.down.weight",), Flattened(transposed=True)
        ),
    },
    model_keys={
        "transformer.wte": "embedding",
        "transformer.norm_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
    },
    undeclared={"ffn_config": {"ffn_act_fn": {"name": "silu"}}},
)

GATE_UP_WEIGHTS = tuple(f"{name}.weight" for name in GATE_UP)

STRETCHED = Either(
    lambda config: not (config.get("rope_parameters") or config.get("rope_scaling")),
    lambda get: False,
    (
        Set({"position.scaling.kind": "yarn", "position.scaling.factor": 32.0}),
        Set({"position.scaling.original_length": 4096, "position.scaling.truncate": False}),
    ),
)
"""RoPE of a config that says nothing of it."""

GPT_OSS = BASE.derive(
    "gpt_oss",
    "GptOssForCausalLM",
    STRETCHED,
    ATTENTION_BIAS,
    Set({"norm.scale_in": "float32", "attention.sinks": True}),
    Set({"feedforward.kind": "experts", "feedforward.routing.kind": "softmax_of_chosen"}),
    Set({"feedforward.router_bias": True, "feedforward.expert.kind": "clamped_swiglu"}),
    Set({"feedforward.expert.bias.up": True, "feedforward.expert.bias.down": True}),
    Field("num_local_experts", "feedforward.num_experts"),
    Field("num_experts_per_tok", "feedforward.top_k"),
    Field("intermediate_size", "feedforward.expert.hidden_dim"),
    Field("swiglu_alpha", "feedforward.expert.sharpness"),
    Field("swiglu_limit", "feedforward.expert.limit"),
    balance(),
    groups=(Layers(Listed(otherwise=every(2, "full_attention", "sliding_attention")), ROLES),),
    layer_keys=NO_DENSE
    | {
        "self_attn.sinks": "attention.sinks",
        "mlp.router": "feedforward.router",
        "mlp.experts.gate_up_proj": Fused(GATE_UP_WEIGHTS, Transposed(Stacked(interleaved=True))),
        "mlp.experts.gate_up_proj_bias": Fused(
            tuple(f"{name}.bias" for name in GATE_UP), Stacked(interleaved=True)
        ),
        "mlp.experts.down_proj": Fused(("feedforward.experts.down.weight",), Transposed()),
        "mlp.experts.down_proj_bias": "feedforward.experts.down.bias",
    },
    key_aliases={"num_experts": "num_local_experts"},
)


def _turning(config: Config, n: int) -> list[str]:
    """Return which layers have positions: 1 in a list, or all but each `no_rope_layer_interval`-th."""
    listed, interval = config["no_rope_layers"], config["no_rope_layer_interval"]
    turns = listed[:n] if listed else [(i + 1) % interval for i in range(n)]
    return ["rope" if turn else "none" for turn in turns]


def _near(config: Config, n: int) -> list[str]:
    """Return which layers see their own chunk alone: those with positions, where no list says it."""
    chunked = {"rope": "chunked_attention", "none": "full_attention"}
    return [chunked[role] for role in _turning(config, n)]


def _mixed(config: Config, n: int) -> list[str]:
    """Return which layers have experts: a list of them, or each `interleave_moe_layer_step`-th."""
    step = config["interleave_moe_layer_step"]
    listed = config["moe_layers"]
    places = range(step - 1, n, step) if listed is None else listed
    return ["sparse" if i in places else "dense" for i in range(n)]


QUERY_KEY_NORM = Switch(
    "use_qk_norm",
    {
        True: (
            Set({"attention.qk_norm.kind": "rms", "attention.qk_norm.weight": "none"}),
            Set({"attention.qk_norm_over": "head", "attention.qk_norm_position": "after"}),
            Field("rms_norm_eps", ("norm.eps", "attention.qk_norm.eps")),
        ),
        False: Set({"attention.qk_norm.kind": "none"}),
    },
)
LENGTH_SCALE = Either(
    lambda config: bool(config["attn_temperature_tuning"]),
    lambda get: get("attention.query_temperature.kind") == "log",
    (
        Set({"attention.query_temperature.kind": "log", "attention.query_temperature.offset": 1}),
        Field("attn_scale", "attention.query_temperature.coefficient"),
        Field("floor_scale", "attention.query_temperature.period"),
        Write({"attn_temperature_tuning": True}),
    ),
    (Set({"attention.query_temperature.kind": "none"}), Write({"attn_temperature_tuning": False})),
)
TURNING = {
    "rope": Role(
        {"position.kind": "rope"},
        (
            Rope(pairing="interleaved", fraction=""),
            Set({"attention.query_temperature.kind": "none"}),
            QUERY_KEY_NORM,
        ),
    ),
    "none": Role(
        {"position.kind": "none"}, (Set({"attention.qk_norm.kind": "none"}), LENGTH_SCALE)
    ),
}
CHUNKED = Role(
    {"attention.mask.kind": "chunked"}, (Field("attention_chunk_size", "attention.mask.size"),)
)

LLAMA4_TEXT = BASE.derive(
    "llama4_text",
    "Llama4ForCausalLM",
    ATTENTION_BIAS,
    groups=(
        Layers(Listed(otherwise=_near), {"full_attention": CAUSAL, "chunked_attention": CHUNKED}),
        Layers(
            CustomPattern(
                _turning, lambda roles: {"no_rope_layers": [int(r == "rope") for r in roles]}
            ),
            TURNING,
        ),
        sparse(
            CustomPattern(
                _mixed,
                lambda roles: {"moe_layers": [i for i, r in enumerate(roles) if r == "sparse"]},
            ),
            *experts(
                "num_local_experts",
                "intermediate_size",
                routing="sigmoid",
                normalize_weights=False,
                router_weight_on="input",
                shared="added",
            ),
            Field(
                "intermediate_size",
                ("feedforward.expert.hidden_dim", "feedforward.shared_hidden_dim"),
            ),
            balance(),
            other=dense(hidden="intermediate_size_mlp"),
        ),
    ),
    layer_keys=NO_DENSE
    | gated("feed_forward", "feedforward")
    | gated("feed_forward.shared_expert", "feedforward.shared")
    | {
        "feed_forward.router": "feedforward.router",
        "feed_forward.experts.gate_up_proj": Fused(GATE_UP_WEIGHTS, Transposed(Stacked())),
        "feed_forward.experts.down_proj": Fused(("feedforward.experts.down.weight",), Transposed()),
    },
)

FUSED_EXPERTS_FAMILIES = (GRANITEMOE, GRANITEMOESHARED, DBRX, GPT_OSS, LLAMA4_TEXT)
