"""XLNet: post-norm layers with the relative positions of Transformer-XL."""

from archwright.hf.families.common import LAYER_NORM, TIED, attention_size
from archwright.hf.family import Family
from archwright.hf.layouts import View
from archwright.hf.lenses import Activation, Field, Refuse, Set, Switch
from archwright.hf.weight_map import Constant, Fused, filled
from archwright.spec.model_spec import LayerSpec, ModelSpec


def _reading(layer: LayerSpec) -> View:
    """Return the layout [dim, heads, head_dim] of an input projection."""
    return View(lambda weight: weight.mT.unflatten(1, (-1, attention_size(layer, "head_dim"))))


def _writing(layer: LayerSpec) -> View:
    """Return the layout [dim, heads, head_dim] of an output projection."""
    return View(lambda weight: weight.unflatten(1, (-1, attention_size(layer, "head_dim"))))


def _by_heads(layer: LayerSpec) -> View:
    return View(lambda bias: bias.unflatten(0, (-1, attention_size(layer, "head_dim"))))


def _unread(*before: int) -> Constant:
    """Return zeros [*before, heads, head_dim] for unused segment parameters."""

    def shape(spec: ModelSpec) -> tuple[int, ...]:
        return (*before, *(attention_size(spec, option) for option in ("num_heads", "head_dim")))

    return filled(0.0, shape, read=False)


XLNET = Family(
    "xlnet",
    "XLNetLMHeadModel",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("d_model", "dim"),
        Field("n_layer", "num_layers"),
        Field("n_head", "attention.num_heads"),
        Set({"residual.kind": "post", **LAYER_NORM, "position.kind": "transformer_xl"}),
        Set({"attention.kind": "softmax", "head.bias": True}),
        Field("layer_norm_eps", "norm.eps"),
        Field("dropout", ("residual.dropout", "embedding.dropout", "attention.dropout")),
        Activation("ff_activation", gated=False),
        Field("d_inner", "feedforward.hidden_dim"),
        Set({"feedforward.bias.up": True, "feedforward.bias.down": True}),
        Switch(
            "attn_type",
            {
                "bi": Set({"attention.mask.kind": "full"}),
                "uni": Set({"attention.mask.kind": "causal"}),
            },
        ),
        Refuse("clamp_len", (-1,)),
        TIED,
    ),
    layers="transformer.layer.{i}.",
    layer_keys={
        "rel_attn.q": Fused(("attention.query.weight",), _reading),
        "rel_attn.k": Fused(("attention.key.weight",), _reading),
        "rel_attn.v": Fused(("attention.value.weight",), _reading),
        "rel_attn.o": Fused(("attention.out.weight",), _writing),
        "rel_attn.r": Fused(("attention.position.distance.weight",), _reading),
        "rel_attn.r_w_bias": Fused(("attention.position.content_bias",), _by_heads),
        "rel_attn.r_r_bias": Fused(("attention.position.distance_bias",), _by_heads),
        "rel_attn.r_s_bias": _unread(),
        "rel_attn.seg_embed": _unread(2),
        "rel_attn.layer_norm": "residual.norms.{mixer}",
        "ff.layer_1": "feedforward.up",
        "ff.layer_2": "feedforward.down",
        "ff.layer_norm": "residual.norms.feedforward",
    },
    model_keys={
        "transformer.word_embedding": "embedding",
        "transformer.mask_emb": filled(0.0, lambda spec: (1, 1, spec.dim), read=False),
        "lm_loss": "head",
    },
    prefix="transformer.",
)
