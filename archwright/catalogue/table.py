"""The table of architectures: one row per model, derived from its spec.

A column reads an option by its name, so that plug-ins with an option of this name also fill it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from archwright import format as fmt
from archwright.catalogue.parameter_counts import parameter_counts
from archwright.catalogue.summaries import called, word
from archwright.spec.attention import Attention, MaskedAttention
from archwright.spec.choice import Spec
from archwright.spec.feedforward import FeedForward
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import Norm
from archwright.spec.read import load, preset_names
from archwright.spec.residuals import Residual
from archwright.spec.unpublished import unpublished


@dataclass(frozen=True)
class Row:
    """A model in the table."""

    name: str
    cells: dict[str, str]
    """Text by column; empty if absent or unknown."""
    unpublished: str = ""
    """Unpublished details that prevent building the model."""

    def record(self) -> dict[str, str]:
        """Return the row as a flat dictionary, for CSV and JSON."""
        return {"model": self.name, **self.cells, "unpublished": self.unpublished}


@dataclass(frozen=True)
class Column:
    """A column of the table, with the function that fills its cells."""

    meaning: str
    cell: Callable[[ModelSpec], str]
    brief: bool = False
    """True if the terminal table includes the column."""


def rows() -> list[Row]:
    """Return all presets and unpublished models by year, family and size."""
    entries = []
    for name in preset_names("models"):
        row = row_of(load(name))
        family, size = name.partition("-")[0], int(row.cells["parameters"])
        entries.append((row.cells["year"], family, size, row))
    for name, model in unpublished().items():
        cells = dict.fromkeys(COLUMNS, "") | {"year": year(model.source)} | model.known
        entries.append((year(model.source), name, 0, Row(name, cells, model.unpublished)))
    return [row for *_, row in sorted(entries, key=lambda entry: entry[:3])]


def row_of(spec: ModelSpec) -> Row:
    """Return the row of one model."""
    resolved = spec.resolved()
    return Row(spec.name, {name: column.cell(resolved) for name, column in COLUMNS.items()})


def year(source: str) -> str:
    """Return the first year in a source; empty if there is none."""
    match = re.search(r"\b(19|20)\d\d\b", source)
    return match.group() if match else ""


def layers(spec: ModelSpec) -> list[LayerSpec]:
    """Return the used kinds of layers in order of appearance."""
    return [spec.layers_by_kind[n] for n in dict.fromkeys(spec.layers.names(spec.num_layers))]


def _total(spec: ModelSpec) -> str:
    counts = parameter_counts(spec)
    return str(counts.total) if counts else ""


def _joined(spec: ModelSpec, text_of: Callable[[LayerSpec], str]) -> str:
    """Join the distinct texts of all kinds of layers."""
    return " + ".join(dict.fromkeys(filter(None, map(text_of, layers(spec)))))


def _position(layer: LayerSpec) -> str:
    position = layer.position
    if layer.attention.is_none:
        return ""
    if position.is_none:
        return called(layer.attention) if layer.attention.knows_distances else "NoPE"
    fraction = _option(position, "fraction", 1.0)
    part = f" {Fraction(fraction).limit_denominator(99)}" if fraction < 1 else ""
    return called(position) + part


def _heads(attention: Attention) -> str:
    num_heads, num_kv_heads = (_option(attention, f"num_{name}heads") for name in ("", "kv_"))
    if attention.knows_distances:  # the position column names its kind
        num_kv_heads = num_kv_heads or num_heads
    if num_heads and num_kv_heads:
        return f"{num_heads}/{num_kv_heads}"
    name = "MLA" if _option(attention, "kv_rank") else called(attention)
    return "" if attention.is_none else f"{num_heads or ''} {name}".lstrip()


def _mixers(layer: LayerSpec) -> str:
    recurrence = "" if layer.recurrence.is_none else word(layer.recurrence.rule)
    return " + ".join(filter(None, [_heads(layer.attention), recurrence]))


def _heads_and_dims(spec: ModelSpec) -> list[tuple[int, int]]:
    """Return the number of query heads and their width, for each kind of layer with attention."""
    attentions = [layer.attention for layer in layers(spec)]
    return [
        (attention.heads(spec.dim)["num_heads"], attention.key_dim(spec.dim))
        for attention in attentions
        if isinstance(attention, MaskedAttention)
    ]


def _head_dim(spec: ModelSpec) -> str:
    return _numbers(head_dim for _, head_dim in _heads_and_dims(spec))


def _heads_over_dim(spec: ModelSpec) -> str:
    return _numbers(number * head_dim / spec.dim for number, head_dim in _heads_and_dims(spec))


def _hidden_over_dim(spec: ModelSpec) -> str:
    hidden = [layer.feedforward.hidden_layer for layer in layers(spec)]
    return _numbers(feedforward.width(spec.dim) / spec.dim for feedforward in hidden if feedforward)


def _numbers(numbers: Iterable[float]) -> str:
    """Join the distinct numbers of all kinds of layers."""
    return " + ".join(dict.fromkeys(map(fmt.significant, numbers)))


def _activation(feedforward: FeedForward) -> str:
    inner = feedforward.hidden_layer or feedforward
    return "" if inner.is_none else called(inner)


def _experts(feedforward: FeedForward) -> str:
    num_experts, top_k = (_option(feedforward, name) for name in ("num_experts", "top_k"))
    shared = "" if _option(feedforward, "shared", "none") == "none" else " + 1 shared"
    return f"{top_k} of {num_experts}{shared}" if num_experts and top_k else ""


def _masks(spec: ModelSpec) -> str:
    """Return the masks other than plain causal, with their share of layers."""
    names = spec.layers.names(spec.num_layers)
    cycle = spec.layers.cycle if len(names) >= len(spec.layers.cycle) else names
    masks = [_option(spec.layers_by_kind[name].attention, "mask") for name in cycle]
    parts = []
    for mask in dict.fromkeys(
        mask for mask in masks if mask and not (mask.causal and mask.shows_all)
    ):
        share = (
            "" if len(masks) == masks.count(mask) else f" in {masks.count(mask)} of {len(masks)}"
        )
        numbers = [f"{n:,}" for n in mask.model_dump().values() if type(n) is int]  # no booleans
        parts.append(" ".join([called(mask), *numbers]) + share)
    return ", ".join(parts)


def _stacks(spec: ModelSpec) -> str:
    if spec.encoder_model is not None:
        return f"{spec.encoder_model.num_layers} encoder + {spec.num_layers} decoder layers"
    return "encoder" if spec.is_bidirectional else "decoder"


def _biases(spec: ModelSpec) -> str:
    """Return the linear maps with a bias, or `all` or `none`."""
    switches: dict[str, set[bool]] = {}
    for layer in layers(spec):
        for name, has in _bias_switches(layer):
            switches.setdefault(name, set()).add(has)
    biased = [name for name, has in switches.items() if True in has]
    linear = [name for name in switches if name != "router"]
    parts = ["all"] if biased and {*linear} <= {*biased} else biased
    parts += ["head"] if spec.head.bias else []
    return ", ".join(parts) or "none"


def _bias_switches(layer: LayerSpec) -> Iterator[tuple[str, bool]]:
    for mixer in layer.mixers.values():
        bias = _option(mixer, "bias", {})
        bias = {"all": bias} if isinstance(bias, bool) else dict(bias)
        if "query" in bias:
            yield "QKV", bias["query"]
            yield f"{mixer.axis} out", bias["out"]
        elif bias:
            yield mixer.axis, any(bias.values())
    if (router := _option(layer.feedforward, "router_bias")) is not None:
        yield "router", router
    if hidden := layer.feedforward.hidden_layer:
        yield "feed-forward", any(dict(hidden.bias).values())


def _qk_norm(attention: Attention) -> str:
    norm = _option(attention, "qk_norm", Norm.none())
    if norm.is_none:
        return ""
    names = {"head": "head", "per_head": "each head", "projection": "all heads"}
    over, position = (_option(attention, f"qk_norm_{name}", "") for name in ("over", "position"))
    where = [f"over {names[over]}" if over else "", f"{position} positions" if position else ""]
    return f"{called(norm)} {', '.join(filter(None, where))}".rstrip()


def _norm_weight(spec: ModelSpec) -> str:
    weights = {"plain": "w", "unit_offset": "1 + w", "none": "none"}
    weight = weights.get(_option(spec.norm, "weight"), "")
    return f"{weight}, bias" if _option(spec.norm, "bias") else weight


def _wiring(residual: Residual) -> str:
    norms = _option(residual, "num_norms", 1)
    return called(residual) + (f" ({norms})" if norms > 1 else "")


def _tricks(spec: ModelSpec) -> str:
    """Return the techniques that keep activations bounded."""
    parts = [
        spec.residual.stability,
        "QK-norm" if any(_qk_norm(layer.attention) for layer in layers(spec)) else "",
        "" if spec.embedding.norm.is_none else "embedding norm",
        _number("score cap {:g}", spec, "softcap"),
        "" if spec.head.softcap == "none" else f"logit cap {spec.head.softcap:g}",
        _number("QKV clip {:g}", spec, "qkv_clip"),
        "sinks" if any(_option(layer.attention, "sinks") for layer in layers(spec)) else "",
    ]
    return ", ".join(filter(None, parts))


def _number(text: str, spec: ModelSpec, option: str) -> str:
    """Format the first numeric value of an attention option."""
    values = (_option(layer.attention, option, "none") for layer in layers(spec))
    numbers = [value for value in values if value != "none"]
    return text.format(numbers[0]) if numbers else ""


def _option(choice: Spec, name: str, default: Any = None) -> Any:
    """Return the option of a choice with this name, or a default."""
    return dict(choice).get(name, default)


COLUMNS = {
    "year": Column("Year of the source.", lambda spec: year(spec.source), brief=True),
    "parameters": Column("Total, including shared and inactive experts.", _total, brief=True),
    "norm": Column("Norm of the branches.", lambda spec: called(spec.norm), brief=True),
    "wiring": Column(
        "Place of the norms: before a branch (pre), after the sum (post), before and after a branch "
        "(pre+post), after a branch (output). Parallel: both branches read the same normed input; (2): "
        "each branch has its own norm.",
        lambda spec: _joined(spec, lambda layer: _wiring(layer.residual)),
        brief=True,
    ),
    "position": Column(
        "Position encoding, with the share of each head that RoPE rotates; NoPE: layers without positions.",
        lambda spec: _joined(spec, _position),
        brief=True,
    ),
    "heads": Column(
        "Query heads / key-value heads, and recurrences; MLA: keys and values are projected from one latent vector.",
        lambda spec: _joined(spec, _mixers),
        brief=True,
    ),
    "activation": Column(
        "Activation of the feed-forward, or of each expert.",
        lambda spec: _joined(spec, lambda layer: _activation(layer.feedforward)),
        brief=True,
    ),
    "norm_weight": Column("Factor of a normed value, and whether a bias is added.", _norm_weight),
    "experts": Column(
        "Active experts per token of all routed experts, and shared experts.",
        lambda spec: _joined(spec, lambda layer: _experts(layer.feedforward)),
    ),
    "mask": Column("Attention masks other than plain causal, with their share of layers.", _masks),
    "qk_norm": Column(
        "Norm of queries and keys: its extent, and its place before or after positions.",
        lambda spec: _joined(spec, lambda layer: _qk_norm(layer.attention)),
    ),
    "biases": Column("Linear maps with a bias.", _biases),
    "tied": Column(
        "Whether embedding and head share a table.", lambda spec: "yes" if spec.head.tied else "no"
    ),
    "stability": Column("Techniques that keep activations bounded.", _tricks),
    "stacks": Column(
        "Decoder, encoder (bidirectional), or both; then all columns describe the decoder.", _stacks
    ),
    "layers": Column("Number of layers.", lambda spec: str(spec.num_layers)),
    "dim": Column("Width of the residual stream.", lambda spec: str(spec.dim)),
    "dim_over_layers": Column(
        "Aspect ratio: width of the residual stream over number of layers.",
        lambda spec: fmt.significant(spec.dim / spec.num_layers),
    ),
    "head_dim": Column("Width of a query head.", _head_dim),
    "heads_over_dim": Column("Number of query heads times their width, over dim.", _heads_over_dim),
    "hidden_over_dim": Column(
        "Hidden width of the feed-forward, or of each expert, over dim.", _hidden_over_dim
    ),
    "vocabulary": Column("Rows of the embedding.", lambda spec: str(spec.vocab_size)),
    "context": Column("Longest sequence, in tokens.", lambda spec: str(spec.context_length)),
}
"""Columns of the table, after the first one with the name of the model."""
