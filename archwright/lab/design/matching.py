"""Matching of sizes by hidden_dim, then dim, then head_dim. Widths set by a variant are not changed."""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.planning.cost import flops_per_token, parameters_by_part
from archwright.planning.memory import cache_bytes
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.rules import enforce
from archwright.spec.study_spec import Match

Flops = Callable[[Decoder], float]
"""Returns the FLOPs of a training token."""

TOLERANCE = 0.005
"""Miss of the baseline's size, as a share, at which the search ends."""

LARGEST_MISS = 0.02
"""Largest miss of the nearest size, as a share: a variant that is farther off is refused."""

RATIOS = (0.5, 16.0)
"""Limits of hidden_dim over dim; beyond them dim changes."""

WIDER, NARROWER = 4, 2.5
"""Largest factors of a wider or narrower dim; models without a branch in each layer need three times the width."""

LEAST_WIDTH = 8
"""Smallest dim and hidden width that matching gives."""

MULTIPLES = (16, 8, 4, 2, 1)
"""Divisors of hidden_dim, the largest first: round widths compute fastest."""

HEADS_APART = 1.25
"""Factor by which a head may be wider or narrower than dim / num_heads."""

TRIES = 24
"""Most widths that are tried."""

HIDDEN_WIDTHS = frozenset(
    f"feedforward.{at}{field}" for at in ("", "expert.") for field in ("hidden_dim", "ratio")
)
"""Dotted paths of the widths of hidden layers."""

OTHER_WIDTHS = ("feedforward.hidden_dim", "recurrence.inner_dim", "recurrence.value_head_dim")
"""Widths of models without such hidden layers; sizes are linear in them."""

HEAD_DIM = "attention.head_dim"

OUTSIDE = ("embedding", "position", "head", "layers.attention.value_embedding")
"""Parts excluded from a model's size: tables with a row for each token or position."""


@dataclass(frozen=True)
class Counts:
    """A model's parameters, FLOPs of a training token, and bytes of a cache."""

    parameters: int
    non_embedding: int
    flops_per_token: float
    cache_bytes: int
    """Size of the decoding cache at full context (16 bits, recurrences 32); 0 without a cache."""

    def of(self, match: Match) -> float:
        """Return the quantity to be matched."""
        sizes = {"parameters": float(self.parameters), "flops": self.flops_per_token}
        return sizes.get(match, float(self.non_embedding))


def count(spec: ModelSpec, vocab_size: int, flops: Flops | None = None) -> Counts:
    """Return the counts of a model; FLOPs at full context by default."""
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
    """Return the spec with the nearest size to `target`, and True within 2 %.

    Args:
        held: Dotted paths of values to keep.
    """
    matching = _Matching(target.of(match), match, vocab_size, frozenset(held), flops)
    nearest, least = spec, 0.0 if match == "none" else matching.miss(spec)
    for candidate in matching.candidates(spec) if least > TOLERANCE else ():
        if (miss := matching.miss(candidate)) < least:
            nearest, least = candidate, miss
        if least <= TOLERANCE:
            break
    return nearest, least <= LARGEST_MISS


def mismatch(counts: Counts, target: Counts, match: Match) -> float:
    """Return the relative excess of a variant's size over the baseline's."""
    return counts.of(match) / target.of(match) - 1


@dataclass(frozen=True)
class _Matching:
    """Search for the widths of a model of the wanted size."""

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
        """Yield the spec with other widths, the least changed first."""
        other = spec.feedforward.hidden_layer is None
        if other or not self.held & HIDDEN_WIDTHS:
            widths = self._other_widths if other else self._hidden_widths
            for dim in [spec.dim] if "dim" in self.held else self._dims(spec):
                yield from widths(self._with_dim(spec, dim))
        if "dim" not in self.held:
            near = self._nearest_dims(spec)
            yield from (self._with_dim(spec, dim) for dim in near)
            has_heads = {"num_heads", "head_dim"} <= type(spec.attention).model_fields.keys()
            if near and has_heads and HEAD_DIM not in self.held:
                for odd in (0, 1):
                    yield from self._head_widths(spec, near[0], odd)

    def _exact(self, build: Callable[[int], ModelSpec], width: int, step: int) -> float | None:
        """Return the width of the wanted size by linear extrapolation; None if it has no effect."""
        first, second = (self.size(build(n)) for n in (width, width + step))
        return None if first == second else width + step * (self.wanted - first) / (second - first)

    def _other_widths(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """Yield the spec with the nearest of each width in `OTHER_WIDTHS`."""
        resolved = spec.resolved(self.vocab_size)
        for path in OTHER_WIDTHS:
            axis, _, name = path.partition(".")
            width = dict(getattr(resolved, axis)).get(name)
            if not isinstance(width, int) or path in self.held:
                continue
            exact = self._exact(lambda n: spec.override(f"{path}={n}"), width, width)  # noqa: B023
            if exact and width / WIDER <= round(exact) <= WIDER * width:
                yield spec.override(f"{path}={round(exact)}")

    def _hidden_widths(self, spec: ModelSpec) -> Iterator[ModelSpec]:
        """Yield the spec with the nearest hidden widths."""
        resolved = spec.resolved(self.vocab_size)
        hidden = _hidden(resolved)
        exact = self._exact(lambda n: self._with_hidden(resolved, spec, n), hidden, hidden)
        if exact is None:  # no layer has the default's feed-forward
            return
        least = RATIOS[0] * spec.dim / getattr(resolved.feedforward, "num_experts", 1)
        allowed = min(max(exact, least, min(hidden, LEAST_WIDTH)), RATIOS[1] * spec.dim)
        for multiple in MULTIPLES if allowed == exact else MULTIPLES[-1:]:
            width = max(multiple, multiple * round(allowed / multiple))
            yield self._with_hidden(resolved, spec, width)

    def _head_widths(self, spec: ModelSpec, near: int, odd: int) -> list[ModelSpec]:
        """Return the spec at widths around `near`, each with the nearest head_dim."""
        num_heads = dict(spec.resolved().attention)["num_heads"]
        far = max(self._step(spec), TRIES // 4)
        around = range(max(near - far, _narrowest(spec)), near + far + 1)
        dims = [dim for dim in around if dim % 2 == odd]
        found = []
        for dim in sorted(dims, key=lambda dim: abs(dim - near))[:TRIES]:
            usual = max(2, 2 * round(dim / num_heads / 2))

            def at(width: int, dim: int = dim) -> ModelSpec:
                heads = (f"attention.num_heads={num_heads}", f"{HEAD_DIM}={width}")
                return spec.override(f"dim={dim}", *heads)

            if not all(_allowed(at(width)) for width in (usual, usual + 2)):
                continue
            exact = self._exact(at, usual, 2)
            if exact is None:  # no layer has the default's attention
                return []
            nearest = min(max(exact, usual / HEADS_APART), HEADS_APART * usual)
            width = max(2, 2 * round(nearest / 2))
            found.append((abs(math.log(width / usual)), dim, at(width)))
        return [spec for *_, spec in sorted(found, key=lambda f: f[:2]) if _allowed(spec)]

    def _with_hidden(self, resolved: ModelSpec, spec: ModelSpec, hidden_dim: int) -> ModelSpec:
        """Return a spec with another hidden width; other layers keep their ratio or held width."""
        factor = hidden_dim / _hidden(resolved)
        values = spec.model_dump()
        _table(values).update(hidden_dim=hidden_dim, ratio="none")
        for name, partial in values["layer_kinds"].items():
            layer, table = resolved.layers_by_kind[name], _table(partial)
            if layer.feedforward.hidden_layer is None or not {"hidden_dim", "ratio"} & table.keys():
                continue
            if not self.held & {f"layer_kinds.{name}.{path}" for path in HIDDEN_WIDTHS}:
                table.update(hidden_dim=max(1, round(_hidden(layer) * factor)), ratio="none")
            elif table.get("ratio", "none") != "none":
                table["hidden_dim"] = "auto"
        return ModelSpec.model_validate(values)

    def _dims(self, spec: ModelSpec) -> list[int]:
        """Return dims to try: the current one, then dims near the right size (~ dim²)."""
        right = spec.dim * (self.size(spec) / self.wanted) ** -0.5
        near = sorted(self._other_dims(spec), key=lambda dim: abs(math.log(dim / right)))
        allowed = (dim for dim in near if _allowed(self._with_dim(spec, dim)))
        return [spec.dim, *islice(allowed, TRIES - 1)]

    def _nearest_dims(self, spec: ModelSpec) -> list[int]:
        """Return the dims with the nearest sizes if no other width changes."""

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
        """Return the step of dim: two dimensions for each head of automatic width."""
        if HEAD_DIM in self.held or "head_dim" not in type(spec.attention).model_fields:
            return 2
        return 2 * max(1, getattr(spec.resolved().attention, "num_heads", 1))

    def _with_dim(self, spec: ModelSpec, dim: int) -> ModelSpec:
        """Return a spec of another dim; heads of width dim / num_heads follow it."""
        if dim == spec.dim:
            return spec
        resolved = spec.resolved().attention
        head_dim, num_heads = (getattr(resolved, name, 0) for name in ("head_dim", "num_heads"))
        words = [f"attention.num_heads={num_heads}"] if num_heads else []
        field = type(spec.attention).model_fields.get("head_dim")
        free = field is not None and field.default == "auto" and HEAD_DIM not in self.held
        if free and head_dim * num_heads == spec.dim:
            words.append(f"{HEAD_DIM}=auto")
        return spec.override(f"dim={dim}", *words)


def _hidden(layer: Any) -> int:
    """Return the resolved hidden width of a layer."""
    return int(layer.feedforward.hidden_layer.hidden_dim)


def _narrowest(spec: ModelSpec) -> int:
    """Return the least dim for matching."""
    return max(min(spec.dim, LEAST_WIDTH), math.ceil(spec.dim / NARROWER))


def _table(layer: dict[str, Any]) -> dict[str, Any]:
    """Return the table of a layer's hidden width."""
    feedforward: dict[str, Any] = layer.get("feedforward", {})
    inner: dict[str, Any] = feedforward.get("expert", feedforward)
    return inner


def _allowed(spec: ModelSpec) -> bool:
    """True if a model follows the rules, such as an even head_dim for RoPE."""
    try:
        enforce(spec)
    except UserError:
        return False
    return True
