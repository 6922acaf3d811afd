"""Meta: Llama (the base of most other families), Llama 4 and CWM."""

from archwright.hf.families.common import (
    ATTENTION_BIAS,
    CAUSAL,
    DROPOUT,
    EXPERTS_GATE_UP_WEIGHTS,
    GATED,
    HIDDEN,
    MLP_BIAS,
    O_PROJ,
    ROLES,
    ROPE,
    SIZES,
    SOFTMAX,
    TIED,
    attention_names,
    balance,
    dense,
    experts,
    gated,
    llama3,
    rope_in_some,
    sparse,
)
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, first_of
from archwright.hf.layouts import Stacked, Transposed
from archwright.hf.lenses import Config, Either, Field, Set, Switch, Write
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused

HEAD_DIM = Either(
    lambda config: config["head_dim"] is not None,
    lambda get: True,
    (Field("head_dim", "attention.head_dim"),),
)
"""Lens of the head width; null means dim / num_heads."""

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    lenses=(
        *SIZES,
        HEAD_DIM,
        Field("num_key_value_heads", "attention.num_kv_heads", same_as="num_attention_heads"),
        Set({"residual.kind": "pre", "norm.kind": "rms", "norm.scale_in": "input_dtype"}),
        Field("rms_norm_eps", "norm.eps"),
        ROPE,
        SOFTMAX,
        ATTENTION_BIAS,
        DROPOUT,
        GATED,
        HIDDEN,
        MLP_BIAS,
        TIED,
    ),
    layers="model.layers.{i}.",
    layer_keys={
        "input_layernorm": "residual.norms.{mixer}",
        "post_attention_layernorm": "residual.norms.feedforward",
        **attention_names("self_attn", maps=O_PROJ),
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
        "mlp.gate_proj": "feedforward.gate",
        "mlp.up_proj": "feedforward.up",
        "mlp.down_proj": "feedforward.down",
    },
    model_keys={"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head"},
    ignored=(r".*\.rotary_emb\.inv_freq",),
    undeclared={"head_dim": None},
)

CWM = LLAMA.derive(
    "cwm",
    "CwmForCausalLM",
    Write({"bos_token_id": 0}),  # required by the class
    groups=(Layers(Listed(otherwise=first_of(4)), ROLES),),
    undeclared={"rope_parameters": llama3(1e6, 16.0)},
)


ROPE_LAYERS = rope_in_some("none")


def _near(config: Config, n: int) -> list[str]:
    """Return the default mask types: RoPE layers are chunked, other layers full."""
    chunked = {"rope": "chunked_attention", "none": "full_attention"}
    return [chunked[role] for role in ROPE_LAYERS.read(config, n)]


def _mixed(config: Config, n: int) -> list[str]:
    """Return the feed-forward types, from `moe_layers` or `interleave_moe_layer_step`."""
    step = config["interleave_moe_layer_step"]
    listed = config["moe_layers"]
    places = range(step - 1, n, step) if listed is None else listed
    return ["sparse" if i in places else "dense" for i in range(n)]


WEIGHTLESS_QK_NORM = Switch(
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

QUERY_TEMPERATURE = Either(
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
            WEIGHTLESS_QK_NORM,
        ),
    ),
    "none": Role(
        {"position.kind": "none"}, (Set({"attention.qk_norm.kind": "none"}), QUERY_TEMPERATURE)
    ),
}

CHUNKED = Role(
    {"attention.mask.kind": "chunked"}, (Field("attention_chunk_size", "attention.mask.size"),)
)

LLAMA4_TEXT = LLAMA.derive(
    "llama4_text",
    "Llama4ForCausalLM",
    groups=(
        Layers(Listed(otherwise=_near), {"full_attention": CAUSAL, "chunked_attention": CHUNKED}),
        Layers(ROPE_LAYERS, TURNING),
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
    layer_keys=gated("feed_forward", "feedforward")
    | gated("feed_forward.shared_expert", "feedforward.shared")
    | {
        "feed_forward.router": "feedforward.router",
        "feed_forward.experts.gate_up_proj": Fused(EXPERTS_GATE_UP_WEIGHTS, Transposed(Stacked())),
        "feed_forward.experts.down_proj": Fused(("feedforward.experts.down.weight",), Transposed()),
    },
)
