"""Which published family can hold a composition, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from archwright.catalogue.summaries import BELONGS
from archwright.hf.families import FAMILIES
from archwright.hf.family import Family
from archwright.spec.attention import MaskedAttention
from archwright.spec.choice import Spec
from archwright.spec.errors import UserError, nearest
from archwright.spec.merge import validated
from archwright.spec.model_spec import LayerSpec, ModelSpec
from archwright.spec.overrides import flatten, toml_value

NO_MATTER = ("dropout", "init", "name", "source", "sources", "layer_kinds", "layers")
"""Keys that no logit depends on, of a spec `as_computed`; layers are compared one by one."""
ONLY_TRAINING = (
    "balance_loss",
    "balance_over",
    "router_z_loss",
    "selection_bias_update_rate",
    "scale_in",
)
"""Keys that matter in training alone, or round differently in low precision alone."""


@dataclass(frozen=True)
class Fit:
    """A family, and the values of a model that it cannot say."""

    family: Family
    blocking: tuple[str, ...]
    """A line for each value: path, the model's, and the family's."""


def exportable(spec: ModelSpec, family: str = "") -> Family:
    """Return the family that a model can be written as: the given one, or the first that there is.

    Raises:
        UserError: none; the line names the nearest one, and what blocks it.
    """
    if family and family not in FAMILIES:
        raise UserError(
            f"{family}: no such family; see archwright list families.{nearest(family, FAMILIES)}"
        )
    found = fit(spec.resolved(), FAMILIES[family]) if family else nearest_fit(spec)
    if found.blocking:
        others = f"; and {len(found.blocking) - 4} more" if found.blocking[4:] else ""
        whole = "no published family has these choices together; the nearest is "
        raise UserError(
            f"{'' if family else whole}{found.family.model_type} ({found.family.architecture_of(spec)}), "
            f"which cannot have {'; '.join(found.blocking[:4])}{others}"
        )
    return found.family


def nearest_fit(spec: ModelSpec) -> Fit:
    """Return the family that says most of a model: all of it, or all but the fewest values."""
    spec, fits = spec.resolved(), []
    for family in FAMILIES.values():
        fits.append(fit(spec, family))
        if not fits[-1].blocking:
            return fits[-1]
    return min(fits, key=lambda found: len(found.blocking))


def fit(spec: ModelSpec, family: Family) -> Fit:
    """Write a resolved spec as a family's config, read it back, and return what is not the same. Of a model beside a
    generator, that is the model alone."""
    spec = as_computed(spec.detector)
    try:
        back = family.with_unsaid(family.spec(family.config(spec)), spec)
    except UserError as error:
        return Fit(family, tuple(error.lines) * 1000)
    return Fit(family, tuple(dict.fromkeys(differences(spec, back))))


def as_computed(spec: ModelSpec) -> ModelSpec:
    """Return a resolved spec whose head has the divisor of logits that came with initial values (muP), as configs of
    published models say how a model computes and not how it began. Scales of scores are then numbers, as in the
    families that know such a divisor (Granite)."""
    divisor = spec.init.logit_divisor(spec.dim)
    if divisor == 1:
        return spec
    from archwright.parts.mixers.scales import SCORE_SCALES  # torch, which few specs need here

    values = spec.model_dump()
    values["head"]["logit_divisor"] *= divisor
    values["init"] = {"kind": "glorot", "embedding_std": 1.0}
    for name, layer in spec.layers_by_kind.items():
        table = values if name == "default" else values["layer_kinds"][name]
        if isinstance(layer.attention, MaskedAttention):
            scale, width = layer.attention.scale, layer.attention.key_dim(spec.dim)
            first, second = (float(SCORE_SCALES.make(scale, width, n)) for n in (1, 2))
            if first == second:  # else it is no number, but one for each layer
                table["attention"]["scale"] = {"kind": "fixed", "value": first}
    return validated(ModelSpec, values)


def differences(spec: ModelSpec, back: ModelSpec) -> Iterator[str]:
    """Yield a line for each value that changes logits and differs: path, own value, other value."""
    axes = frozenset(LayerSpec.model_fields)
    yield from _lines(_flat(spec, axes), _flat(back, axes), spec)
    if spec.num_layers != back.num_layers:
        return
    if spec.layer_indices != back.layer_indices:
        shared, other = (toml_value(s.layers.shared) for s in (spec, back))
        yield f"layers.shared = {shared} (has {other})"
        return
    kinds = zip(*(s.layers.names(s.num_layers) for s in (spec, back)), strict=True)
    for own, theirs in dict.fromkeys(kinds):
        layers = spec.layers_by_kind[own], back.layers_by_kind[theirs]
        yield from _lines(_flat(layers[0]), _flat(layers[1]), spec)


def _flat(values: Spec, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    return {
        path: value
        for path, value in flatten(values.model_dump(by_alias=True)).items()
        if path.split(".")[0] not in {*without, *NO_MATTER}
        and path.split(".")[-1] not in (*ONLY_TRAINING, "dropout")
    }


def _lines(own: dict[str, Any], theirs: dict[str, Any], spec: ModelSpec) -> Iterator[str]:
    """Yield what differs; options of another kind are named by the kind alone."""
    lengths = [] if spec.position.ends else ["context_length", "encoder.context_length"]
    kinds = [p.removesuffix("kind") for p in own if p.endswith("kind") and own[p] != theirs.get(p)]
    for path, value in own.items():
        other = theirs.get(path)
        if value == other or path in lengths:
            continue
        if any(path.startswith(kind) and path != f"{kind}kind" for kind in kinds):
            continue
        axis, _, option = path.rpartition(".")
        if option in BELONGS and own.get(f"{axis}.{BELONGS[option]}.kind") == "none":
            continue
        shown = "nothing" if other is None else toml_value(other)
        yield f"{path} = {toml_value(value)} (has {shown})"
