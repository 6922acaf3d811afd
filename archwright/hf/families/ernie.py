"""Baidu ERNIE 4.5: interleaved RoPE, dense and with experts."""

from typing import Any

from archwright.hf.families import common
from archwright.hf.families.llama import LLAMA
from archwright.hf.layer_types import CustomPattern
from archwright.hf.layouts import View
from archwright.hf.lenses import Config, Field, Refuse, Set
from archwright.hf.rope import Rope
from archwright.hf.weight_map import Fused

ERNIE4_5 = LLAMA.derive(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    Rope(pairing="interleaved", fraction=""),
    common.flag("use_bias", common.ALL_BIASES),
)


def _stretch(config: Config, n: int) -> list[str]:
    """Return the feed-forward types: every `moe_layer_interval`-th layer of a range is sparse."""
    first, last, step = (
        config[f"moe_layer_{key}"] for key in ("start_index", "end_index", "interval")
    )
    last = n - 1 if last == -1 else last
    return ["dense" if (i + 1) % step or not first <= i <= last else "sparse" for i in range(n)]


def _write_stretch(roles: list[str]) -> dict[str, Any]:
    """Return the range and interval of sparse layers, if one fits."""
    places = [i for i, role in enumerate(roles) if role == "sparse"] or [len(roles)]
    for step in range(1, len(roles) + 1):
        keys = {
            "moe_layer_start_index": places[0],
            "moe_layer_end_index": places[-1],
            "moe_layer_interval": step,
        }
        if _stretch(keys, len(roles)) == roles:
            return keys
    return {}


ERNIE4_5_MOE = LLAMA.derive(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    Set({"position.pairing": "interleaved"}),
    Refuse("use_bias", (False,)),
    groups=(
        common.sparse(
            CustomPattern(_stretch, _write_stretch),
            *common.experts(
                "moe_num_experts", "moe_intermediate_size", "moe_k", selection_bias=True
            ),
            Field("moe_norm_min", "feedforward.normalize_min"),
            common.shared("moe_num_shared_experts", optional=True),
            common.balance(top_k="moe_k"),
        ),
    ),
    layer_keys={
        "mlp.gate": "feedforward.router",
        "mlp.moe_statics.e_score_correction_bias": Fused(
            ("feedforward.selection_bias",), View(lambda bias: bias[None])
        ),
        **common.EXPERTS,
        **common.gated("mlp.shared_experts", "feedforward.shared"),
    },
    ignored=(*LLAMA.ignored, r".*mtp.*"),
    undeclared={"attention_dropout": 0.0},
)
