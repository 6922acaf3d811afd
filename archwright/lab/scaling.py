"""Published models at the size of an experiment: the same choices, fewer and narrower layers."""

import math
from typing import Any

from archwright.spec.attention import SoftmaxAttention
from archwright.spec.model_spec import ModelSpec, heads
from archwright.spec.run_spec import RunSpec

DIMS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)

RECIPE = (
    "schedule.kind=linear",
    "evaluate.max_tokens=8192",
)
"""How small models are trained well: the rate falls to nothing."""


def shape(size: float) -> tuple[int, int]:
    """Return width and number of layers of about `size` = 12 num_layers dim^2 parameters.

    Of the widths there are, the one whose size and proportion are nearest: dim / num_layers of 16 at 0.2M
    parameters, growing with the fourth root of the size, as published models grow wider faster than deeper.
    """
    proportion = 16 * (size / 2e5) ** 0.25

    def fit(dim: int) -> tuple[int, float]:
        num_layers = max(2, round(size / (12 * dim**2)))
        off = abs(math.log(12 * num_layers * dim**2 / size))
        return num_layers, off + 0.3 * abs(math.log(dim / num_layers / proportion))

    dim = min(DIMS, key=lambda dim: fit(dim)[1])
    return dim, fit(dim)[0]


def scaled(run: RunSpec, size: float) -> RunSpec:
    """Return a run whose model has about `size` parameters outside embedding and head.

    Below 1M parameters the vocabulary has 1,024 tokens, so that little of the model is embedding, then
    4,096. Heads keep 32 dimensions (64 from a width of 256), groups of query heads their share, hidden layers
    their ratio, windows their share of the text. Texts are 128 tokens long below 1M parameters, 256 below
    10M, then 512, and a step reads 16 of them. The learning rate starts at 0.01 (64 / dim)^1/2.
    """
    dim, num_layers = shape(size)
    context = 128 if size < 1e6 else 256 if size < 1e7 else 512
    model = run.model.model_dump()
    old = run.model.dim
    attention = run.model.attention
    query_heads = 1
    if isinstance(attention, SoftmaxAttention):
        query_heads = heads(attention, old)["num_heads"]
    _narrow(model, model, query_heads, old, dim)
    for partial in model["layer_kinds"].values():
        _narrow(partial, model, query_heads, old, dim)
    shorter = context / run.model.context_length
    for table in (model, *model["layer_kinds"].values()):
        _shorten(table.get("attention", {}), shorter)
    if isinstance(width := model["embedding"]["dim"], int):
        model["embedding"]["dim"] = max(8, 8 * round(width * dim / old / 8))
    model |= {
        "dim": dim,
        "num_layers": num_layers,
        "context_length": context,
        "vocab_size": "auto",
    }
    small = ModelSpec.model_validate(model)
    optimizer = run.optimizer.model_copy(update={"lr": _two_digits(0.01 * (64 / dim) ** 0.5)})
    small_run = run.model_copy(update={"model": small, "optimizer": optimizer, "batch_size": 16})
    return small_run.override(f"data.tokenizer.vocab_size={1024 if size < 1e6 else 4096}")


def _narrow(
    table: dict[str, Any], model: dict[str, Any], old_heads: int, old: int, dim: int
) -> None:
    """Fit the widths in a layer's table, whole or partial, to a model of `dim`."""
    attention, feedforward = table.get("attention", {}), table.get("feedforward", {})
    head_dim = 32 if dim < 256 else 64
    num_heads = max(1, dim // head_dim)
    if "num_heads" in attention:
        attention["num_heads"] = num_heads
    if isinstance(kv_heads := attention.get("num_kv_heads"), int):
        attention["num_kv_heads"] = _divisor(num_heads, num_heads * kv_heads / old_heads)
    if isinstance(attention.get("head_dim"), int):
        attention["head_dim"] = min(head_dim, dim)
    for hidden in (feedforward, feedforward.get("expert", {})):
        if isinstance(width := hidden.get("hidden_dim"), int):
            hidden["hidden_dim"] = max(8, 8 * round(width * dim / old / 8))


def _shorten(attention: dict[str, Any], share: float) -> None:
    """Fit what is counted in tokens, or in a head's dimensions, to a smaller model's attention."""
    mask, scale = attention.get("mask", {}), attention.get("scale", {})
    if "size" in mask and share < 1:
        mask["size"] = max(8, round(mask["size"] * share))
    if isinstance(scale.get("dim"), int):
        scale["dim"] = "auto"


def _divisor(number: int, wanted: float) -> int:
    """Return the divisor of `number` that is nearest to `wanted` in ratio."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
