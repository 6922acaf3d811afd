"""MiniMax: Text-01 and M1 with lightning attention, and M2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.families.mistral import MIXTRAL
from archwright.hf.layer_types import Layers, Listed, Role
from archwright.hf.lenses import Computed, Config, Either, Lens, Refuse, Set, Table, nested
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Constant, Fused, When
from archwright.spec.recurrences import LinearRecurrence

if TYPE_CHECKING:
    from torch import Tensor

    from archwright.spec.model_spec import ModelSpec

BLOCK = 256
"""Tokens of a block in the library's tables of decays; the default of its class."""
TABLES = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
LINEAR = {
    "decay": {"kind": "fixed", "rates": "slopes", "slower_with_depth": True},
    **{"write": "added", "conv_width": "none", "qk_norm": "none", "scale": "none"},
    **{"gate": "sigmoid", "out_norm_over": "all"},
    "out_norm": {"kind": "rms", "eps": 1e-6, "scale_in": "input_dtype"},
}
"""Lightning attention."""


def _decays(name: str, spec: ModelSpec, layer: int) -> Tensor:
    """Return a saved table of decays, [heads, 1 or block, 1] or [1, heads, block, block]."""
    import torch  # not needed to read configs

    from archwright.parts.mixers import DECAYS
    from archwright.parts.sharing import LayerInfo

    recurrence, place = spec.layer(layer).recurrence, LayerInfo(layer + 1, kinds=spec.layer_order)
    assert isinstance(recurrence, LinearRecurrence)
    sizes = recurrence.heads(spec.dim)["num_heads"], recurrence.heads(spec.dim)["head_dim"]
    decay = DECAYS.make(recurrence.decay, spec.dim, *sizes, place, bias=False)
    decay.reset_parameters()
    rate: Tensor = decay([])[0].float()[:, None, None]
    token = torch.arange(1, BLOCK + 1)[:, None]
    if name == "slope_rate":
        return -rate
    if name == "diagonal_decay":
        return (rate * (token - token.mT).clamp(min=0)).exp().tril()[None]
    return (rate * (token if name == "query_decay" else BLOCK - token)).exp()


def _factor(key: str, option: str, branch: str) -> Computed:
    """Return the lens of a branch's residual factor."""

    return Computed(
        lambda config: nested(f"residual.{option}.{branch}", float(config[key])),
        lambda get: {key: get(f"residual.{option}")[branch]},
        key,
    )


def _read_sizes(config: Config) -> Table:
    sizes = {"num_heads": config["num_attention_heads"], "head_dim": config["head_dim"] or "auto"}
    return {"recurrence": {**LINEAR, **sizes}}


def _read_fraction(config: Config) -> Table:
    width = config["rotary_dim"]
    return nested("position.fraction", width / config["head_dim"]) if width else {}


ROTARY = Computed(_read_fraction)
"""Lens of the rotated part of a head."""
MASK: Lens = Either(
    lambda config: config["sliding_window"] is None,
    lambda get: get("attention.mask.kind") == "causal",
    (Set({"attention.mask.kind": "causal"}),),
    (Set(common.WINDOW.values), *common.WINDOW.lenses),
)
TYPES = {
    "linear_attention": Role(common.recurrent("linear"), (Computed(_read_sizes),)),
    "full_attention": Role({"recurrence.kind": "none"}, (MASK,)),
}
BRANCHES = {"full_attn": "attention", "linear_attn": "recurrence", "mlp": "feedforward"}

MINIMAX = MIXTRAL.derive(
    "minimax",
    "MiniMaxForCausalLM",
    Set({"residual.kind": "norm_residual"}),
    *(_factor(f"{key}_alpha_factor", "alpha", branch) for key, branch in BRANCHES.items()),
    *(_factor(f"{key}_beta_factor", "multiplier", branch) for key, branch in BRANCHES.items()),
    ROTARY,  # which the library's class ignores
    Refuse("hidden_act", ("silu",)),
    groups=(
        Layers(
            Listed(otherwise=lambda _, n: (["full_attention", "linear_attention"] * n)[:n]), TYPES
        ),
    ),
    layer_keys={
        "self_attn.qkv_proj": Fused(common.RECURRENT_QKV, common.by_key_head),
        **common.recurrence_names("self_attn", norm="norm", output_gate="gate", out_proj="out"),
        # A file may have blocks of another length.
        **{
            f"self_attn.{name}": When(
                "recurrence.kind", "linear", Constant(partial(_decays, name), name == TABLES[0])
            )
            for name in TABLES
        },
    },
    undeclared={"rotary_dim": None},
)

MINIMAX_M2 = LLAMA.derive(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    Rope(),
    ROTARY,
    *common.qk_norm("projection"),
    *common.experts("num_local_experts", "intermediate_size", **common.SIGMOID),
    common.balance(),
    layer_keys={
        "block_sparse_moe.gate": "feedforward.router",
        "block_sparse_moe.e_score_correction_bias": "feedforward.selection_bias",
    }
    | common.W_EXPERTS,
    undeclared={"rotary_dim": None},
)
