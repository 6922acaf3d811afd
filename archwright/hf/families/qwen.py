"""Alibaba Qwen 2 to 3.5, dense and with experts."""

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, every_by
from archwright.hf.layouts import ByGroup, Stacked
from archwright.hf.lenses import Config, Field, Refuse, Set
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused
from archwright.spec.model_spec import LayerSpec


def _stepped(config: Config, n: int) -> list[str]:
    """Return the feed-forward types, from `decoder_sparse_step` and `mlp_only_layers`."""
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


SHARED_EXPERT = (
    Field("shared_expert_intermediate_size", "feedforward.shared_hidden_dim"),
    common.balance(),
)
SHARED_EXPERT_NAMES = {
    **common.EXPERTS,
    "mlp.shared_expert_gate": "feedforward.shared_gate",
    **common.gated("mlp.shared_expert", "feedforward.shared"),
}

QWEN2_MOE = LLAMA.derive(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    common.flag("qkv_bias", common.QKV_BIASES),
    groups=(
        Layers(common.switched(_alternating), common.ROLES),
        common.sparse(
            STEPPED,
            *common.experts("num_experts", "moe_intermediate_size", shared="gated"),
            Field("norm_topk_prob", "feedforward.normalize_weights"),
            *SHARED_EXPERT,
        ),
    ),
    layer_keys=SHARED_EXPERT_NAMES,
)

QWEN3_MOE = LLAMA.derive(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    *common.qk_norm(),
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
            common.ROLES,
        ),
        common.sparse(
            STEPPED,
            *common.experts("num_experts", "moe_intermediate_size"),
            Field("norm_topk_prob", "feedforward.normalize_weights"),
            common.balance(),
        ),
    ),
    layer_keys={**common.EXPERTS},
)


def _upper_layers(config: Config, num_layers: int) -> list[str]:
    slides = config["use_sliding_window"] and config["sliding_window"] is not None
    first = config["max_window_layers"] if slides else num_layers
    return ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]


UPPER_LAYERS = common.switched(Listed(otherwise=_upper_layers).read)
"""Pattern with windows from layer `max_window_layers`, if `use_sliding_window` is true."""

QWEN2 = LLAMA.derive(
    "qwen2",
    "Qwen2ForCausalLM",
    Set(common.QKV_BIASES),
    groups=(Layers(UPPER_LAYERS, common.ROLES),),
)

QWEN3 = LLAMA.derive("qwen3", "Qwen3ForCausalLM", *common.qk_norm(), groups=QWEN2.groups)


def _by_query_head(layer: LayerSpec) -> ByGroup:
    return ByGroup(groups=common.attention_size(layer, "num_heads"))


DECAY = "recurrence.decay."
GATED_DELTA = Layers(
    Listed(otherwise=every_by("full_attention_interval", "linear_attention")),
    {
        "full_attention": common.ATTENDING,
        "linear_attention": common.gated_delta(
            Field("rms_norm_eps", "recurrence.out_norm.eps"),
            # Initial values: rates uniform in (0.01, 16), and a bias of 1, as softplus(1) = 1.3133.
            Set({DECAY + "least_rate": 0.01, DECAY + "most_rate": 16.0}),
            Set({DECAY + "least_step": 1.3132616875, DECAY + "most_step": 1.3132616875}),
        ),
    },
)
GATED_ATTENTION = (
    Set({"norm.weight": "unit_offset", "norm.scale_in": "float32", "attention.gate": "value"}),
    *common.qk_norm(scale_in="float32"),
    Set({"attention.qk_norm.weight": "unit_offset"}),
    Refuse("attention_bias", (False,)),
    Rope(),
)
QWEN3_NEXT = LLAMA.derive(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    *GATED_ATTENTION,
    groups=(GATED_DELTA, QWEN2_MOE.groups[1]),
    layer_keys={
        **SHARED_EXPERT_NAMES,
        "self_attn.q_proj": Fused(("attention.query", "attention.gate"), _by_query_head),
        "linear_attn.in_proj_qkvz": Fused(
            (*common.RECURRENT_QKV, "recurrence.gate"), common.by_key_head
        ),
        "linear_attn.in_proj_ba": Fused(("recurrence.write", DECAY + "step"), common.by_key_head),
        **common.recurrence_names(
            "linear_attn",
            conv1d=("query_conv", "key_conv", "value_conv"),
            A_log="decay.log_rate",
            dt_bias="decay.step_bias",
            out_proj="out",
        ),
        "linear_attn.norm": common.GATED_NORM,
    },
    ignored=(*LLAMA.ignored, r"mtp\..*"),
    undeclared={"partial_rotary_factor": 0.25, "full_attention_interval": 4},
)

QWEN3_5 = QWEN3_NEXT.derive(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    *GATED_ATTENTION,
    common.GATED,
    common.HIDDEN,
    groups=(GATED_DELTA,),
    layer_keys={
        **common.recurrence_names(
            "linear_attn",
            in_proj_qkv=("query", "key", "value"),
            in_proj_z="gate",
            in_proj_b="write",
            in_proj_a="decay.step",
        ),
    },
)

QWEN3_5_MOE = QWEN3_5.derive(
    "qwen3_5_moe_text",
    "Qwen3_5MoeForCausalLM",
    *GATED_ATTENTION,
    *common.experts("num_experts", "moe_intermediate_size", shared="gated", normalize_weights=True),
    *SHARED_EXPERT,
    groups=(GATED_DELTA,),
    # Names in multimodal files.
    other_layer_keys={
        "mlp.experts.gate_up_proj": Fused(common.EXPERTS_GATE_UP_WEIGHTS, Stacked()),
        "mlp.experts.down_proj": "feedforward.experts.down.weight",
    },
)
