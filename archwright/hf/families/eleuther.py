"""EleutherAI: GPT-Neo, GPT-J, and GPT-NeoX with its Japanese variant."""

from archwright.hf.families import common
from archwright.hf.families.gpt import GPT2
from archwright.hf.family import Family
from archwright.hf.layer_types import CustomPattern, Layers, Role
from archwright.hf.lenses import MISSING, Activation, Computed, Config, Field, Get, Set, Table
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused

GPT_NEO = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("max_position_embeddings", "context_length"),
        Field("hidden_size", "dim"),
        Field("num_layers", "num_layers"),
        Field("num_heads", "attention.num_heads"),
        Set({"residual.kind": "pre", **common.LAYER_NORM, "position.kind": "learned"}),
        Field("embed_dropout", "embedding.dropout"),
        Field("resid_dropout", "residual.dropout"),
        common.DROPOUT,
        Activation("activation_function", gated=False),
        Set({"attention.kind": "softmax", **common.ALL_BIASES, **common.NO_QKV_BIASES}),
        Set({"attention.scale.kind": "none"}),
        Field("layer_norm_epsilon", "norm.eps"),
        common.hidden("intermediate_size", "hidden_size"),
        common.TIED,
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
        "ln_1": "residual.norms.{mixer}",
        "ln_2": "residual.norms.feedforward",
        **common.attention_names("attn.attention"),
        "mlp.c_fc": "feedforward.up",
        "mlp.c_proj": "feedforward.down",
    },
    model_keys=GPT2.model_keys,
    prefix="transformer.",
    ignored=(r".*\.attn\.attention\.(bias|masked_bias)",),
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
        *common.GPT_SIZES,
        *common.GPT_DROPOUTS,
        Set({"residual.kind": "parallel", "residual.num_norms": 1, **common.LAYER_NORM}),
        Computed(_read_rotary_dim, _write_rotary_dim),
        Activation("activation_function", gated=False),
        Set({"attention.kind": "softmax", **common.FEEDFORWARD_BIASES, "head.bias": True}),
        Field("layer_norm_epsilon", "norm.eps"),
        common.hidden("n_inner", "n_embd"),
        common.TIED,
    ),
    layers="transformer.h.{i}.",
    layer_keys={
        "ln_1": "residual.norms.shared",
        **common.attention_names("attn"),
        "mlp.fc_in": "feedforward.up",
        "mlp.fc_out": "feedforward.down",
    },
    model_keys={"transformer.wte": "embedding", "transformer.ln_f": "norm", "lm_head": "head"},
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias|causal_mask)",),
)

GPT_NEOX = Family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    lenses=(
        *common.SIZES,
        common.flag(
            "use_parallel_residual",
            {"residual.kind": "parallel", "residual.num_norms": 2},
            {"residual.kind": "pre"},
        ),
        Set({**common.LAYER_NORM, "attention.kind": "softmax"}),
        Field("layer_norm_eps", "norm.eps"),
        Rope(fraction="rotary_pct", theta="rotary_emb_base"),
        Field("hidden_dropout", "residual.dropout"),
        common.DROPOUT,
        common.ATTENTION_BIAS,
        Activation("hidden_act", gated=False),
        Set(common.FEEDFORWARD_BIASES),
        common.HIDDEN,
        common.TIED,
    ),
    layers="gpt_neox.layers.{i}.",
    layer_keys={
        "input_layernorm": "residual.norms.{mixer}",
        "post_attention_layernorm": "residual.norms.feedforward",
        "attention.query_key_value": Fused(common.QKV, common.by_head),
        "attention.dense": "attention.out",
        **common.FEEDFORWARD_NAMES,
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
    divisible = width is not MISSING and width % dim == 0
    return {"intermediate_multiple_size": width // dim} if divisible else {}


OUT_BIAS = "attention.bias.out"
GPT_NEOX_JAPANESE = GPT_NEOX.derive(
    "gpt_neox_japanese",
    "GPTNeoXJapaneseForCausalLM",
    Set({"residual.kind": "pre", **dict.fromkeys(common.ALL_BIASES, False)}),
    Computed(_read_multiple, _write_multiple),
    # Only the last layer has a bias, on the attention output.
    groups=(
        Layers(
            CustomPattern(lambda config, n: ["plain"] * (n - 1) + ["biased"], lambda roles: {}),
            {"biased": Role({OUT_BIAS: True}), "plain": Role({OUT_BIAS: False})},
        ),
    ),
    prefix="gpt_neox_japanese.",
    layer_keys={
        "attention.dense.weight": "attention.out.weight",
        "attention.dense_bias": "attention.out.bias",
    },
    undeclared={"rotary_pct": 1.0},
)
