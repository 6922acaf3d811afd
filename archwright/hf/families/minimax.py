"""MiniMax-Text-01 and M1: lightning attention and softmax attention, with normed residual streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from archwright.hf.families.common import WINDOW
from archwright.hf.families.mistral import MIXTRAL
from archwright.hf.layer_types import Layers, Listed, Role
from archwright.hf.layouts import ByGroup
from archwright.hf.lenses import Computed, Config, Either, Get, Lens, Refuse, Set, Table, nested
from archwright.hf.weight_map import Constant, Fused, When
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.recurrences import LinearRecurrence

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 256
"""Tokens of a block in the library's tables of decays; the default of its class."""


def _heads(config: Config) -> Table:
    number = config["num_attention_heads"]
    width = config["head_dim"] or config["hidden_size"] // number
    return {"recurrence": {"num_heads": number, "head_dim": width}}


def _by_head(layer: LayerSpec) -> ByGroup:
    assert isinstance(layer.recurrence, LinearRecurrence)
    return ByGroup(groups=int(layer.recurrence.num_heads))


def _decays(name: str) -> When:
    """Return the saved table of decays of this name, of shapes [heads, 1 or block, 1] and [1, heads, block, block]."""

    def values(spec: ModelSpec, layer: int) -> Tensor:
        import torch  # not needed to read configs

        from archwright.parts.mixers import DECAYS
        from archwright.parts.sharing import LayerInfo

        recurrence, place = (
            spec.layer(layer).recurrence,
            LayerInfo(layer + 1, kinds=spec.layer_order),
        )
        assert isinstance(recurrence, LinearRecurrence)
        heads = recurrence.heads(spec.dim)
        decay = DECAYS.make(
            recurrence.decay, spec.dim, heads["num_heads"], heads["head_dim"], place, bias=False
        )
        decay.reset_parameters()
        rate = -decay([])[0].float()[:, None, None]
        token = torch.arange(1, BLOCK + 1)[:, None]
        tables = {
            "slope_rate": rate,
            "query_decay": (-rate * token).exp(),
            "key_decay": (-rate * (BLOCK - token)).exp(),
            "diagonal_decay": (-rate * (token - token.mT).clamp(min=0)).exp().tril()[None],
        }
        return tables[name]

    # A file may have blocks of another length.
    return When("recurrence.kind", "linear", Constant(values, read=name == "slope_rate"))


def _factor(branch: str, key: str) -> list[Lens]:
    """Return the lenses of both residual factors of a branch."""

    def lens(option: str, key: str) -> Computed:
        def write(get: Get) -> dict[str, Any]:
            return {key: get(f"residual.{option}")[branch]}

        path = f"residual.{option}.{branch}"
        return Computed(lambda config: nested(path, float(config[key])), write, key)

    return [lens("alpha", f"{key}_alpha_factor"), lens("multiplier", f"{key}_beta_factor")]


def _rotated(config: Config) -> Table:
    """Read the rotated part of a head, which the library's class ignores."""
    width = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    return nested("position.fraction", (config["rotary_dim"] or width) / width)


LINEAR = {
    "decay": {"kind": "fixed", "rates": "slopes", "slower_with_depth": True},
    **{"write": "added", "conv_width": "none", "qk_norm": "none", "scale": "none"},
    **{"gate": "sigmoid", "out_norm_over": "all"},
    "out_norm": {"kind": "rms", "eps": 1e-6, "scale_in": "input_dtype"},
}
"""Lightning attention."""

MINIMAX = MIXTRAL.derive(
    "minimax",
    "MiniMaxForCausalLM",
    Set({"residual.kind": "norm_residual"}),
    *_factor("attention", "full_attn"),
    *_factor("recurrence", "linear_attn"),
    *_factor("feedforward", "mlp"),
    Computed(_rotated),
    Refuse("hidden_act", ("silu",)),
    groups=(
        Layers(
            Listed(
                otherwise=lambda config, n: [
                    "linear_attention" if i % 2 else "full_attention" for i in range(n)
                ]
            ),
            {
                "linear_attention": Role(
                    {
                        "attention.kind": "none",
                        "position.kind": "none",
                        "recurrence.kind": "linear",
                    },
                    (
                        Set({f"recurrence.{key}": value for key, value in LINEAR.items()}),
                        Computed(_heads),
                    ),
                ),
                "full_attention": Role(
                    {"recurrence.kind": "none"},
                    (
                        Either(
                            lambda config: config["sliding_window"] is None,
                            lambda get: get("attention.mask.kind") == "causal",
                            (Set({"attention.mask.kind": "causal"}),),
                            (Set(WINDOW.values), *WINDOW.lenses),
                        ),
                    ),
                ),
            },
        ),
    ),
    layer_keys={
        "self_attn.qkv_proj": Fused(
            tuple(f"recurrence.{part}" for part in ("query", "key", "value")), _by_head
        ),
        "self_attn.norm": "recurrence.norm",
        "self_attn.output_gate": "recurrence.gate",
        "self_attn.out_proj": "recurrence.out",
        **{
            f"self_attn.{name}": _decays(name)
            for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
        },
    },
    undeclared={"rotary_dim": None},
)
