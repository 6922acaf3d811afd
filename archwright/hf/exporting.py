"""Find the published family in which a model can be exported, or the values that prevent it."""

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
from archwright.spec.read import not_results

NO_MATTER = ("dropout", "init", "name", "source", "sources", "layer_kinds", "layers")
"""Top-level keys that do not affect logits after `as_computed`. Layers are compared one by one."""
ONLY_TRAINING = (
    "balance_loss",
    "balance_over",
    "router_z_loss",
    "selection_bias_update_rate",
    "scale_in",
    *("least_rate", "most_rate", "least_step", "most_step"),
)
"""Options that only affect training or initial values, or only rounding in low precision."""


@dataclass(frozen=True)
class Fit:
    """A family, and the values of a model that the family cannot represent."""

    family: Family
    blocking: tuple[str, ...]
    """A line for each such value: its path, its value in the model, and its value in the family."""


def exportable(spec: ModelSpec, family: str = "") -> Family:
    """Return the family for exporting a model: `family`, by default the first suitable one.

    Raises:
        UserError: The family is unknown, or no family has all of the model's choices.
    """
    if family and family not in FAMILIES:
        raise UserError(
            f"{family}: no such family; see archwright list families.{nearest(family, FAMILIES)}"
        )
    best = fit(spec.resolved(), FAMILIES[family]) if family else nearest_fit(spec)
    if best.blocking:
        rest = f"; and {len(best.blocking) - 4} more" if best.blocking[4:] else ""
        intro = "no published family has these choices together; the nearest is "
        raise UserError(
            f"{'' if family else intro}{best.family.model_type} ({best.family.architecture_of(spec)}), "
            f"which cannot have {'; '.join(best.blocking[:4])}{rest}"
        )
    return best.family


def nearest_fit(spec: ModelSpec) -> Fit:
    """Return the fit of the family that lacks the fewest values of a model."""
    spec, fits = spec.resolved(), []
    for family in FAMILIES.values():
        fits.append(fit(spec, family))
        if not fits[-1].blocking:
            return fits[-1]
    return min(fits, key=lambda candidate: len(candidate.blocking))


def fit(spec: ModelSpec, family: Family) -> Fit:
    """List the values of a resolved spec that a family cannot represent.

    The spec is written as a config of the family, read back and compared. Generators are not compared."""
    spec = as_computed(spec.detector)
    try:
        back = family.with_unsaid(family.spec(family.config(spec)), spec)
    except UserError as error:
        return Fit(family, tuple(error.lines) * 1000)
    except Exception as error:  # of a pattern of layers
        return Fit(family, (f"{type(error).__name__}: {error}",) * 1000)
    return Fit(family, tuple(dict.fromkeys(differences(spec, back))))


def as_computed(spec: ModelSpec) -> ModelSpec:
    """Return a resolved spec with the multipliers of muP as plain numbers.

    Published configs describe the computation, not the initialization. The logit divisor of a muP initialization is
    therefore moved into the head, and attention scales become fixed numbers, as in Granite."""
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
            if first == second:  # otherwise the scale depends on the layer
                table["attention"]["scale"] = {"kind": "fixed", "value": first}
    return validated(ModelSpec, values)


def differences(spec: ModelSpec, back: ModelSpec) -> Iterator[str]:
    """Yield each difference that affects logits: its path and both values."""
    axes = frozenset(LayerSpec.model_fields)
    yield from _lines(_flat(spec, axes), _flat(back, axes), spec)
    if spec.num_layers != back.num_layers:
        return
    if spec.layer_indices != back.layer_indices:
        shared, other = (toml_value(s.layers.shared) for s in (spec, back))
        yield f"layers.shared = {shared} (has {other})"
        return
    kinds = zip(*(s.layers.names(s.num_layers) for s in (spec, back)), strict=True)
    for kind, back_kind in dict.fromkeys(kinds):
        layers = spec.layers_by_kind[kind], back.layers_by_kind[back_kind]
        yield from _lines(_flat(layers[0]), _flat(layers[1]), spec)


def _flat(values: Spec, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    left_out = not_results(values)
    return {
        path: value
        for path, value in flatten(values.model_dump(by_alias=True)).items()
        if path.split(".")[0] not in {*without, *NO_MATTER}
        and path.split(".")[-1] not in (*ONLY_TRAINING, "dropout")
        and path not in left_out
    }


def _lines(values: dict[str, Any], back: dict[str, Any], spec: ModelSpec) -> Iterator[str]:
    """Yield a line per difference. If two kinds differ, their options are omitted."""
    lengths = [] if spec.position.ends else ["context_length", "encoder.context_length"]
    changed = [path for path, value in values.items() if value != back.get(path)]
    kinds = [path.removesuffix("kind") for path in changed if path.endswith("kind")]
    for path, value in values.items():
        other = back.get(path)
        if value == other or path in lengths:
            continue
        if any(path.startswith(kind) and path != f"{kind}kind" for kind in kinds):
            continue
        axis, _, option = path.rpartition(".")
        if option in BELONGS and values.get(f"{axis}.{BELONGS[option]}.kind") == "none":
            continue
        shown = "nothing" if other is None else toml_value(other)
        yield f"{path} = {toml_value(value)} (has {shown})"
