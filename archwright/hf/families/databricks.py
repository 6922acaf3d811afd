"""Databricks: MPT with ALiBi, and DBRX."""

from typing import Any

from archwright.hf.families.common import LAYER_NORM, QKV, ROPE, SOFTMAX, TIED, balance
from archwright.hf.family import Family
from archwright.hf.layouts import Flattened, Rows
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
    Table,
    lookup,
    nested,
)
from archwright.hf.weight_map import Fused


def _read_theta(config: Config) -> Table:
    """Read RoPE's theta; old files store it in `attn_config`."""
    base = (config.get("rope_parameters") or {}).get("rope_theta")
    inside = (config.get("attn_config") or {}).get("rope_theta")
    return nested("position.theta", float(base or inside or config["rope_theta"]))


def _read_power(config: Config) -> Table:
    """Read the order of the norm that divides router weights, if any."""
    power = lookup(config, "ffn_config.moe_normalize_expert_weights")
    table: Table = {"normalize_weights": power is not None}
    return {"feedforward": table if power is None else table | {"normalize_power": float(power)}}


def _write_power(get: Get) -> dict[str, Any]:
    power = get("feedforward.normalize_power") if get("feedforward.normalize_weights") else None
    return {} if power is MISSING else nested("ffn_config.moe_normalize_expert_weights", power)


DBRX = Family(
    "dbrx",
    "DbrxForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("d_model", "dim"),
        Field("n_heads", "attention.num_heads"),
        Field("n_layers", "num_layers"),
        Field("max_seq_len", ("context_length",)),
        Set({"residual.kind": "pre", "norm.kind": "layer", "norm.bias": False, "norm.eps": 1e-5}),
        Field("resid_pdrop", "residual.dropout"),
        Field("emb_pdrop", "embedding.dropout"),
        ROPE,
        SOFTMAX,
        Computed(_read_theta, lambda get: {"attn_config": {"rope_theta": get("position.theta")}}),
        Field("attn_config.attn_pdrop", "attention.dropout"),
        Field("attn_config.clip_qkv", "attention.qkv_clip", or_none=True),
        Field("attn_config.kv_n_heads", "attention.num_kv_heads"),
        Set({"feedforward.kind": "experts"}),
        Activation("ffn_config.ffn_act_fn.name", gated=True, path="feedforward.expert"),
        Field("ffn_config.ffn_hidden_size", "feedforward.expert.hidden_dim"),
        Field("ffn_config.moe_num_experts", "feedforward.num_experts"),
        Field("ffn_config.moe_top_k", "feedforward.top_k"),
        balance("ffn_config.moe_loss_weight", "ffn_config.moe_top_k"),
        Computed(_read_power, _write_power),
        Refuse("tie_word_embeddings", (False,)),
        Set({"head.tied": False}),
    ),
    layers="transformer.blocks.{i}.",
    layer_keys={
        "norm_attn_norm.norm_1": "residual.norms.{mixer}",
        "norm_attn_norm.norm_2": "residual.norms.feedforward",
        "norm_attn_norm.attn.Wqkv": Fused(QKV, Rows()),
        "norm_attn_norm.attn.out_proj": "attention.out",
        "ffn.router.layer": "feedforward.router",
        "ffn.experts.mlp.w1": Fused(("feedforward.experts.gate.weight",), Flattened()),
        "ffn.experts.mlp.v1": Fused(("feedforward.experts.up.weight",), Flattened()),
        "ffn.experts.mlp.w2": Fused(
            ("feedforward.experts.down.weight",), Flattened(transposed=True)
        ),
    },
    model_keys={"transformer.wte": "embedding", "transformer.norm_f": "norm", "lm_head": "head"},
    prefix="transformer.",
    undeclared={"ffn_config": {"ffn_act_fn": {"name": "silu"}}},
)

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
        Field("attn_config.alibi_bias_max", "position.bias_max"),  # transformers always uses 8
        Refuse("logit_scale", (None,)),
        Refuse("no_bias", (True,)),
        Set({"feedforward.kind": "gelu"}),
        Field("d_model", "feedforward.hidden_dim", times=4),
        Field("d_model", "dim"),
        TIED,
    ),
    layers="transformer.blocks.{i}.",
    layer_keys={
        "norm_1": "residual.norms.{mixer}",
        "norm_2": "residual.norms.feedforward",
        "attn.Wqkv": Fused(QKV, Rows()),
        "attn.out_proj": "attention.out",
        "ffn.up_proj": "feedforward.up",
        "ffn.down_proj": "feedforward.down",
    },
    model_keys={"transformer.wte": "embedding", "transformer.norm_f": "norm", "lm_head": "head"},
    prefix="transformer.",
)
