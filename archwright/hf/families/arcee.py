"""Arcee: AFM with ungated feed-forwards, and Trinity (AFMoE) with experts."""

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers, Listed, every_by
from archwright.hf.lenses import Activation, Field, Refuse, Set

AFMOE = LLAMA.derive(
    "afmoe",
    "AfmoeForCausalLM",
    Set({"residual.kind": "sandwich", "norm.scale_in": "float32", "attention.gate": "value"}),
    *common.qk_norm("head", "float32"),
    common.flag("mup_enabled", {"embedding.scale": "sqrt_dim"}, {"embedding.scale": "none"}),
    Refuse("score_func", ("sigmoid",)),
    Refuse("route_norm", (True,)),
    groups=(
        Layers(
            Listed(otherwise=every_by("global_attn_every_n_layers")),
            common.rope_in_windows(common.ROPE),
        ),
        common.sparse(
            common.first_dense("num_dense_layers"),
            *common.experts("num_experts", "moe_intermediate_size", **common.SIGMOID),
            Field("route_scale", "feedforward.routed_scaling_factor"),
            common.shared("num_shared_experts"),
        ),
    ),
    layer_keys={
        "post_attention_layernorm": "residual.out_norms.attention",
        "pre_mlp_layernorm": "residual.norms.feedforward",
        "post_mlp_layernorm": "residual.out_norms.feedforward",
        "self_attn.gate_proj": "attention.gate",
        "mlp.router.gate": "feedforward.router",
        "mlp.expert_bias": "feedforward.selection_bias",
        **common.listed(),
        **common.gated("mlp.shared_experts", "feedforward.shared"),
    },
    undeclared={"score_func": "sigmoid", "route_norm": True},
)

PLAIN = Activation("hidden_act", gated=False)
ARCEE = LLAMA.derive("arcee", "ArceeForCausalLM", PLAIN)
