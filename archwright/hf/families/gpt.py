"""GPT and its kin: LayerNorm, learned positions or RoPE, plain feed-forwards, names of OpenAI's code."""

from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.layouts import ByGroup, Layout, Rows, Transposed
from archwright.hf.lenses import (
    MISSING,
    Activation,
    Computed,
    Config,
    Either,
    Field,
    Get,
    Refuse,
    Set,
    Switch,
    Table,
    Write,
)
from archwright.hf.weight_map import Fused
from archwright.spec.attention import SoftmaxAttention
from archwright.spec.model_spec import LayerSpec

QKV = ("attention.query", "attention.key", "attention.value")
QKV_BIASES = {f"attention.bias.{part}": True for part in ("query", "key", "value")}
FEEDFORWARD_BIASES = {"feedforward.bias.up": True, "feedforward.bias.down": True}
ALL_BIASES = {**QKV_BIASES, "attention.bias.out": True, **FEEDFORWARD_BIASES}
NO_QKV_BIASES = dict.fromkeys(QKV_BIASES, False)
LAYER_NORM = {"norm.kind": "layer", "norm.weight": "plain", "norm.bias": True}
GPT_SIZES = (
    Field("vocab_size", "vocab_size"),
    Field("n_positions", "context_length"),
    Field("n_embd", "dim"),
    Field("n_layer", "num_layers"),
    Field("n_head", "attention.num_heads"),
)
USUAL_WORDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
"""The words of other families, which classes with words of their own understand, too."""

GPT_DROPOUTS = (
    Field("embd_pdrop", "embedding.dropout"),
    Field("resid_pdrop", "residual.dropout"),
    Field("attn_pdrop", "attention.dropout"),
)


def conv1d(*ours: str) -> Fused:
    """Return maps side by side in one matrix of [in, out]."""
    return Fused(ours, Transposed(Rows()))


def by_head(layer: LayerSpec) -> ByGroup:
    """Return the layout of a matrix in which each key-value head has its queries, key and value together."""
    assert isinstance(layer.attention, SoftmaxAttention)
    assert layer.attention.head_dim != "auto"
    return ByGroup(head_dim=layer.attention.head_dim)


def hidden(key: str, dim: str) -> Either:
    """Return the lens of a hidden width that is 4 times the model's where the key is null."""
    return Either(
        lambda config: config[key] is not None,
        lambda get: True,
        (Field(key, "feedforward.hidden_dim"),),
        (Field(dim, "feedforward.hidden_dim", times=4),),
    )


SCALED = Switch(
    "scale_attn_weights",
    {True: Set({"attention.scale.kind": "sqrt"}), False: Set({"attention.scale.kind": "none"})},
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
        *GPT_SIZES,
        *GPT_DROPOUTS,
        Set({"residual.kind": "pre", **LAYER_NORM, "position.kind": "learned"}),
        Activation("activation_function", gated=False),
        Set({"attention.kind": "softmax", **ALL_BIASES}),
        Field("layer_norm_epsilon", "norm.eps"),
        hidden("n_inner", "n_embd"),
        SCALED,
        BY_LAYER,
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "ln_1": "residual.norms.attention",
        "ln_2": "residual.norms.feedforward",
        "attn.c_attn": conv1d(*QKV),
        "attn.c_proj": conv1d("attention.out"),
        "mlp.c_fc": conv1d("feedforward.up"),
        "mlp.c_proj": conv1d("feedforward.down"),
    },
    model_keys={
        "transformer.wte": "embedding",
        "transformer.wpe": "position.table",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
    key_aliases=USUAL_WORDS,
)

GPT1 = GPT2.derive(
    "openai-gpt",
    "OpenAIGPTLMHeadModel",
    Set({"residual.kind": "post"}),
    Activation("afn", gated=False, names={"gelu": {"kind": "gelu", "approximate": "tanh"}}),
    Field("n_embd", "feedforward.hidden_dim", times=4),
    model_keys={
        "transformer.wte": None,
        "transformer.wpe": None,
        "transformer.ln_f": None,
        "transformer.tokens_embed": "embedding",
        "transformer.positions_embed": "position.table",
    },
    without=(
        "activation_function",
        "n_inner",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
    ),
    ignored=(r".*\.attn\.bias", r".*position_ids"),
    undeclared={
        "n_inner": None,
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
)


GPT_NEO = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("max_position_embeddings", "context_length"),
        Field("hidden_size", "dim"),
        Field("num_layers", "num_layers"),
        Field("num_heads", "attention.num_heads"),
        Set({"residual.kind": "pre", **LAYER_NORM, "position.kind": "learned"}),
        Field("embed_dropout", "embedding.dropout"),
        Field("resid_dropout", "residual.dropout"),
        Field("attention_dropout", "attention.dropout"),
        Activation("activation_function", gated=False),
        Set({"attention.kind": "softmax", **ALL_BIASES, **NO_QKV_BIASES}),
        Set({"attention.scale.kind": "none"}),
        Field("layer_norm_epsilon", "norm.eps"),
        hidden("intermediate_size", "hidden_size"),
        Field("tie_word_embeddings", "head.tied"),
    ),
    groups=(
        Layers(
            CustomPattern(
                lambda config, n: [x for kinds, k in config["attention_types"] for x in kinds * k],
                lambda roles: {"attention_types": [[roles, 1]], "attention_layers": roles},
            ),
            {
                "global": Role({"attention.mask.kind": "causal"}),
                "local": Role(
                    {"attention.mask.kind": "window"},
                    (Field("window_size", "attention.mask.size"),),
                ),
            },
        ),
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "ln_1": "residual.norms.attention",
        "ln_2": "residual.norms.feedforward",
        "attn.attention.q_proj": "attention.query",
        "attn.attention.k_proj": "attention.key",
        "attn.attention.v_proj": "attention.value",
        "attn.attention.out_proj": "attention.out",
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
    model_keys=GPT2.model_keys,
    prefix="transformer.",
    ignored=(r".*\.attn\.attention\.(bias|masked_bias)",),
    key_aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    undeclared={"attention_types": [[["global", "local"], 12]]},
)


def _read_rotary_dim(config: Config) -> Table:
    head_dim = config["n_embd"] // config["n_head"]
    turning = config["rotary_dim"] or head_dim
    return {"position": {"kind": "rope", "pairing": "interleaved", "fraction": turning / head_dim}}


def _write_rotary_dim(get: Get) -> dict[str, object]:
    head_dim = get("attention.head_dim")
    if get("position.kind") != "rope" or head_dim is MISSING:
        return {}
    return {"rotary_dim": int(head_dim * get("position.fraction"))}


GPT_J = Family(
    "gptj",
    "GPTJForCausalLM",
    lenses=(
        *GPT_SIZES,
        *GPT_DROPOUTS,
        Set({"residual.kind": "parallel", "residual.num_norms": 1, **LAYER_NORM}),
        Computed(_read_rotary_dim, _write_rotary_dim),
        Activation("activation_function", gated=False),
        Set({"attention.kind": "softmax", **FEEDFORWARD_BIASES, "head.bias": True}),
        Field("layer_norm_epsilon", "norm.eps"),
        hidden("n_inner", "n_embd"),
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "ln_1": "residual.norms.shared",
        "attn.q_proj": "attention.query",
        "attn.k_proj": "attention.key",
        "attn.v_proj": "attention.value",
        "attn.out_proj": "attention.out",
        "mlp.fc_in": "feedforward.up",
        "mlp.fc_out": "feedforward.down",
    },
    model_keys={"transformer.wte": "embedding", "transformer.ln_f": "norm", "lm_head": "head"},
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias|causal_mask)",),
    key_aliases=USUAL_WORDS,
)

CODEGEN = GPT_J.derive(
    "codegen",
    "CodeGenForCausalLM",
    layer_keys={
        "attn.q_proj": None,
        "attn.k_proj": None,
        "attn.v_proj": None,
        # Four shards, as it was trained on four devices each.
        "attn.qkv_proj": Fused(
            ("attention.query", "attention.value", "attention.key"), ByGroup(groups=4)
        ),
    },
)

GPT_BIGCODE = GPT2.derive(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    Either(
        lambda config: bool(config["multi_query"]),
        lambda get: get("attention.num_kv_heads") == 1,
        (Set({"attention.num_kv_heads": 1}), Write({"multi_query": True})),
        (Write({"multi_query": False}),),
    ),
    layer_keys={
        # One key-value head: queries, key, value; otherwise the three of each head together.
        "attn.c_attn": Fused(QKV, lambda layer: _bigcode(layer)),
        "attn.c_proj": "attention.out",
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
    without=("scale_attn_by_inverse_layer_idx",),
    undeclared={"scale_attn_by_inverse_layer_idx": False},
)


def _bigcode(layer: LayerSpec) -> Layout:
    assert isinstance(layer.attention, SoftmaxAttention)
    return Rows() if layer.attention.num_kv_heads == 1 else by_head(layer)


GPT_FAMILIES = (GPT1, GPT2, GPT_NEO, GPT_J, CODEGEN, GPT_BIGCODE)
