"""Cohere Command: parallel branches after one norm, and scaled logits."""

from typing import Any

from archwright.hf.families.common import (
    CAUSAL,
    EXPERTS,
    WINDOW,
    dense,
    experts,
    gated,
    layer_qk_norm,
    rope_in_windows,
    shared,
)
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern, Layers, Listed, Role, every, every_by
from archwright.hf.lenses import Config, Either, Field, Set, Switch, Write
from archwright.hf.rope import Rope
from archwright.spec.errors import UserError

INTERLEAVED = Rope(pairing="interleaved", fraction="")


COHERE = LLAMA.derive(
    "cohere",
    "CohereForCausalLM",
    Set({"residual.kind": "parallel", "residual.num_norms": 1}),
    Set({"norm.kind": "layer", "norm.bias": False}),
    Field("layer_norm_eps", "norm.eps"),
    INTERLEAVED,
    layer_qk_norm("use_qk_norm", "per_head"),
    Field("logit_scale", "head.logit_scale"),
    layer_keys={"input_layernorm": "residual.norms.shared"},
)

COHERE2 = COHERE.derive(
    "cohere2",
    "Cohere2ForCausalLM",
    groups=(
        Layers(Listed(otherwise=every_by("sliding_window_pattern")), rope_in_windows(INTERLEAVED)),
    ),
    undeclared={"sliding_window_pattern": 4},
)


def _read_types(config: Config, n: int) -> list[str]:
    """Return each layer's role, from its mask and feed-forward types."""
    first = config["first_k_dense_replace"]
    step = config["prefix_dense_sliding_window_pattern"]
    kinds = config["mlp_layer_types"] or ["dense" if i < first else "sparse" for i in range(n)]
    masks = config["layer_types"] or [
        *every(step)(config, first),
        *every_by("sliding_window_pattern")(config, n - first),
    ]
    if len(kinds) != len(masks):
        raise UserError(
            f"config.json: mlp_layer_types: found {len(kinds)} layers; expected {len(masks)}"
        )
    roles = [f"{mask}_{kind}" for mask, kind in zip(masks, kinds, strict=True)]
    turned = {FULL_DENSE: f"turned_{FULL_DENSE}"} if step == 1 else {}
    return [turned.get(role, role) for role in roles]


def _write_types(roles: list[str]) -> dict[str, Any]:
    pairs = [role.removeprefix("turned_").rpartition("_") for role in roles]
    return {
        "layer_types": [mask for mask, _, _ in pairs],
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
    """Return the roles. Window layers have RoPE; dense full-attention layers may have it."""
    mixed, turned, still = (
        {"feedforward.kind": "experts"},
        {"position.kind": "rope"},
        {"position.kind": "none"},
    )
    near, near_values = (*WINDOW.lenses, INTERLEAVED), {**WINDOW.values, **turned}
    return {
        "sliding_attention_sparse": Role({**near_values, **mixed}, (*near, *MIXTURE)),
        "full_attention_sparse": Role({**CAUSAL.values, **still, **mixed}, MIXTURE),
        "sliding_attention_dense": Role(near_values, (*near, *DENSE)),
        f"turned_{FULL_DENSE}": Role({**CAUSAL.values, **turned}, (INTERLEAVED, *DENSE)),
        FULL_DENSE: Role({**CAUSAL.values, **still}, DENSE),
    }


COHERE2_MOE = LLAMA.derive(
    "cohere2_moe",
    "Cohere2MoeForCausalLM",
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
        **EXPERTS,
        **gated("mlp.shared_experts", "feedforward.shared"),
    },
    undeclared={"first_k_dense_replace": 0},
)
