"""Llama and what differs from it in a few choices: serial pre-norm layers, RMSNorm, RoPE, SwiGLU."""

from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.lenses import Activation, Either, Field, Set, Switch
from archwright.hf.rope import Rope

SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("hidden_size", "dim"),
    Field("num_hidden_layers", "num_layers"),
    Field("max_position_embeddings", "context_length"),
    Field("num_attention_heads", "attention.num_heads"),
)
"""Lenses of the keys that almost all families share."""

HEAD_DIM = Either(
    lambda config: config["head_dim"] is not None,
    lambda get: True,
    (Field("head_dim", "attention.head_dim"),),
)
"""The width of heads; null leaves it to dim / num_heads."""

KV_HEADS = Field("num_key_value_heads", "attention.num_kv_heads", same_as="num_attention_heads")
RMS = {"norm.kind": "rms", "norm.scale_in": "input_dtype"}
PRE_RMS = Set({"residual.kind": "pre", **RMS})
EPS = Field("rms_norm_eps", "norm.eps")
ROPE = Rope(fraction="")
QKV_BIAS = {"attention.bias.query": True, "attention.bias.key": True, "attention.bias.value": True}
NO_QKV_BIAS = dict.fromkeys(QKV_BIAS, False)
SOFTMAX = Set({"attention.kind": "softmax"})
DROPOUT = Field("attention_dropout", "attention.dropout")
GATED = Activation("hidden_act", gated=True)
HIDDEN = Field("intermediate_size", "feedforward.hidden_dim")
TIED = Field("tie_word_embeddings", "head.tied")

CAUSAL = Role({"attention.mask.kind": "causal"})
WINDOW = Role({"attention.mask.kind": "window"}, (Field("sliding_window", "attention.mask.size"),))
ROLES = {"full_attention": CAUSAL, "sliding_attention": WINDOW}

ALL_OR_NONE = CustomPattern(
    lambda config, n: (
        ["full_attention" if config["sliding_window"] is None else "sliding_attention"] * n
    ),
    lambda roles: {} if "sliding_attention" in roles else {"sliding_window": None},
)
"""A window in all layers, or in none."""


def bias(key: str, path: str, *parts: str) -> Switch:
    """Return the lens of a key that gives a module's maps their biases."""
    values = {f"{path}.bias.{part}": True for part in parts}
    return Switch(key, {True: Set(values), False: Set(dict.fromkeys(values, False))})


ATTENTION_BIAS = bias("attention_bias", "attention", "query", "key", "value", "out")
MLP_BIAS = bias("mlp_bias", "feedforward", "up", "down")
NO_ATTENTION_BIAS = Set(NO_QKV_BIAS | {"attention.bias.out": False})
NO_MLP_BIAS = Set({"feedforward.bias.up": False, "feedforward.bias.down": False})

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    lenses=(
        *SIZES,
        HEAD_DIM,
        KV_HEADS,
        PRE_RMS,
        EPS,
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
        "input_layernorm": "residual.norms.attention",
        "post_attention_layernorm": "residual.norms.feedforward",
        "self_attn.q_proj": "attention.query",
        "self_attn.k_proj": "attention.key",
        "self_attn.v_proj": "attention.value",
        "self_attn.o_proj": "attention.out",
        "mlp.gate_proj": "feedforward.gate",
        "mlp.up_proj": "feedforward.up",
        "mlp.down_proj": "feedforward.down",
    },
    model_keys={"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head"},
    ignored=(r".*\.rotary_emb\.inv_freq",),
    undeclared={"head_dim": None},
)

MISTRAL = LLAMA.derive(
    "mistral",
    "MistralForCausalLM",
    NO_ATTENTION_BIAS,
    NO_MLP_BIAS,
    without=(ATTENTION_BIAS, MLP_BIAS),
    groups=(Layers(ALL_OR_NONE, ROLES),),
)

LLAMA_FAMILIES = (LLAMA, MISTRAL)
