"""Published models at the size of an experiment: the same choices, fewer and narrower layers."""

import math
from typing import TYPE_CHECKING, Any

from archwright.spec.attention import MaskedAttention
from archwright.spec.merge import validated
from archwright.spec.positions import RoPE, rotary_dim

if TYPE_CHECKING:
    from archwright.spec.model_spec import Arrangement, ModelSpec
    from archwright.spec.run_spec import RunSpec

Table = dict[str, Any]

TINY_DIM, TINY_HEAD_DIM, TINY_LAYERS, TINY_CONTEXT, TINY_EXPERTS = 64, 16, 4, 128, 4
"""Sizes of a tiny model: with 4,096 tokens it comes to 0.4 to 1.3M parameters."""

TOKENS = {"size": 8, "stride": 4, "radius": 4, "period": 8}
"""Options of masks and queries that count tokens, with the least of each."""
IN_BLOCKS = {"block_size": 1}
"""The same of a mask that counts blocks, whose numbers of blocks stay."""


def tiny(spec: "ModelSpec") -> "ModelSpec":
    """Return a model of every choice of `spec`, small enough to train in seconds on one core.

    It has each layer of prefix and suffix and at least one whole cycle between them.
    """
    num_layers = min(spec.num_layers, _whole_cycles(spec.layers, TINY_LAYERS))
    small = narrowed(spec, TINY_DIM, TINY_HEAD_DIM, num_layers, TINY_CONTEXT, TINY_EXPERTS)
    return small.model_copy(update={"name": f"{spec.name}-tiny"})


def tiny_run(run: "RunSpec") -> "RunSpec":
    """Return a run of the tiny model, under a name of its own."""
    return run.model_copy(update={"model": tiny(run.model), "name": f"{run.name}-tiny"})


def narrowed(
    spec: "ModelSpec", dim: int, head_dim: int, num_layers: int, context_length: int, experts: int
) -> "ModelSpec":
    """Return a model of the same choices with another shape, whose vocabulary follows the tokenizer.

    Groups of query heads keep their share, hidden layers their ratio, windows their share of the text. There
    are at most `experts` to choose from, of which a token chooses at most 2.
    """
    values = spec.model_dump()
    tables = [values, *values["layer_kinds"].values()]
    num_heads = max(1, dim // head_dim)
    old = {"num_heads": 1}
    if isinstance(spec.attention, MaskedAttention):
        old = spec.attention.heads(spec.dim)
    for name, partial in values["layer_kinds"].items():
        if "kind" in (mask := partial.get("attention", {}).get("mask", {})):
            whole = spec.layers_by_kind[name].attention.model_dump()["mask"]
            mask |= {key: whole[key] for key in whole.keys() & {*TOKENS, *IN_BLOCKS}}
    for table in tables:
        attention, feedforward = table.get("attention", {}), table.get("feedforward", {})
        _scale_heads(attention, num_heads, min(head_dim, dim), old)
        if isinstance(rank := attention.get("query_rank"), int):
            attention["query_rank"] = _eighths(rank * dim / spec.dim)
        _scale_hidden(feedforward, dim / spec.dim)
        _leave_out_experts(feedforward, experts)
        _shorten(attention, min(1.0, context_length / spec.context_length))
    for name, layer in spec.layers_by_kind.items():
        if isinstance(layer.position, RoPE):
            table = values if name == "default" else values["layer_kinds"][name]
            pairs = rotary_dim(layer.position, min(head_dim, dim)) // 2
            _thin(table.get("position", {}).get("scaling", {}), pairs)
    if isinstance(spec.embedding.dim, int):
        values["embedding"]["dim"] = _eighths(spec.embedding.dim * dim / spec.dim)
    values["layers"] = _arranged(spec.layers, num_layers)
    values |= {
        "dim": dim,
        "num_layers": num_layers,
        "context_length": context_length,
        "vocab_size": "auto",
    }
    return validated(type(spec), values)


def _whole_cycles(layers: "Arrangement", least: int) -> int:
    """Return the smallest number of layers, from `least` on, that ends the cycle where it began."""
    fixed, cycle = len(layers.prefix) + len(layers.suffix), len(layers.cycle)
    return fixed + cycle * max(1, math.ceil((least - fixed) / cycle))


def _arranged(layers: "Arrangement", num_layers: int) -> Table:
    """Return an arrangement that leaves room for the cycle: if need be, the ends have each kind once."""
    values = layers.model_dump()
    if len(layers.prefix) + len(layers.suffix) + len(layers.cycle) > num_layers:
        values |= {end: tuple(dict.fromkeys(values[end])) for end in ("prefix", "suffix")}
    return values


def _scale_heads(attention: Table, num_heads: int, head_dim: int, old: dict[str, int]) -> None:
    """Set heads in an attention's values, whole or partial: what else is given in numbers keeps its ratio to
    the width of a head, as the default layer has it."""
    if "num_heads" in attention:
        attention["num_heads"] = num_heads
    if isinstance(kv_heads := attention.get("num_kv_heads"), int):
        attention["num_kv_heads"] = _divisor(num_heads, num_heads * kv_heads / old["num_heads"])
    widths = ("head_dim", "nope_head_dim", "rope_head_dim", "value_head_dim", "kv_rank")
    given = {name: n for name in widths if isinstance(n := attention.get(name), int)}
    key_dims = [own[name] for own in (given, old) for name in widths[:2] if name in own]
    before = next(iter(key_dims), head_dim)
    for name, width in given.items():
        attention[name] = max(2, 2 * round(width / before * head_dim / 2))
    if isinstance(attention.get("scale", {}).get("dim"), int):
        attention["scale"]["dim"] = "auto"


def _scale_hidden(feedforward: Table, share: float) -> None:
    """Set hidden widths in a feed-forward's values, whole or partial."""
    for hidden, name in (
        (feedforward, "hidden_dim"),
        (feedforward, "shared_hidden_dim"),
        (feedforward.get("expert", {}), "hidden_dim"),
    ):
        if isinstance(width := hidden.get(name), int):
            hidden[name] = _eighths(width * share)


def _leave_out_experts(feedforward: Table, experts: int) -> None:
    """Lower the numbers of experts and of their groups, which hold two at least."""
    groups = max(1, experts // 2)
    most = {
        "num_experts": experts,
        "top_k": 2,
        "num_groups": groups,
        "top_groups": groups // 2 or 1,
    }
    for name in most.keys() & feedforward.keys():
        feedforward[name] = min(feedforward[name], most[name])


def _shorten(attention: Table, share: float) -> None:
    """Fit what is counted in tokens to shorter texts."""
    for name in ("mask", "query_temperature"):
        if name in attention:
            attention[name] = shortened(attention[name], share)


def shortened(table: Table, share: float) -> Table:
    """Return a mask or a scale by length whose numbers of tokens are this share of what they were, never more."""
    counted = IN_BLOCKS if "block_size" in table else TOKENS
    fitting = {
        name: max(least, round(table[name] * share))
        for name, least in counted.items()
        if name in table and share < 1
    }
    return table | fitting


def _thin(scaling: Table, pairs: int) -> None:
    """Keep as many divisors of LongRoPE as there are pairs, evenly spread."""
    for name in ("short", "long"):
        if divisors := scaling.get(name):
            step = len(divisors) / pairs
            scaling[name] = tuple(divisors[int(i * step)] for i in range(pairs))


def _eighths(width: float) -> int:
    """Return the multiple of 8 that is nearest to a width, and at least 8."""
    return max(8, 8 * round(width / 8))


def _divisor(number: int, wanted: float) -> int:
    """Return the divisor of `number` that is nearest to `wanted` in ratio."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(math.log(n / wanted)))
