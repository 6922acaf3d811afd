"""Making variants equal in size: hidden_dim is chosen, and dim where that is not enough."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from archwright.model.build import build
from archwright.model.decoder import Decoder
from archwright.planning.cost import flops_per_token, parameters_by_part
from archwright.spec.errors import UserError
from archwright.spec.feedforward import Experts, FeedForward, Hidden
from archwright.spec.model_spec import ModelSpec
from archwright.spec.rules import enforce
from archwright.spec.study_spec import Match

TOLERANCE = 0.005
"""Largest share by which a variant may miss the baseline's size."""

RATIOS = (0.5, 16.0)
"""hidden_dim over dim, beyond which dim is changed instead."""

MULTIPLES = (16, 8, 4, 2, 1)
"""What hidden_dim is a multiple of, the first that is near enough: round widths compute fastest."""

TRIES = 24
"""Widths that are tried."""

OUTSIDE = ("embedding", "position", "head")
"""Parts of a model that are not counted as its size: tables with a row for each token or place."""


@dataclass(frozen=True)
class Counts:
    """What a model is made of, and what a token costs it in training."""

    parameters: int
    non_embedding: int
    flops_per_token: float

    def of(self, match: Match) -> float:
        """Return the quantity that a study makes equal."""
        return {
            "parameters": float(self.parameters),
            "flops": self.flops_per_token,
        }.get(match, float(self.non_embedding))


def count(spec: ModelSpec, vocab_size: int) -> Counts:
    """Return the counts of a model, built without memory."""
    model = build(spec, device="meta", vocab_size=vocab_size)
    return Counts(
        model.num_parameters(),
        _non_embedding(model),
        flops_per_token(model, spec.context_length),
    )


def _non_embedding(model: Decoder) -> int:
    """Count parameters outside the tables of tokens and places (Kaplan et al., 2020, section 2.1)."""
    parts = parameters_by_part(model)
    return sum(n for part, n in parts.items() if part.split(".")[0] not in OUTSIDE)


def matched(
    spec: ModelSpec, target: Counts, match: Match, vocab_size: int
) -> tuple[ModelSpec, bool]:
    """Return the spec with the widths at which it equals `target`, and whether it does within 0.5 %.

    Where nothing near enough is found, the nearest is returned.
    """
    if match == "none" or _miss(spec, target, match, vocab_size) == 0:
        return spec, True
    nearest, least = spec, _miss(spec, target, match, vocab_size)
    excess = count(spec, vocab_size).of(match) / target.of(match)
    for dim in _dims(spec, excess):
        for candidate in _hidden_candidates(_with_dim(spec, dim), target, match, vocab_size):
            miss = _miss(candidate, target, match, vocab_size)
            if miss <= TOLERANCE:
                return candidate, True
            if miss < least:
                nearest, least = candidate, miss
    return nearest, least <= TOLERANCE


def mismatch(counts: Counts, target: Counts, match: Match) -> float:
    """Return by which share a variant exceeds the baseline."""
    return counts.of(match) / target.of(match) - 1


def _miss(spec: ModelSpec, target: Counts, match: Match, vocab_size: int) -> float:
    return abs(mismatch(count(spec, vocab_size), target, match))


def _hidden_candidates(
    spec: ModelSpec, target: Counts, match: Match, vocab_size: int
) -> Iterator[ModelSpec]:
    """Yield the spec with the hidden widths nearest to what is wanted, round ones first.

    A model's size is a straight line in hidden_dim, so that two sizes tell it.
    """
    resolved = spec.resolved(vocab_size)
    layer = hidden_layer(resolved.feedforward)
    if layer is None:
        yield spec
        return
    hidden = layer.hidden_dim
    assert hidden != "auto"

    def size(hidden_dim: int) -> float:
        return count(_with_hidden(resolved, spec, hidden_dim), vocab_size).of(match)

    slope = (size(2 * hidden) - size(hidden)) / hidden
    exact = hidden + (target.of(match) - size(hidden)) / slope
    least = RATIOS[0] * spec.dim / getattr(resolved.feedforward, "num_experts", 1)
    allowed = min(max(exact, least), RATIOS[1] * spec.dim)
    for multiple in MULTIPLES if allowed == exact else MULTIPLES[-1:]:
        yield _with_hidden(resolved, spec, max(multiple, multiple * round(allowed / multiple)))


def _with_hidden(resolved: ModelSpec, spec: ModelSpec, hidden_dim: int) -> ModelSpec:
    """Return a spec with another hidden width; layers with one of their own keep their ratio to it."""
    layer = hidden_layer(resolved.feedforward)
    assert layer
    assert layer.hidden_dim != "auto"
    values = spec.model_dump()
    _table(values)["hidden_dim"] = hidden_dim
    for partial in values["layer_kinds"].values():
        own = _table(partial).get("hidden_dim")
        if isinstance(own, int):
            _table(partial)["hidden_dim"] = max(1, round(own * hidden_dim / layer.hidden_dim))
    return ModelSpec.model_validate(values)


def hidden_layer(feedforward: FeedForward) -> Hidden | None:
    """Return what has a hidden width: the feed-forward itself, each of its experts, or nothing."""
    layer = feedforward.expert if isinstance(feedforward, Experts) else feedforward
    return layer if isinstance(layer, Hidden) else None


def _table(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the table in a layer's values that holds its hidden width."""
    feedforward: dict[str, Any] = layer.get("feedforward", {})
    inner: dict[str, Any] = feedforward.get("expert", feedforward)
    return inner


def _dims(spec: ModelSpec, excess: float) -> list[int]:
    """Return widths to try: the model's own, then those around the one at which it has the right size, as sizes
    grow with the square of the width."""
    step = _step(spec)
    right = spec.dim * excess**-0.5
    others = range(step, 4 * spec.dim + 1, step)
    near = sorted(others, key=lambda dim: abs(math.log(dim / right)))
    allowed = (dim for dim in near if dim != spec.dim and _allowed(_with_dim(spec, dim)))
    return [spec.dim, *islice(allowed, TRIES - 1)]


def _allowed(spec: ModelSpec) -> bool:
    """Tell whether a model of this width keeps the rules: half of a head may not turn in pairs."""
    try:
        enforce(spec)
    except UserError:
        return False
    return True


def _step(spec: ModelSpec) -> int:
    """Return by how much a model's width may change: a whole pair of dimensions for each head."""
    return 2 * max(1, getattr(spec.resolved().attention, "num_heads", 1))


def _with_dim(spec: ModelSpec, dim: int) -> ModelSpec:
    if dim == spec.dim:
        return spec
    return spec.override(f"dim={dim}", *_heads_follow(spec))


def _heads_follow(spec: ModelSpec) -> list[str]:
    """Let the width of heads follow dim where it was dim over their number."""
    resolved = spec.resolved().attention
    head_dim, num_heads = (getattr(resolved, name, 0) for name in ("head_dim", "num_heads"))
    given = getattr(spec.attention, "head_dim", "auto")
    if head_dim * num_heads != spec.dim or given == "auto":
        return [f"attention.num_heads={num_heads}"] if num_heads else []
    return [f"attention.num_heads={num_heads}", "attention.head_dim=auto"]
