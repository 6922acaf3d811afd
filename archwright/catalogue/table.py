"""The table of architectures: what each model chose, one row each, derived from its spec."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from archwright.catalogue.parameter_counts import parameter_counts
from archwright.catalogue.summaries import word
from archwright.spec.attention import Attention, LatentAttention, SoftmaxAttention
from archwright.spec.feedforward import Experts, FeedForward, Hidden
from archwright.spec.masks import Causal
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.norms import LayerNorm
from archwright.spec.positions import Position, RoPE
from archwright.spec.read import load, preset_names
from archwright.spec.residuals import Residual
from archwright.spec.unpublished import unpublished


@dataclass(frozen=True)
class Row:
    """A model in the table."""

    name: str
    cells: dict[str, str]
    """By column; empty where there is nothing, or nothing is known."""
    unpublished: str = ""
    """The choice that a model lacks which cannot be built."""

    def record(self) -> dict[str, str]:
        """Return the row as CSV and JSON have it."""
        return {"model": self.name, **self.cells, "unpublished": self.unpublished}


@dataclass(frozen=True)
class Column:
    """A model's row in the table."""

    meaning: str
    cell: Callable[[ModelSpec], str]
    brief: bool = False
    """Whether it is in the table that fits a terminal."""


def rows() -> list[Row]:
    """Return all models that come with the package, oldest first, and of one year by name and size."""
    found = []
    for name in preset_names("models"):
        row = row_of(load(name))
        family, size = name.partition("-")[0], int(row.cells["parameters"])
        found.append((row.cells["year"], family, size, row))
    for name, model in unpublished().items():
        cells = dict.fromkeys(COLUMNS, "") | {"year": year(model.source)} | model.known
        found.append((year(model.source), name, 0, Row(name, cells, model.unpublished)))
    return [row for *_, row in sorted(found, key=lambda entry: entry[:3])]


def row_of(spec: ModelSpec) -> Row:
    """Return the row of one model."""
    resolved = spec.resolved()
    return Row(spec.name, {name: column.cell(resolved) for name, column in COLUMNS.items()})


def year(source: str) -> str:
    """Return the year of a source: the first number of four digits that begins so."""
    found = re.search(r"\b(19|20)\d\d\b", source)
    return found.group() if found else ""


def layers(spec: ModelSpec) -> list[LayerSpec]:
    """Return every kind of layer that stands somewhere, in order of appearance."""
    return [spec.layers_by_kind[n] for n in dict.fromkeys(spec.layers.names(spec.num_layers))]


def _total(spec: ModelSpec) -> str:
    counts = parameter_counts(spec)
    return str(counts.total) if counts else ""


def _each(spec: ModelSpec, say: Callable[[LayerSpec], str]) -> str:
    """Join what the kinds of layers have, each once."""
    return " + ".join(dict.fromkeys(filter(None, map(say, layers(spec)))))


def _position(position: Position) -> str:
    if position.is_none:
        return "NoPE"
    if isinstance(position, RoPE) and position.fraction < 1:
        return f"{word(position.kind)} {Fraction(position.fraction).limit_denominator(99)}"
    return word(position.kind)


def _heads(attention: Attention) -> str:
    if isinstance(attention, LatentAttention):
        return f"{attention.num_heads} MLA"
    if not isinstance(attention, SoftmaxAttention):
        return "" if attention.kind == "none" else word(attention.kind)
    return f"{attention.num_heads}/{attention.num_kv_heads}"


def _activation(feedforward: FeedForward) -> str:
    inner = feedforward.expert if isinstance(feedforward, Experts) else feedforward
    return "" if inner.kind == "none" else word(inner.kind)


def _experts(feedforward: FeedForward) -> str:
    if not isinstance(feedforward, Experts):
        return ""
    shared = "" if feedforward.shared == "none" else " + 1 shared"
    return f"{feedforward.top_k} of {feedforward.num_experts}{shared}"


def _masks(spec: ModelSpec) -> str:
    """Name the masks that hide more than the future, with the share of layers that have each."""
    names = spec.layers.names(spec.num_layers)
    cycle = spec.layers.cycle if len(names) >= len(spec.layers.cycle) else names
    masks = [getattr(spec.layers_by_kind[name].attention, "mask", None) for name in cycle]
    parts = []
    for mask in dict.fromkeys(mask for mask in masks if mask and not isinstance(mask, Causal)):
        share = (
            "" if len(masks) == masks.count(mask) else f" in {masks.count(mask)} of {len(masks)}"
        )
        numbers = [f"{n:,}" for n in mask.model_dump().values() if type(n) is int]  # no switches
        parts.append(" ".join([word(mask.kind), *numbers]) + share)
    return ", ".join(parts)


def _biases(spec: ModelSpec) -> str:
    """Name the linear maps that have a bias: all, none, or which."""
    found: dict[str, set[bool]] = {}
    for layer in layers(spec):
        for name, has in _bias_switches(layer):
            found.setdefault(name, set()).add(has)
    having = [name for name, has in found.items() if True in has]
    linear = [name for name in found if name != "router"]
    parts = ["all"] if having and {*linear} <= {*having} else having
    parts += ["head"] if spec.head.bias else []
    return ", ".join(parts) or "none"


def _bias_switches(layer: LayerSpec) -> Iterator[tuple[str, bool]]:
    bias = getattr(layer.attention, "bias", None)
    if isinstance(layer.attention, SoftmaxAttention):
        yield "QKV", layer.attention.bias.query
        yield "attention out", layer.attention.bias.out
    elif bias is not None:
        yield "attention", any(bias.model_dump().values())
    feedforward = layer.feedforward
    if isinstance(feedforward, Experts):
        yield "router", feedforward.router_bias
        feedforward = feedforward.expert
    if isinstance(feedforward, Hidden):
        yield "feed-forward", any(feedforward.bias.model_dump().values())


def _qk_norm(attention: Attention) -> str:
    norm = getattr(attention, "qk_norm", None)
    if norm is None or norm.is_none or not isinstance(attention, SoftmaxAttention):
        return ""
    over = {"head": "head", "per_head": "each head", "projection": "all heads"}
    return f"{word(norm.kind)} over {over[attention.qk_norm_over]}, {attention.qk_norm_position} positions"


def _norm_weight(spec: ModelSpec) -> str:
    weights = {"plain": "w", "unit_offset": "1 + w", "none": "none"}
    weight = weights.get(getattr(spec.norm, "weight", ""), "")
    biased = isinstance(spec.norm, LayerNorm) and spec.norm.bias
    return f"{weight}, bias" if biased else weight


def _wiring(residual: Residual) -> str:
    norms = getattr(residual, "num_norms", 1)
    return word(residual.kind) + (f" ({norms})" if norms > 1 else "")


def _tricks(spec: ModelSpec) -> str:
    """Name what keeps numbers in bounds."""
    parts = [
        "pre+post norm" if spec.residual.kind == "sandwich" else "",
        "DeepNorm" if spec.residual.kind == "deepnorm" else "",
        "QK-norm" if any(_qk_norm(layer.attention) for layer in layers(spec)) else "",
        "" if spec.embedding.norm.is_none else "embedding norm",
        _number("score cap {:g}", (getattr(n.attention, "softcap", "none") for n in layers(spec))),
        _number("logit cap {:g}", [spec.head.softcap]),
        _number("QKV clip {:g}", (getattr(n.attention, "qkv_clip", "none") for n in layers(spec))),
        "sinks" if any(getattr(n.attention, "sinks", False) for n in layers(spec)) else "",
    ]
    return ", ".join(filter(None, parts))


def _number(text: str, values: Iterable[object]) -> str:
    given = [value for value in values if value != "none"]
    return text.format(given[0]) if given else ""


COLUMNS = {
    "year": Column("Of the source.", lambda spec: year(spec.source), brief=True),
    "parameters": Column("All of them, shared and idle experts included.", _total, brief=True),
    "norm": Column("Of the branches.", lambda spec: word(spec.norm.kind), brief=True),
    "wiring": Column(
        "Where norms stand: before a branch (pre), behind the sum (post), on both sides of the branch "
        "(pre+post), behind the branch (output); parallel: both branches read the same, normed before, "
        "(2) by a norm each.",
        lambda spec: _each(spec, lambda layer: _wiring(layer.residual)),
        brief=True,
    ),
    "position": Column(
        "How a token knows its place, with the share of each head that RoPE turns; NoPE: layers with none.",
        lambda spec: _each(spec, lambda layer: _position(layer.position)),
        brief=True,
    ),
    "heads": Column(
        "Query heads / key-value heads; MLA: heads whose keys and values are made from one latent.",
        lambda spec: _each(spec, lambda layer: _heads(layer.attention)),
        brief=True,
    ),
    "activation": Column(
        "Of the feed-forward, or of each expert.",
        lambda spec: _each(spec, lambda layer: _activation(layer.feedforward)),
        brief=True,
    ),
    "norm_weight": Column(
        "What a normed value is multiplied by, and whether a bias follows.", _norm_weight
    ),
    "experts": Column(
        "Those that a token goes through, of those there are.",
        lambda spec: _each(spec, lambda layer: _experts(layer.feedforward)),
    ),
    "mask": Column(
        "What attention sees less than all before, and in which share of layers.", _masks
    ),
    "qk_norm": Column(
        "Norm of queries and keys: over what, and before or after positions.",
        lambda spec: _each(spec, lambda layer: _qk_norm(layer.attention)),
    ),
    "biases": Column("Linear maps with a bias.", _biases),
    "tied": Column(
        "Whether embedding and head share a table.", lambda spec: "yes" if spec.head.tied else "no"
    ),
    "stability": Column("What keeps numbers in bounds.", _tricks),
    "layers": Column("Number of layers.", lambda spec: str(spec.num_layers)),
    "dim": Column("Width of the residual stream.", lambda spec: str(spec.dim)),
    "vocabulary": Column("Rows of the embedding.", lambda spec: str(spec.vocab_size)),
    "context": Column("Longest text, in tokens.", lambda spec: str(spec.context_length)),
}
"""Every column after the name."""
