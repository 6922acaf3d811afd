"""Liquid AI: LFM2 and its mixture of experts, with gated short convolutions in most layers."""

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import Layers, Listed, Role
from archwright.hf.lenses import Computed, Config, Field, Get, Set, Table, nested


def _types(config: Config, n: int) -> list[str]:
    """Return the types of layers from `full_attn_idxs`; null: full attention everywhere."""
    full = config["full_attn_idxs"]
    return ["full_attention" if full is None or i in full else "conv" for i in range(n)]


def _read_hidden(config: Config) -> Table:
    """Return the hidden width: two thirds of the stated one, rounded up, if it is adjusted."""
    width = config.get("block_ff_dim") or config["intermediate_size"]
    if config["block_auto_adjust_ff_dim"]:
        width = int(2 * width / 3)
        if config["block_ffn_dim_multiplier"] is not None:
            multiple = config["block_multiple_of"]
            width = -(-int(config["block_ffn_dim_multiplier"] * width) // multiple) * multiple
    return nested("feedforward.hidden_dim", width)


def _write_hidden(get: Get) -> dict[str, object]:
    return {
        "intermediate_size": get("feedforward.hidden_dim"),
        "block_auto_adjust_ff_dim": False,
    }


LAYER_TYPES = {
    "full_attention": common.ATTENDING,
    "conv": Role(
        common.recurrent("short_conv"),
        common.fields("recurrence", conv_L_cache="width", conv_bias="bias"),
    ),
}
LFM2 = LLAMA.derive(
    "lfm2",
    "Lfm2ForCausalLM",
    Computed(_read_hidden, _write_hidden, key="intermediate_size"),
    Set({"attention.qk_norm.kind": "rms", "attention.qk_norm.scale_in": "input_dtype"}),
    Field("norm_eps", ("norm.eps", "attention.qk_norm.eps")),
    groups=(Layers(Listed(otherwise=_types), LAYER_TYPES),),
    layer_keys={
        "operator_norm": "residual.norms.{mixer}",
        "ffn_norm": "residual.norms.feedforward",
        "self_attn.out_proj": "attention.out",
        "self_attn.q_layernorm": "attention.query_norm",
        "self_attn.k_layernorm": "attention.key_norm",
        **common.recurrence_names(
            "conv", in_proj=("in_gate", "out_gate", "value"), conv="conv", out_proj="out"
        ),
        "feed_forward.w1": "feedforward.gate",
        "feed_forward.w3": "feedforward.up",
        "feed_forward.w2": "feedforward.down",
    },
    model_keys={"model.embedding_norm": "norm"},
    further_aliases={"tie_embedding": "tie_word_embeddings"},
    undeclared={"hidden_act": "silu"},
)

LFM2_MOE = LFM2.derive(
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    groups=(
        Layers(Listed(), LAYER_TYPES),
        common.sparse(
            common.first_dense("num_dense_layers"),
            *common.experts("num_experts", "moe_intermediate_size", routing="sigmoid"),
            Set({"feedforward.balance_loss": 0.0, "feedforward.normalize_eps": 1e-6}),
            Field("use_expert_bias", "feedforward.selection_bias"),
            Field("norm_topk_prob", "feedforward.normalize_weights"),
            Field("routed_scaling_factor", "feedforward.routed_scaling_factor"),
        ),
    ),
    layer_keys={
        "feed_forward.gate": "feedforward.router",
        "feed_forward.expert_bias": "feedforward.selection_bias",
        **common.listed("feed_forward.experts", "w1", "w3", "w2"),
    },
)
