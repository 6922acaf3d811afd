"""Rotary positions in configs: `rope_parameters`, or separate keys in older files."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from archwright.hf.lenses import MISSING, Config, Get, Table, refused
from archwright.spec.errors import UserError

PATH = "position"


@dataclass(frozen=True)
class Rope:
    """Lens of `position`, from `rope_parameters` or from separate keys.

    Args:
        pairing: Pairing of coordinates, as in the spec.
        fraction: Separate key for the rotated fraction of a head; empty: the family always rotates whole heads.
        theta: Separate key for the base of the frequencies.
        layer_type: Entry of `rope_parameters`, in configs with an entry per layer type.
        scaled: True if the model's `rope_scaling` applies here.
        kinds: Supported kinds of scaling; empty: all.
        renamed: Names of scaling kinds in this family -> usual names.
    """

    pairing: str = "half"
    fraction: str = "partial_rotary_factor"
    theta: str = "rope_theta"
    layer_type: str = ""
    scaled: bool = True
    kinds: tuple[str, ...] = ()
    renamed: Mapping[str, str] | None = None
    key: ClassVar[str] = "rope_parameters"

    def read(self, config: Config) -> Table:
        # As in `transformers`, the older key overrides the newer one.
        parameters = config.get("rope_parameters") or {}
        older = (config.get("rope_scaling") or {}) if self.scaled else {}
        if self.layer_type and isinstance(parameters.get(self.layer_type), Mapping):
            parameters = {**parameters[self.layer_type], **older}
        else:
            parameters = dict(older or parameters) if self.scaled else {}
        if nested := [key for key, value in parameters.items() if isinstance(value, Mapping)]:
            raise UserError(
                f"config.json: rope_parameters: found tables {', '.join(nested)}; expected the same for all layers"
            )
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        kind = (self.renamed or {}).get(kind, kind)
        if self.kinds and kind not in self.kinds:
            raise UserError(refused("rope_parameters.rope_type", kind, self.kinds))
        parameters = parameters | {"rope_type": kind}
        theta = parameters.get("rope_theta") or config.get(self.theta) or config["rope_theta"]
        outside = config.get(self.fraction or "partial_rotary_factor")
        fraction = parameters.get("partial_rotary_factor") or outside or 1.0
        if not self.fraction and fraction != 1:
            raise UserError(refused("partial_rotary_factor", fraction, (1.0,)))
        rope = {"kind": "rope", "pairing": self.pairing, "theta": float(theta)}
        scaling = _read_scaling(parameters, config)
        return {PATH: rope | {"fraction": float(fraction), "scaling": scaling}}

    def write(self, get: Get) -> dict[str, Any]:
        if get("position.kind") != "rope":
            return {}
        theta, fraction = get("position.theta"), get("position.fraction")
        parameters = {"rope_theta": theta} | _write_scaling(get)
        if self.fraction:
            parameters["partial_rotary_factor"] = fraction
        if self.layer_type:
            of_type = {"rope_parameters": {self.layer_type: parameters}, self.theta: theta}
            return of_type | (
                _older(parameters) if self.scaled and self.theta == "rope_theta" else {}
            )
        keys: dict[str, Any] = {"rope_parameters": parameters, "rope_theta": theta}
        if self.fraction:
            keys[self.fraction] = fraction
        return keys


def with_older_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Add the keys of scaled RoPE for `transformers` before version 5."""
    parameters = config.get("rope_parameters") or {}
    if "rope_type" not in parameters:  # absent, or one table per layer type
        return config
    return config | _older(parameters, config["model_type"])


def _older(parameters: Mapping[str, Any], model_type: str = "") -> dict[str, Any]:
    kind, original = parameters["rope_type"], "original_max_position_embeddings"
    excluded = {"rope_theta", "partial_rotary_factor"}
    scaling = {key: value for key, value in parameters.items() if key not in excluded}
    if kind != "longrope":
        return {"rope_scaling": None if kind == "default" else scaling}
    if model_type == "phi3":  # its class accepts no other keys
        scaling = {key: scaling[key] for key in ("short_factor", "long_factor")}
    return {"rope_scaling": {"type": kind, **scaling}, original: parameters[original]}


def _read_scaling(parameters: Mapping[str, Any], config: Config) -> Table:
    kind = parameters["rope_type"]
    if kind not in SCALINGS:
        raise UserError(refused("rope_parameters.rope_type", kind, SCALINGS))
    try:
        return SCALINGS[kind](parameters, config)
    except KeyError as error:
        raise UserError(f"config.json: rope_parameters.{error.args[0]}: missing") from None


def _yarn(parameters: Mapping[str, Any], config: Config) -> Table:
    original, factor = _original(parameters, config), _factor(parameters, config)
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        both = parameters.get("mscale") and parameters.get("mscale_all_dim")
        attention_factor = mscale(factor, parameters["mscale"] if both else 1.0)
        attention_factor /= mscale(factor, parameters["mscale_all_dim"]) if both else 1.0
    return {
        "kind": "yarn",
        "factor": factor,
        "original_length": original,
        "beta_fast": float(parameters.get("beta_fast") or 32),
        "beta_slow": float(parameters.get("beta_slow") or 1),
        "attention_factor": float(attention_factor),
        "truncate": bool(parameters.get("truncate", True)),
    }


def _longrope(parameters: Mapping[str, Any], config: Config) -> Table:
    original, factor = _original(parameters, config), _factor(parameters, config)
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        grown = 1 + math.log(factor) / math.log(original) if factor > 1 else 1.0
        attention_factor = math.sqrt(grown)
    return {
        "kind": "longrope",
        "short": _divisors(parameters["short_factor"]),
        "long": _divisors(parameters["long_factor"]),
        "factor": max(factor, 1.0),
        "original_length": original,
        "attention_factor": float(attention_factor),
    }


SCALINGS: Mapping[str, Callable[[Mapping[str, Any], Config], Table]] = {
    "default": lambda parameters, config: {"kind": "none"},
    # Sections differ for images only; text has one position.
    "mrope": lambda parameters, config: {"kind": "none"},
    "linear": lambda parameters, config: {"kind": "linear", "factor": float(parameters["factor"])},
    "dynamic": lambda parameters, config: {
        "kind": "dynamic",
        "factor": float(parameters["factor"]),
        "original_length": int(config["max_position_embeddings"]),
    },
    "yarn": _yarn,
    "llama3": lambda parameters, config: {
        "kind": "llama3",
        "factor": float(parameters["factor"]),
        "original_length": _original(parameters, config),
        "low_freq_factor": float(parameters["low_freq_factor"]),
        "high_freq_factor": float(parameters["high_freq_factor"]),
    },
    "longrope": _longrope,
    "su": _longrope,
    "proportional": lambda parameters, config: {"kind": "proportional"},
}
"""Readers of scaling parameters, by the name of the kind in a config."""


def _divisors(parameters: Sequence[float]) -> list[float]:
    """Return the divisor of each coordinate pair; empty if all are 1."""
    return [] if all(x == 1 for x in parameters) else [float(x) for x in parameters]


def _original(parameters: Mapping[str, Any], config: Config) -> int:
    """Return the original context length; a top-level key takes precedence."""
    outside = config.get("original_max_position_embeddings")
    inside = parameters.get("original_max_position_embeddings")
    return int(outside or inside or config["max_position_embeddings"])


def _factor(parameters: Mapping[str, Any], config: Config) -> float:
    factor = parameters.get("factor")
    return float(factor or config["max_position_embeddings"] / _original(parameters, config))


def mscale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's multiplier of cosines and sines, 0.1 weight ln(max(factor, 1)) + 1."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _ones(get: Get) -> list[float]:
    """Return a divisor of 1 for each rotated pair."""
    width = get("attention.head_dim")
    width = get("attention.rope_head_dim") if width is MISSING else width
    return [1.0] * (int(width * get("position.fraction")) // 2)


def _write_scaling(get: Get) -> dict[str, Any]:
    options = (
        *("factor", "original_length", "low_freq_factor", "high_freq_factor", "beta_fast"),
        *("beta_slow", "attention_factor", "truncate", "short", "long"),
    )
    renamed = {"original_length": "original_max_position_embeddings"}
    renamed |= {"short": "short_factor", "long": "long_factor"}
    kind = get("position.scaling.kind")
    values = {renamed.get(name, name): get(f"position.scaling.{name}") for name in options}
    keys = {key: value for key, value in values.items() if value is not MISSING}
    if kind == "dynamic":  # relative to max_position_embeddings
        del keys["original_max_position_embeddings"]
    keys = {k: list(v or _ones(get)) if isinstance(v, tuple) else v for k, v in keys.items()}
    return {"rope_type": "default" if kind == "none" else kind} | keys
