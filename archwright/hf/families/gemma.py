"""Gemma: norms that multiply by 1 + w, embeddings times sqrt(dim), GEGLU, and from Gemma 2 on windows, soft-caps
and four norms in a layer."""

from archwright.hf.families.llama import (
    EPS,
    GATED,
    LLAMA,
    MLP_BIAS,
    NO_MLP_BIAS,
    ROLES,
    ROPE,
    WINDOW,
)
from archwright.hf.families.qwen import ALL_EPS, HEAD_NORM_NAMES, HEAD_NORMS
from archwright.hf.layers import Layers, Listed, Role, every, every_by
from archwright.hf.lenses import Activation, At, Refuse, Set
from archwright.hf.rope import Rope

TANH = {"kind": "geglu", "approximate": "tanh"}
NORM = {"norm.weight": "unit_offset", "norm.scale_in": "float32"}
TWO_WAY = Refuse("use_bidirectional_attention", (None, False))
EVERY_SECOND = Layers(Listed(otherwise=every(2, "full_attention", "sliding_attention")), ROLES)

GEMMA = LLAMA.but(
    "gemma",
    "GemmaForCausalLM",
    Set({**NORM, "embedding.scale": "sqrt_dim"}),
    # Early files say "gelu" and mean its approximation.
    Activation("hidden_act", gated=True, names={"gelu_pytorch_tanh": TANH, "gelu": TANH}),
    NO_MLP_BIAS,
    TWO_WAY,
    without=(GATED, MLP_BIAS),
    defaults={
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
    },
)

VAULT_GEMMA = LLAMA.but(
    "vaultgemma",
    "VaultGemmaForCausalLM",
    Set({**NORM, "embedding.scale": "sqrt_dim", "attention.scale.kind": "sqrt"}),
    At("query_pre_attn_scalar", "attention.scale.dim"),
    Activation("hidden_activation", gated=True),
    At("attn_logit_softcapping", "attention.softcap", or_none=True),
    At("final_logit_softcapping", "head.softcap", or_none=True),
    NO_MLP_BIAS,
    without=(GATED, MLP_BIAS),
    defaults={
        **GEMMA.defaults,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    of_layer={
        "post_attention_layernorm": None,
        "pre_feedforward_layernorm": "residual.norms.feedforward",
    },
    groups=(EVERY_SECOND,),
)

GEMMA2 = VAULT_GEMMA.but(
    "gemma2",
    "Gemma2ForCausalLM",
    Set({"residual.kind": "sandwich"}),
    TWO_WAY,
    of_layer={
        "post_attention_layernorm": "residual.out_norms.attention",
        "post_feedforward_layernorm": "residual.out_norms.feedforward",
    },
)


GEMMA3 = GEMMA2.but(
    "gemma3_text",
    "Gemma3ForCausalLM",
    Set(HEAD_NORMS),
    Set({"attention.qk_norm.weight": "unit_offset", "attention.qk_norm.scale_in": "float32"}),
    ALL_EPS,
    Refuse("attn_logit_softcapping", (None,)),  # the class has the key, and leaves it aside
    without=(EPS, ROPE, At("attn_logit_softcapping", "attention.softcap", or_none=True)),
    defaults={
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    of_layer=HEAD_NORM_NAMES,
    groups=(
        Layers(
            Listed(otherwise=every_by("sliding_window_pattern")),
            {
                "full_attention": Role(
                    {"attention.mask.kind": "causal"},
                    (Rope(fraction="", layer_type="full_attention"),),
                ),
                "sliding_attention": Role(
                    WINDOW.told_by,
                    (
                        *WINDOW.lenses,
                        Rope(
                            fraction="",
                            theta="rope_local_base_freq",
                            layer_type="sliding_attention",
                            scaled=False,
                        ),
                    ),
                ),
            },
        ),
    ),
)

GEMMA_FAMILIES = (GEMMA, GEMMA2, GEMMA3, VAULT_GEMMA)
