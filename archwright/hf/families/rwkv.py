"""RWKV-7 in the format of flash-linear-attention.

Folders with its config.json and safetensors (or .bin files) are read, such as those of fla-hub, with the six shares of
a layer in one tensor or apart. A .pth file of BlinkDL is converted by that library's `utils/convert_from_rwkv7.py`.
"""

from functools import partial
from operator import itemgetter
from typing import Any

from archwright.hf.families import common
from archwright.hf.family import Family
from archwright.hf.layouts import View
from archwright.hf.lenses import Computed, Config, Field, Get, Refuse, Set, Table
from archwright.hf.weight_map import Fused
from archwright.spec.errors import UserError


def _read_sizes(config: Config) -> Table:
    """Return heads and the hidden width, and refuse values wider than the model."""
    dim, width, values = config["hidden_size"], config["head_dim"], config["value_dim"]
    number = dim // width if width else config["num_heads"]
    if any(v not in (None, dim) for v in (values if isinstance(values, list) else [values])):
        raise UserError(f"config.json: value_dim: found {values}; expected hidden_size = {dim}")
    width = width or dim // number
    heads = {"num_heads": number, "head_dim": width, "norm_eps": width * config["norm_eps"]}
    hidden = -(-int(dim * (config["hidden_ratio"] or 4)) // 32) * 32
    feedforward = {"hidden_dim": config["intermediate_size"] or hidden}
    return {"recurrence": heads, "feedforward": feedforward}


def _write_sizes(get: Get) -> dict[str, Any]:
    dim, hidden = get("dim"), get("feedforward.hidden_dim")
    heads = {"head_dim": get("recurrence.head_dim"), "num_heads": get("recurrence.num_heads")}
    widths = {"intermediate_size": hidden, "hidden_ratio": hidden / dim}
    return {**heads, **widths, "value_dim": [dim] * get("num_layers")}


def _row(i: int, t: Any) -> Any:
    """Return a row [dim] of a matrix as [1, 1, dim]."""
    return t[i][None, None]


LOW_RANKS = {"w": "decay", "a": "rate", "v": "share", "g": "gate"}

RWKV7 = Family(
    "rwkv7",
    "RWKV7ForCausalLM",
    lenses=(
        *common.SIZES[:4],
        Set({"residual.kind": "pre", **common.recurrent("rwkv7")}),
        Set({"feedforward.kind": "channel_mix", "norm.kind": "layer"}),
        Set({"embedding.norm.kind": "layer"}),
        Field("norm_bias", ("norm.bias", "embedding.norm.bias")),
        Field("norm_eps", ("norm.eps", "embedding.norm.eps")),
        # Last, because no norm has no options.
        common.flag(
            "norm_first", {"embedding.norm.kind": "layer"}, {"embedding.norm.kind": "none"}
        ),
        Computed(_read_sizes, _write_sizes),
        *common.fields(
            "recurrence",
            decay_low_rank_dim="decay_rank",
            a_low_rank_dim="rate_rank",
            v_low_rank_dim="value_rank",
            gate_low_rank_dim="gate_rank",
        ),
        Refuse("hidden_act", ("sqrelu",)),
        Refuse("attn", (None,)),
        common.TIED,
    ),
    layers="model.layers.{i}.",
    layer_keys={
        "attn_norm": "residual.norms.{mixer}",
        "ffn_norm": "residual.norms.feedforward",
        **{
            f"attn.x_{part}": Fused(("recurrence.shares",), View(partial(_row, i)))
            for i, part in enumerate("rwkvag")
        },
        **{f"attn.{n}_lora.lora.0": f"recurrence.{ours}.0" for n, ours in LOW_RANKS.items()},
        **{
            f"attn.{n}_lora.lora.2.weight": f"recurrence.{ours}.1.weight"
            for n, ours in LOW_RANKS.items()
        },
        **{
            f"attn.{n}_lora.lora.2.bias": f"recurrence.{LOW_RANKS[n]}_bias" for n in ("w", "a", "v")
        },
        **common.recurrence_names(
            "attn",
            k_k="key_scale",
            k_a="key_rate",
            r_k="bonus",
            r_proj="receptance",
            k_proj="key",
            v_proj="value",
            o_proj="out",
        ),
        "attn.g_norm": common.FLAT_NORM,
        "ffn.x_k": Fused(("feedforward.shares",), View(itemgetter(0))),
        "ffn.key": "feedforward.key",
        "ffn.value": "feedforward.value",
    },
    other_layer_keys={"attn.x_x": "recurrence.shares"},
    model_keys={
        "model.embeddings": "embedding",
        "model.layers.0.pre_norm": "embedding_norm",
        "model.norm": "norm",
        "lm_head": "head",
    },
    undeclared={
        **dict.fromkeys(("intermediate_size", "num_heads", "attn", "value_dim")),
        **{"vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": False},
        **{"hidden_size": 2048, "num_hidden_layers": 24, "head_dim": 64, "hidden_ratio": 4},
        **{"decay_low_rank_dim": 64, "gate_low_rank_dim": 128},
        **{"a_low_rank_dim": 64, "v_low_rank_dim": 16},
        **{"hidden_act": "sqrelu", "norm_first": True, "norm_bias": True, "norm_eps": 1e-5},
    },
)
