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
from archwright.hf.lenses import Computed, Config, Field, Get, Refuse, Set, Switch, Table
from archwright.hf.weight_map import Fused
from archwright.spec.errors import UserError


def _read_sizes(config: Config) -> Table:
    """Return heads and the hidden width, and refuse values wider than the model."""
    dim, width, hidden = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    number = dim // width if width else config["num_heads"]
    values = config["value_dim"]
    if any(
        value not in (None, dim) for value in (values if isinstance(values, list) else [values])
    ):
        raise UserError(f"config.json: value_dim: found {values}; expected hidden_size = {dim}")
    hidden = hidden or -(-int(dim * (config["hidden_ratio"] or 4)) // 32) * 32
    head_dim = width or dim // number
    return {
        "recurrence": {
            "num_heads": number,
            "head_dim": head_dim,
            "norm_eps": head_dim * config["norm_eps"],
        },
        "feedforward": {"hidden_dim": hidden},
    }


def _write_sizes(get: Get) -> dict[str, Any]:
    dim, hidden = get("dim"), get("feedforward.hidden_dim")
    return {
        "head_dim": get("recurrence.head_dim"),
        "num_heads": get("recurrence.num_heads"),
        "intermediate_size": hidden,
        "hidden_ratio": hidden / dim,
        "value_dim": [dim] * get("num_layers"),
    }


def _flat(t: Any) -> Any:
    """Return the weight of a norm of heads, [heads, head_dim], as a vector."""
    return t.flatten()


def _row(i: int, t: Any) -> Any:
    """Return a row [dim] of a matrix as [1, 1, dim]."""
    return t[i][None, None]


def _low_ranks() -> dict[str, Any]:
    """Return the names of the low-rank maps and of their biases."""
    names = {"w": "decay", "a": "rate", "v": "share", "g": "gate"}
    keys: dict[str, Any] = {}
    for theirs, ours in names.items():
        keys[f"attn.{theirs}_lora.lora.0"] = f"recurrence.{ours}.0"
        keys[f"attn.{theirs}_lora.lora.2.weight"] = f"recurrence.{ours}.1.weight"
        if theirs != "g":
            keys[f"attn.{theirs}_lora.lora.2.bias"] = f"recurrence.{ours}_bias"
    return keys


RWKV7 = Family(
    "rwkv7",
    "RWKV7ForCausalLM",
    lenses=(
        Field("vocab_size", "vocab_size"),
        Field("hidden_size", "dim"),
        Field("num_hidden_layers", "num_layers"),
        Field("max_position_embeddings", "context_length"),
        Set({"residual.kind": "pre", "attention.kind": "none", "position.kind": "none"}),
        Set({"recurrence.kind": "rwkv7", "feedforward.kind": "channel_mix", "norm.kind": "layer"}),
        Switch(
            "norm_first",
            {
                True: (
                    Set({"embedding.norm.kind": "layer"}),
                    Field("norm_bias", "embedding.norm.bias"),
                    Field("norm_eps", "embedding.norm.eps"),
                ),
                False: Set({"embedding.norm.kind": "none"}),
            },
        ),
        Field("norm_bias", "norm.bias"),
        Field("norm_eps", "norm.eps"),
        Computed(_read_sizes, _write_sizes),
        Field("decay_low_rank_dim", "recurrence.decay_rank"),
        Field("a_low_rank_dim", "recurrence.rate_rank"),
        Field("v_low_rank_dim", "recurrence.value_rank"),
        Field("gate_low_rank_dim", "recurrence.gate_rank"),
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
        **_low_ranks(),
        "attn.k_k": "recurrence.key_scale",
        "attn.k_a": "recurrence.key_rate",
        "attn.r_k": "recurrence.bonus",
        "attn.r_proj": "recurrence.receptance",
        "attn.k_proj": "recurrence.key",
        "attn.v_proj": "recurrence.value",
        "attn.o_proj": "recurrence.out",
        "attn.g_norm.weight": Fused(("recurrence.norm.weight",), View(_flat)),
        "attn.g_norm.bias": Fused(("recurrence.norm.bias",), View(_flat)),
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
        "hidden_size": 2048,
        "hidden_ratio": 4,
        "intermediate_size": None,
        "num_hidden_layers": 24,
        "head_dim": 64,
        "num_heads": None,
        "decay_low_rank_dim": 64,
        "gate_low_rank_dim": 128,
        "a_low_rank_dim": 64,
        "v_low_rank_dim": 16,
        "hidden_act": "sqrelu",
        "max_position_embeddings": 2048,
        "norm_first": True,
        "norm_bias": True,
        "norm_eps": 1e-5,
        "attn": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
        "value_dim": None,
    },
)
