"""GPT and its kin: learned positions, LayerNorm, biases, plain feed-forwards."""

from archwright.hf.family import Family
from archwright.hf.keys import Fused
from archwright.hf.layouts import Rows, Transposed
from archwright.hf.lenses import Activation, At, Either, Refuse, Set

QKV = ("attention.query", "attention.key", "attention.value")
ALL_BIASES = {
    "attention.bias.query": True,
    "attention.bias.key": True,
    "attention.bias.value": True,
    "attention.bias.out": True,
    "feedforward.bias.up": True,
    "feedforward.bias.down": True,
}


def conv1d(*ours: str) -> Fused:
    """Return maps side by side in one matrix of [in, out]."""
    return Fused(ours, Transposed(Rows()))


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    defaults={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": True,
    },
    lenses=(
        At("vocab_size", "vocab_size"),
        At("n_positions", "context_length"),
        At("n_embd", "dim"),
        At("n_layer", "num_layers"),
        At("n_head", "attention.num_heads"),
        Set({"residual.kind": "pre", "norm.kind": "layer", "position.kind": "learned"}),
        Set({"attention.kind": "softmax", **ALL_BIASES}),
        At("layer_norm_epsilon", "norm.eps"),
        At("embd_pdrop", "embedding.dropout"),
        At("resid_pdrop", "residual.dropout"),
        At("attn_pdrop", "attention.dropout"),
        Activation("activation_function", gated=False),
        Either(
            lambda config: config["n_inner"] is not None,
            lambda get: True,
            (At("n_inner", "feedforward.hidden_dim"),),
            (At("n_embd", "feedforward.hidden_dim", times=4),),
        ),
        Refuse("scale_attn_by_inverse_layer_idx", (False,)),
        At("tie_word_embeddings", "head.tied"),
    ),
    layers="transformer.h.{i}.",
    of_layer={
        "ln_1": "residual.norms.attention",
        "ln_2": "residual.norms.feedforward",
        "attn.c_attn": conv1d(*QKV),
        "attn.c_proj": conv1d("attention.out"),
        "mlp.c_fc": conv1d("feedforward.up"),
        "mlp.c_proj": conv1d("feedforward.down"),
    },
    of_model={
        "transformer.wte": "embedding",
        "transformer.wpe": "position.table",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    prefix="transformer.",
    ignored=(r".*\.attn\.(bias|masked_bias)",),
)

GPT_FAMILIES = (GPT2,)
