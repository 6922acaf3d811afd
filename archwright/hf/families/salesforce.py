"""Salesforce: CTRL with sinusoidal positions, and CodeGen."""

from archwright.hf.families.common import ALL_BIASES, GPT_SIZES, LAYER_NORM, TIED, attention_names
from archwright.hf.families.eleuther import GPT_J
from archwright.hf.family import Family
from archwright.hf.layouts import ByGroup
from archwright.hf.lenses import Field, Set
from archwright.hf.weight_map import Fused

CODEGEN = GPT_J.derive(
    "codegen",
    "CodeGenForCausalLM",
    layer_keys={
        # Rows are grouped in four shards, one per training device.
        "attn.qkv_proj": Fused(
            ("attention.query", "attention.value", "attention.key"), ByGroup(groups=4)
        )
    },
)

CTRL = Family(
    "ctrl",
    "CTRLLMHeadModel",
    lenses=(
        *GPT_SIZES,
        Set({"residual.kind": "pre", **LAYER_NORM, "attention.kind": "softmax"}),
        Field("layer_norm_epsilon", "norm.eps"),
        Set({"position.kind": "sinusoidal", "position.layout": "half"}),
        Set({"embedding.scale": "sqrt_dim", "feedforward.kind": "relu", "head.bias": True}),
        Field("resid_pdrop", "residual.dropout"),
        Field("embd_pdrop", "embedding.dropout"),
        Field("dff", "feedforward.hidden_dim"),
        Set(ALL_BIASES),
        TIED,
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "layernorm1": "residual.norms.{mixer}",
        "layernorm2": "residual.norms.feedforward",
        **attention_names("multi_head_attention", maps=("Wq", "Wk", "Wv", "dense")),
        "ffn.0": "feedforward.up",
        "ffn.2": "feedforward.down",
    },
    model_keys={"transformer.w": "embedding", "transformer.layernorm": "norm", "lm_head": "head"},
    prefix="transformer.",
)
