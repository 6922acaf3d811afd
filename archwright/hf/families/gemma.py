"""Google Gemma 1 to 3 and VaultGemma."""

from archwright.hf.families.common import ROLES, by_type, qk_norm
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers, Listed, every, every_by
from archwright.hf.lenses import Activation, Field, Refuse, Set
from archwright.hf.rope import Rope

TANH = {"kind": "geglu", "approximate": "tanh"}
NORM = {"norm.weight": "unit_offset", "norm.scale_in": "float32"}
TWO_WAY = Refuse("use_bidirectional_attention", (None, False))
EVERY_SECOND = Layers(Listed(otherwise=every(2)), ROLES)
GEMMA = LLAMA.derive(
    "gemma",
    "GemmaForCausalLM",
    Set({**NORM, "embedding.scale": "sqrt_dim"}),
    # In early files, "gelu" means the tanh approximation.
    Activation("hidden_act", gated=True, names={"gelu_pytorch_tanh": TANH, "gelu": TANH}),
    TWO_WAY,
)

VAULT_GEMMA = LLAMA.derive(
    "vaultgemma",
    "VaultGemmaForCausalLM",
    Set({**NORM, "embedding.scale": "sqrt_dim", "attention.scale.kind": "sqrt"}),
    Field("query_pre_attn_scalar", "attention.scale.dim"),
    Activation("hidden_activation", gated=True),
    Field("attn_logit_softcapping", "attention.softcap", or_none=True),
    Field("final_logit_softcapping", "head.softcap", or_none=True),
    layer_keys={"pre_feedforward_layernorm": "residual.norms.feedforward"},
    groups=(EVERY_SECOND,),
    undeclared={"use_bidirectional_attention": None},
)

GEMMA2 = VAULT_GEMMA.derive(
    "gemma2",
    "Gemma2ForCausalLM",
    Set({"residual.kind": "sandwich"}),
    TWO_WAY,
    layer_keys={
        "post_attention_layernorm": "residual.out_norms.attention",
        "post_feedforward_layernorm": "residual.out_norms.feedforward",
    },
)

GEMMA3 = GEMMA2.derive(
    "gemma3_text",
    "Gemma3ForCausalLM",
    *qk_norm(scale_in="float32"),
    Set({"attention.qk_norm.weight": "unit_offset"}),
    Refuse("attn_logit_softcapping", (None,)),  # declared by the class, but unused
    groups=(
        Layers(
            Listed(otherwise=every_by("sliding_window_pattern")),
            by_type(
                (Rope(fraction="", layer_type="full_attention"),),
                (
                    Rope(
                        fraction="",
                        theta="rope_local_base_freq",
                        layer_type="sliding_attention",
                        scaled=False,
                    ),
                ),
            ),
        ),
    ),
    undeclared={
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
    },
)
