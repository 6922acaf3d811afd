"""GPT-NeoX and its kin: fused queries, keys and values, parallel branches, ALiBi or partial RoPE."""

from archwright.hf.families.gpt import (
    ALL_BIASES,
    FEEDFORWARD_BIASES,
    LAYER_NORM,
    NO_QKV_BIASES,
    QKV,
    by_head,
    hidden,
)
from archwright.hf.families.llama import SIZES, bias
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.layouts import Rows
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
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused, When

FEEDFORWARD_NAMES = {
    "mlp.dense_h_to_4h": "feedforward.up",
    "mlp.dense_4h_to_h": "feedforward.down",
}

GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    lenses=(
        *SIZES,
        Switch(
            "use_parallel_residual",
            {
                True: Set({"residual.kind": "parallel", "residual.num_norms": 2}),
                False: Set({"residual.kind": "pre"}),
            },
        ),
        Set({**LAYER_NORM, "attention.kind": "softmax"}),
        Field("layer_norm_eps", "norm.eps"),
        Rope(fraction="rotary_pct", theta="rotary_emb_base"),
        Field("hidden_dropout", "residual.dropout"),
        Field("attention_dropout", "attention.dropout"),
        bias("attention_bias", "attention", "query", "key", "value", "out"),
        Activation("hidden_act", gated=False),
        Set(FEEDFORWARD_BIASES),
        Field("intermediate_size", "feedforward.hidden_dim"),
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="gpt_neox.layers.{i}.",
    layer_keys={
        "input_layernorm": "residual.norms.attention",
        "post_attention_layernorm": "residual.norms.feedforward",
        "attention.query_key_value": Fused(QKV, by_head),
        "attention.dense": "attention.out",
        **FEEDFORWARD_NAMES,
    },
    model_keys={
        "gpt_neox.embed_in": "embedding",
        "gpt_neox.final_layer_norm": "norm",
        "embed_out": "head",
    },
    prefix="gpt_neox.",
    ignored=(r".*\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    undeclared={"rotary_pct": 0.25},
)


def _read_multiple(config: Config) -> Table:
    width = int(config["hidden_size"] * config["intermediate_multiple_size"])
    return {"feedforward": {"hidden_dim": width}}


def _write_multiple(get: Get) -> dict[str, object]:
    width, dim = get("feedforward.hidden_dim"), get("dim")
    whole = width is not MISSING and width % dim == 0
    return {"intermediate_multiple_size": width // dim} if whole else {}


NO_FEEDFORWARD_BIASES = dict.fromkeys(FEEDFORWARD_BIASES, False)
OUT_BIAS = "attention.bias.out"

GPT_NEOX_JAPANESE = GPT_NEOX.derive(
    "gpt_neox_japanese",
    "GPTNeoXJapaneseForCausalLM",
    Set({"residual.kind": "pre", **NO_QKV_BIASES, **NO_FEEDFORWARD_BIASES}),
    Computed(_read_multiple, _write_multiple),
    # The last layer alone has a bias, that of its attention's output.
    groups=(
        Layers(
            CustomPattern(lambda config, n: ["plain"] * (n - 1) + ["biased"], lambda roles: {}),
            {"biased": Role({OUT_BIAS: True}), "plain": Role({OUT_BIAS: False})},
        ),
    ),
    layers="gpt_neox_japanese.layers.{i}.",
    prefix="gpt_neox_japanese.",
    model_keys={
        "gpt_neox.embed_in": None,
        "gpt_neox.final_layer_norm": None,
        "gpt_neox_japanese.embed_in": "embedding",
        "gpt_neox_japanese.final_layer_norm": "norm",
    },
    layer_keys={
        "attention.dense": None,
        "attention.dense.weight": "attention.out.weight",
        "attention.dense_bias": "attention.out.bias",
    },
    without=("use_parallel_residual", "attention_bias", "intermediate_size"),
    undeclared={"rotary_pct": 1.0},
)


BLOOM = Family(
    "bloom",
    "BloomForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Field("n_layer", "num_layers"),
        Field("seq_length", "context_length"),
        Field("n_head", "attention.num_heads"),
        Switch(
            "apply_residual_connection_post_layernorm",
            {False: Set({"residual.kind": "pre"}), True: Set({"residual.kind": "norm_residual"})},
        ),
        Set({**LAYER_NORM, "position.kind": "alibi", "position.scaled": False}),
        Set({"attention.kind": "softmax", "embedding.norm.kind": "layer"}),
        Field("layer_norm_epsilon", ("norm.eps", "embedding.norm.eps")),
        Field("hidden_dropout", "residual.dropout"),
        Field("attention_dropout", "attention.dropout"),
        Set({"feedforward.kind": "gelu", "feedforward.approximate": "tanh", **ALL_BIASES}),
        Field("hidden_size", "feedforward.hidden_dim", times=4),
        Field("hidden_size", "dim"),
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "input_layernorm": "residual.norms.attention",
        "post_attention_layernorm": "residual.norms.feedforward",
        "self_attention.query_key_value": Fused(QKV, by_head),
        "self_attention.dense": "attention.out",
        **FEEDFORWARD_NAMES,
    },
    model_keys={
        "transformer.word_embeddings": "embedding",
        "transformer.word_embeddings_layernorm": "embedding_norm",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
    key_aliases={
        "n_embed": "hidden_size",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    undeclared={"seq_length": 2048},
)

FALCON = Family(
    "falcon",
    "FalconForCausalLM",
    lenses=(
        *SIZES,
        Set({**LAYER_NORM, "attention.kind": "softmax"}),
        Field("layer_norm_epsilon", "norm.eps"),
        Switch(
            "alibi",
            {
                False: (Set({"position.kind": "rope"}), Rope()),
                True: Set({"position.kind": "alibi", "position.scaled": True}),
            },
        ),
        Field("hidden_dropout", "residual.dropout"),
        Field("attention_dropout", "attention.dropout"),
        Activation("activation", gated=False),
        Switch("bias", {True: Set(ALL_BIASES), False: Set(dict.fromkeys(ALL_BIASES, False))}),
        hidden("ffn_hidden_size", "hidden_size"),
        Either(
            lambda config: bool(config["new_decoder_architecture"]),
            lambda get: _is_new(get),
            (
                Write({"new_decoder_architecture": True, "parallel_attn": True}),
                Refuse("parallel_attn", (True,)),
                Set({"residual.kind": "parallel"}),
                Switch(
                    "num_ln_in_parallel_attn",
                    {
                        2: Set({"residual.num_norms": 2}),
                        1: Set({"residual.num_norms": 1}),
                        None: Set({"residual.num_norms": 2}),
                    },
                ),
                Field("num_kv_heads", "attention.num_kv_heads", same_as="num_attention_heads"),
            ),
            (
                Switch(
                    "parallel_attn",
                    {
                        True: Set({"residual.kind": "parallel", "residual.num_norms": 1}),
                        False: Set({"residual.kind": "pre"}),
                    },
                ),
                Switch(
                    "multi_query",
                    {
                        True: Set({"attention.num_kv_heads": 1}),
                        False: Field("num_attention_heads", "attention.num_kv_heads"),
                    },
                ),
            ),
        ),
        Field("num_attention_heads", "attention.num_heads"),
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "input_layernorm": (
            "residual.norms.shared",
            When("residual.kind", "pre", "residual.norms.attention"),
        ),
        "post_attention_layernorm": When("residual.kind", "pre", "residual.norms.feedforward"),
        "ln_attn": When("residual.kind", "parallel", "residual.norms.attention"),
        "ln_mlp": When("residual.kind", "parallel", "residual.norms.feedforward"),
        "self_attention.query_key_value": Fused(QKV, by_head),
        "self_attention.dense": "attention.out",
        **FEEDFORWARD_NAMES,
    },
    model_keys={
        "transformer.word_embeddings": "embedding",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
)


def _is_new(get: Get) -> bool:
    """Tell whether only the newer layout has these choices: norms for each branch, or a few key-value heads."""
    parallel = get("residual.kind") == "parallel"
    grouped = get("attention.num_kv_heads") not in (1, get("attention.num_heads"))
    return bool(parallel and (get("residual.num_norms") == 2 or grouped))


MPT = Family(
    "mpt",
    "MptForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("n_layers", "num_layers"),
        Field("max_seq_len", "context_length"),
        Field("n_heads", "attention.num_heads"),
        Set({"residual.kind": "pre", **LAYER_NORM, "norm.bias": False}),
        Field("layer_norm_epsilon", "norm.eps"),
        Field("emb_pdrop", "embedding.dropout"),
        Field("resid_pdrop", "residual.dropout"),
        Set({"position.kind": "alibi", "position.scaled": False, "attention.kind": "softmax"}),
        Either(
            lambda config: bool(config["attn_config"]["clip_qkv"]),
            lambda get: get("attention.qkv_clip") != "none",
            (Field("attn_config.clip_qkv", "attention.qkv_clip"),),
        ),
        Either(
            lambda config: config["attn_config"]["softmax_scale"] is not None,
            lambda get: get("attention.scale.kind") == "fixed",
            (
                Set({"attention.scale.kind": "fixed"}),
                Field("attn_config.softmax_scale", "attention.scale.value"),
            ),
        ),
        Refuse("attn_config.attn_type", ("multihead_attention",)),
        Refuse("attn_config.prefix_lm", (False,)),
        Refuse("attn_config.qk_ln", (False,)),
        Refuse("attn_config.alibi", (True,)),
        Field(
            "attn_config.alibi_bias_max", "position.bias_max"
        ),  # transformers takes 8 whatever it says
        Refuse("logit_scale", (None,)),
        Refuse("no_bias", (True,)),
        Set({"feedforward.kind": "gelu"}),
        Field("d_model", "feedforward.hidden_dim", times=4),
        Field("d_model", "dim"),
        Field("tie_word_embeddings", "head.tied"),
    ),
    layers="transformer.blocks.{i}.",
    layer_keys={
        "norm_1": "residual.norms.attention",
        "norm_2": "residual.norms.feedforward",
        "attn.Wqkv": Fused(QKV, Rows()),
        "attn.out_proj": "attention.out",
        "ffn.up_proj": "feedforward.up",
        "ffn.down_proj": "feedforward.down",
    },
    model_keys={"transformer.wte": "embedding", "transformer.norm_f": "norm", "lm_head": "head"},
    prefix="transformer.",
    key_aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    },
)

NEOX_FAMILIES = (GPT_NEOX, GPT_NEOX_JAPANESE, BLOOM, FALCON, MPT)
