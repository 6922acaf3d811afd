"""Making variants equal in size: hidden_dim is chosen, dim where that is not enough, and last the width of heads.
What a variant sets itself stays."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from archwright.model.build import build
from archwright.model.language_model import LanguageModel
from archwright.planning.cost import flops_per_token, parameters_by_part
from archwright.planning.memory import cache_bytes
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.rules import enforce
from archwright.spec.study_spec import Match

Flops = Callable[[LanguageModel], float]
"""Returns the FLOPs of a training token."""
TOLERANCE = 0.005
"""Miss of the baseline's size, as a share, at which the search ends."""

LARGEST_MISS = 0.02
"""Largest miss of the nearest size, as a share: a variant that is farther off is refused."""

RATIOS = (0.5, 16.0)
"""hidden_dim over dim, beyond which dim is changed instead."""

WIDER, NARROWER = 4, 2.5
"""Factors by which dim may grow or shrink: models that lack a branch in each layer need three times the width."""

LEAST_WIDTH = 8
"""Narrowest dim and hidden width that matching makes."""

MULTIPLES = (16, 8, 4, 2, 1)
"""Divisors of hidden_dim, of which the first that comes near enough is taken: round widths compute fastest."""

HEADS_APART = 1.25
"""Times the share of dim that a head would have, up to which it may be wider or narrower."""

TRIES = 24
"""Widths that are tried."""

HIDDEN_WIDTHS = frozenset(
    f"feedforward.{at}{field}" for at in ("", "expert.") for field in ("hidden_dim", "ratio")
)
"""Dotted paths that say how wide hidden layers are."""

OTHER_WIDTHS = ("feedforward.hidden_dim", "recurrence.inner_dim", "recurrence.value_head_dim")
"""Widths of models without such hidden layers; sizes are linear in them."""

HEAD_DIM = "attention.head_dim"
HEADS = frozenset({"num_heads", "head_dim"})
"""Options of an attention whose heads may be of another width than they share out."""

OUTSIDE = ("embedding", "position", "head", "layers.attention.value_embedding")
"""Parts of a model that are not counted as its size: tables with a row for each token or place."""


@dataclass(frozen=True)
class Counts:
    """A model's parameters, FLOPs of a training token, and bytes of a cache."""

    parameters: int
    non_embedding: int
    flops_per_token: float
    cache_bytes: int
    """Bytes that decoding keeps after the context, in 16 bits, recurrences in 32; 0: it keeps nothing."""

    def of(self, match: Match) -> float:
        """Return the quantity that a study makes equal."""
        return {"parameters": float(self.parameters), "flops": self.flops_per_token}.get(
            match, float(self.non_embedding)
        )


def count(spec: ModelSpec, vocab_size: int, flops: Flops | None = None) -> Counts:
    """Return the counts of a model, built without memory; FLOPs by default of texts as long as the context."""
    model = build(spec, device="meta", vocab_size=vocab_size)
    parts = parameters_by_part(model)
    outside = tuple(f"{name}." for name in OUTSIDE)
    return Counts(
        model.num_parameters(),
        sum(n for part, n in parts.items() if not f"{part}.".startswith(outside)),
        flops(model) if flops else flops_per_token(model, spec.context_length),
        cache_bytes(model, spec.context_length) if model.can_cache else 0,
    )


def matched(
    spec: ModelSpec,
    target: Counts,
    match: Match,
    vocab_size: int,
    held: Collection[str] = (),
    flops: Flops | None = None,
) -> tuple[ModelSpec, bool]:
    """Return the spec with the widths at which it equals `target`, and whether it does, within 2 % at most.

    The widths are hidden_dim; dim, where that is not enough; and last the width of heads. Values at the dotted
    paths `held` stay. Where nothing near enough is found, the nearest is returned.
    """
    matching = _Matching(target.of(match), match, vocab_size, frozenset(held), flops)
    nearest, least = spec, 0.0 if match == "none" else matching.miss(spec)
    if least == 0:
        return spec, True
    for candidate in matching.candidates(spec):
        miss = matching.miss(candidate)
        if miss <= TOLERANCE:
            return candidate, True
        if miss < least:
            nearest, least = candidate, miss
    return nearest, least <= LARGEST_MISS


def mismatch(counts: Counts, target: Counts, match: Match) -> float:
    """Return by which share a variant exceeds the baseline."""
    return counts.of(match) / target.of(match) - 1


@dataclass(frozen=True)
class _Matching:
    """Search for widths at which a model has the wanted size."""

    wanted: float
    match: Match
    vocab_size: int
    held: frozenset[str]
    flops: Flops | None

    def size(self, spec: ModelSpec) -> float:
        return count(spec, self.vocab_size, self.flops).of(self.match)

    def miss(self, spec: ModelSpec) -> float:
        return abs(self.size(spec) / self.wanted - 1)

    def candidates(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """Yield the spec with other widths, those first that change least."""
        if spec.feedforward.hidden_layer and not self.held & HIDDEN_WIDTHS:
            for dim in [spec.dim] if "dim" in self.held else self._dims(spec):
                yield from self._hidden_candidates(self._with_dim(spec, dim))
        elif spec.feedforward.hidden_layer is None:
            for dim in [spec.dim] if "dim" in self.held else self._dims(spec):
                yield from self._other_candidates(self._with_dim(spec, dim))
        if "dim" not in self.held:
            yield from self._dim_candidates(spec)

    def _other_candidates(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """Yield the spec with the nearest of each width in `OTHER_WIDTHS`."""
        resolved = spec.resolved(self.vocab_size)
        for path in OTHER_WIDTHS:
            axis, _, name = path.partition(".")
            width = dict(getattr(resolved, axis)).get(name)
            if not isinstance(width, int) or path in self.held:
                continue
            size, twice = (self.size(spec.override(f"{path}={n}")) for n in (width, 2 * width))
            nearest = round(width + (self.wanted - size) * width / (twice - size))
            if width / WIDER <= nearest <= WIDER * width:
                yield spec.override(f"{path}={nearest}")

    def _hidden_candidates(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """Yield the spec with the nearest hidden widths; sizes are linear in hidden_dim."""
        resolved = spec.resolved(self.vocab_size)
        layer = resolved.feedforward.hidden_layer
        assert layer
        hidden = layer.hidden_dim
        assert hidden != "auto"

        def size(hidden_dim: int) -> float:
            return self.size(self._with_hidden(resolved, spec, hidden_dim))

        slope = (size(2 * hidden) - size(hidden)) / hidden
        if slope == 0:  # no layer has the default's feed-forward
            return
        exact = hidden + (self.wanted - size(hidden)) / slope
        least = RATIOS[0] * spec.dim / getattr(resolved.feedforward, "num_experts", 1)
        least = max(least, min(hidden, LEAST_WIDTH))
        allowed = min(max(exact, least), RATIOS[1] * spec.dim)
        for multiple in MULTIPLES if allowed == exact else MULTIPLES[-1:]:
            width = max(multiple, multiple * round(allowed / multiple))
            yield self._with_hidden(resolved, spec, width)

    def _dim_candidates(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """Yield the spec at the nearest widths: first with shared-out heads, then with other heads."""
        near = self._nearest_dims(spec)
        yield from (self._with_dim(spec, dim) for dim in near)
        has_heads = type(spec.attention).model_fields.keys() >= HEADS
        if near and has_heads and HEAD_DIM not in self.held:
            far, least = max(self._step(spec), TRIES // 4), _narrowest(spec)
            around = sorted(range(near[0] - far, near[0] + far + 1), key=lambda d: abs(d - near[0]))
            for odd in (0, 1):
                dims = [dim for dim in around if dim >= least and dim % 2 == odd][:TRIES]
                yield from self._head_candidates(spec, dims)

    def _head_candidates(self, spec: ModelSpec, dims: Sequence[int]) -> list[ModelSpec]:
        """Return the spec at each width with the nearest head_dim; sizes are linear in head_dim."""
        num_heads = dict(spec.resolved().attention)["num_heads"]
        found = []
        for dim in dims:
            usual = max(2, 2 * round(dim / num_heads / 2))
            tried = [_with_heads(spec, dim, num_heads, width) for width in (usual, usual + 2)]
            if not all(map(_allowed, tried)):
                continue
            sizes = [self.size(resized) for resized in tried]
            if sizes[0] == sizes[1]:  # no layer has the default's attention
                return []
            exact = usual + 2 * (self.wanted - sizes[0]) / (sizes[1] - sizes[0])
            allowed = min(max(exact, usual / HEADS_APART), HEADS_APART * usual)
            width = max(2, 2 * round(allowed / 2))
            found.append((abs(math.log(width / usual)), dim, width))
        resized = [_with_heads(spec, dim, num_heads, width) for _, dim, width in sorted(found)]
        return [*filter(_allowed, resized)]

    def _with_hidden(self, resolved: ModelSpec, spec: ModelSpec, hidden_dim: int) -> ModelSpec:
        """Return a spec with another hidden width; other layers keep their ratio, or their held width."""
        layer = resolved.feedforward.hidden_layer
        assert layer
        assert layer.hidden_dim != "auto"
        values = spec.model_dump()
        _table(values).update(hidden_dim=hidden_dim, ratio="none")
        for name, partial in values["layer_kinds"].items():
            own, table = resolved.layers_by_kind[name].feedforward.hidden_layer, _table(partial)
            if own is None or not {"hidden_dim", "ratio"} & table.keys():
                continue
            if not self.held & {f"layer_kinds.{name}.{path}" for path in HIDDEN_WIDTHS}:
                assert own.hidden_dim != "auto"
                width = max(1, round(own.hidden_dim * hidden_dim / layer.hidden_dim))
                table.update(hidden_dim=width, ratio="none")
            elif table.get("ratio", "none") != "none":
                table["hidden_dim"] = "auto"
        return ModelSpec.model_validate(values)

    def _dims(self, spec: ModelSpec) -> list[int]:
        """Return widths to try: the model's own, then those around the right size, which grows with dim²."""
        right = spec.dim * (self.size(spec) / self.wanted) ** -0.5
        near = sorted(self._other_dims(spec), key=lambda dim: abs(math.log(dim / right)))
        allowed = (dim for dim in near if _allowed(self._with_dim(spec, dim)))
        return [spec.dim, *islice(allowed, TRIES - 1)]

    def _nearest_dims(self, spec: ModelSpec) -> list[int]:
        """Return the few widths at which a model whose other widths stay is nearest to the right size."""

        def size(dim: int) -> float:
            return self.size(self._with_dim(spec, dim))

        dims = [d for d in self._other_dims(spec) if _allowed(self._with_dim(spec, d))]
        place = bisect_left(dims, self.wanted, key=size)
        near = dims[max(0, place - 2) : place + 2]
        return sorted(near, key=lambda dim: abs(size(dim) / self.wanted - 1))

    def _other_dims(self, spec: ModelSpec) -> list[int]:
        step, dims = self._step(spec), range(_narrowest(spec), WIDER * spec.dim + 1)
        return [dim for dim in dims if dim % step == 0 and dim != spec.dim]

    def _step(self, spec: ModelSpec) -> int:
        """Return by how much a model's width may change: a whole pair of dimensions for each head that follows it."""
        if HEAD_DIM in self.held:
            return 2
        return 2 * max(1, getattr(spec.resolved().attention, "num_heads", 1))

    def _with_dim(self, spec: ModelSpec, dim: int) -> ModelSpec:
        if dim == spec.dim:
            return spec
        return spec.override(f"dim={dim}", *self._heads_follow(spec))

    def _heads_follow(self, spec: ModelSpec) -> list[str]:
        """Let the width of heads follow dim where it was dim over their number."""
        resolved = spec.resolved().attention
        head_dim, num_heads = (getattr(resolved, name, 0) for name in ("head_dim", "num_heads"))
        given = getattr(spec.attention, "head_dim", "auto")
        field = type(spec.attention).model_fields.get("head_dim")
        fixed = given == "auto" or HEAD_DIM in self.held or field is None or field.default != "auto"
        if fixed or head_dim * num_heads != spec.dim:
            return [f"attention.num_heads={num_heads}"] if num_heads else []
        return [f"attention.num_heads={num_heads}", "attention.head_dim=auto"]


def _narrowest(spec: ModelSpec) -> int:
    """Return the least dim that matching may give a model."""
    return max(min(spec.dim, LEAST_WIDTH), math.ceil(spec.dim / NARROWER))


def _table(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the table in a layer's values that holds its hidden width."""
    feedforward: dict[str, Any] = layer.get("feedforward", {})
    inner: dict[str, Any] = feedforward.get("expert", feedforward)
    return inner


def _allowed(spec: ModelSpec) -> bool:
    """Tell whether a model of this width keeps the rules: half of a head may not turn in pairs."""
    try:
        enforce(spec)
    except UserError:
        return False
    return True


def _with_heads(spec: ModelSpec, dim: int, num_heads: int, head_dim: int) -> ModelSpec:
    """Return a spec of another width with as many heads, of a width of their own."""
    return spec.override(
        f"dim={dim}", f"attention.num_heads={num_heads}", f"attention.head_dim={head_dim}"
    )
