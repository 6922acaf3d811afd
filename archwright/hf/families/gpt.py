"""OpenAI: GPT, GPT-2 and gpt-oss."""

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.family import Family
from archwright.hf.layer_types import Layers, Listed, every
from archwright.hf.layouts import Stacked, Transposed
from archwright.hf.lenses import Activation, Either, Field, Refuse, Set, Switch
from archwright.hf.weight_map import Fused

SCALED = common.flag(
    "scale_attn_weights", {"attention.scale.kind": "sqrt"}, {"attention.scale.kind": "none"}
)
BY_LAYER = Switch(
    "scale_attn_by_inverse_layer_idx",
    {
        True: (
            Refuse("scale_attn_weights", (True,)),
            Set({"attention.scale.kind": "inverse_layer"}),
        ),
        False: (),
    },
)

GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    lenses=(
        *common.GPT_SIZES,
        *common.GPT_DROPOUTS,
        Set({"residual.kind": "pre", **common.LAYER_NORM, "position.kind": "learned"}),
        Activation("activation_function", gated=False),
        Set({"attention.kind": "softmax", **common.ALL_BIASES}),
        Field("layer_norm_epsilon", "norm.eps"),
        common.hidden("n_inner", "n_embd"),
        SCALED,
        BY_LAYER,
        common.TIED,
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "ln_1": "residual.norms.{mixer}",
        "ln_2": "residual.norms.feedforward",
        "attn.c_attn": common.conv1d(*common.QKV),
        "attn.c_proj": common.conv1d("attention.out"),
        "mlp.c_fc": common.conv1d("feedforward.up"),
        "mlp.c_proj": common.conv1d("feedforward.down"),
    },
    model_keys={
        "transformer.wte": "embedding",
        "transformer.wpe": "position.table",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
)

GPT1 = GPT2.derive(
    "openai-gpt",
    "OpenAIGPTLMHeadModel",
    Set({"residual.kind": "post"}),
    Activation("afn", gated=False, names={"gelu": {"kind": "gelu", "approximate": "tanh"}}),
    Field("n_embd", "feedforward.hidden_dim", times=4),
    Field("n_embd", "dim"),
    model_keys={
        "transformer.tokens_embed": "embedding",
        "transformer.positions_embed": "position.table",
    },
    ignored=(r".*\.attn\.bias", r".*position_ids"),
)

STRETCHED = Either(
    lambda config: not (config.get("rope_parameters") or config.get("rope_scaling")),
    lambda get: False,
    (
        Set({"position.scaling.kind": "yarn", "position.scaling.factor": 32.0}),
        Set({"position.scaling.original_length": 4096, "position.scaling.truncate": False}),
    ),
)
"""Default YaRN scaling if a config has no RoPE parameters."""

GPT_OSS = LLAMA.derive(
    "gpt_oss",
    "GptOssForCausalLM",
    STRETCHED,
    Set({"norm.scale_in": "float32", "attention.sinks": True}),
    Set({"feedforward.kind": "experts", "feedforward.routing.kind": "softmax_of_chosen"}),
    Set({"feedforward.router_bias": True, "feedforward.expert.kind": "clamped_swiglu"}),
    Set({"feedforward.expert.bias.up": True, "feedforward.expert.bias.down": True}),
    Field("num_local_experts", "feedforward.num_experts"),
    Field("num_experts_per_tok", "feedforward.top_k"),
    Field("intermediate_size", "feedforward.expert.hidden_dim"),
    Field("swiglu_alpha", "feedforward.expert.sharpness"),
    Field("swiglu_limit", "feedforward.expert.limit"),
    common.balance(),
    groups=(Layers(Listed(otherwise=every(2)), common.ROLES),),
    layer_keys={
        "self_attn.sinks": "attention.sinks",
        "mlp.router": "feedforward.router",
        "mlp.experts.gate_up_proj": Fused(
            common.EXPERTS_GATE_UP_WEIGHTS, Transposed(Stacked(interleaved=True))
        ),
        "mlp.experts.gate_up_proj_bias": Fused(
            tuple(f"{name}.bias" for name in common.EXPERTS_GATE_UP), Stacked(interleaved=True)
        ),
        "mlp.experts.down_proj": Fused(("feedforward.experts.down.weight",), Transposed()),
        "mlp.experts.down_proj_bias": "feedforward.experts.down.bias",
    },
)
