"""Alibaba Qwen 2 and Qwen 3, dense and with experts."""

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed
from archwright.hf.lenses import Config, Field, Set


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
            Field("shared_expert_intermediate_size", "feedforward.shared_hidden_dim"),
            common.balance(),
        ),
    ),
    layer_keys={
        **common.EXPERTS,
        "mlp.shared_expert_gate": "feedforward.shared_gate",
        **common.gated("mlp.shared_expert", "feedforward.shared"),
    },
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
