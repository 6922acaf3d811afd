"""Arcee: feed-forwards of two matrices, and Trinity with experts."""

from archwright.hf.families.common import (
    ATTENTION_BIAS,
    GATED,
    NEAR_TURNED,
    QUERY_KEY_NORM,
    SIGMOID,
    experts,
    gated,
    listed,
    qk_norm,
    shared,
    sparse,
)
from archwright.hf.families.llama import BASE, LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, every_by
from archwright.hf.lenses import Activation, Field, Refuse, Set, Switch

AFMOE = BASE.derive(
    "afmoe",
    "AfmoeForCausalLM",
    ATTENTION_BIAS,
    Set({"residual.kind": "sandwich", "norm.scale_in": "float32", "attention.gate": "value"}),
    *qk_norm("head", "float32"),
    Switch(
        "mup_enabled",
        {True: Set({"embedding.scale": "sqrt_dim"}), False: Set({"embedding.scale": "none"})},
    ),
    Refuse("score_func", ("sigmoid",)),
    Refuse("route_norm", (True,)),
    groups=(
        Layers(Listed(otherwise=every_by("global_attn_every_n_layers")), NEAR_TURNED),
        sparse(
            CustomPattern(
                lambda config, n: [
                    "dense" if i < config["num_dense_layers"] else "sparse" for i in range(n)
                ],
                lambda roles: {"num_dense_layers": [*roles, "sparse"].index("sparse")},
            ),
            *experts("num_experts", "moe_intermediate_size", **SIGMOID),
            Field("route_scale", "feedforward.routed_scaling_factor"),
            shared("num_shared_experts"),
        ),
    ),
    layer_keys={
        "post_attention_layernorm": "residual.out_norms.attention",
        "pre_mlp_layernorm": "residual.norms.feedforward",
        "post_mlp_layernorm": "residual.out_norms.feedforward",
        "self_attn.gate_proj": "attention.gate",
        "mlp.router.gate": "feedforward.router",
        "mlp.expert_bias": "feedforward.selection_bias",
        **listed("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        **gated("mlp.shared_experts", "feedforward.shared"),
        **QUERY_KEY_NORM,
    },
    undeclared={"score_func": "sigmoid", "route_norm": True},
)


PLAIN = Activation("hidden_act", gated=False)


ARCEE = LLAMA.derive(
    "arcee",
    "ArceeForCausalLM",
    PLAIN,
    without=(GATED,),
    layer_keys={"mlp.gate_proj": None},
)
