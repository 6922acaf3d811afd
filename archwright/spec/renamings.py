"""Keys that had other names in files of format 1: they are still read, and hashes are still made of them."""

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from archwright.spec.choice import Choice, Spec

FORMAT = 2
"""Of the files that are written; files without a number have format 1."""


class Renaming(NamedTuple):
    """A key that had another name, and its values, where these had others, too."""

    old: str
    new: str
    values: Mapping[str | bool, Any] = {}
    """Old value -> new value."""


ROUTINGS = ("softmax", "softmax_of_chosen", "sigmoid", "sparsemixer")

RENAMINGS: dict[str, tuple[Renaming, ...]] = {
    # spec/model_spec.py's axes
    "RMSNorm": (Renaming("multiply", "scale_in", {"wide": "float32", "narrow": "input_dtype"}),),
    "PreNorm": (Renaming("unnormed", "skip_norm"),),
    "Residual": (Renaming("kind", "kind", {"normed": "norm_residual"}),),
    "SoftmaxAttention": (
        Renaming("length_scale", "query_temperature"),
        Renaming("qk_norm_over", "qk_norm_over", {"each_head": "per_head"}),
        Renaming("qk_norm_place", "qk_norm_position"),
        Renaming("clip", "qkv_clip"),
    ),
    "Experts": (
        Renaming("weigh", "router_weight_on"),
        Renaming("routed_scale", "routed_scaling_factor"),
        Renaming("bias_rate", "selection_bias_update_rate"),
        Renaming("renormalise", "normalize_weights"),
        Renaming("renormalise_power", "normalize_power"),
        Renaming("scores", "routing", {kind: {"kind": kind} for kind in ROUTINGS}),
        Renaming("renormalise_min", "normalize_min"),
    ),
    "Head": (Renaming("multiplier", "logit_scale"), Renaming("divisor", "logit_divisor")),
    **{
        init: (Renaming("branch_ends", "residual_output_init"),)
        for init in ("Glorot", "GPT2", "MuP")
    },
    # spec/run_spec.py
    "RunSpec": (
        Renaming("clip", "max_grad_norm"),
        Renaming("accumulate", "grad_accum_steps"),
        Renaming("tensorboard", "loggers", {True: "tensorboard", False: ()}),
    ),
    "DataSpec": (
        Renaming("documents", "packing", {"concatenate": "concat", "mask": "document_mask"}),
    ),
    **{schedule: (Renaming("final", "final_lr_fraction"),) for schedule in ("Cosine", "Linear")},
    "WSD": (Renaming("final", "final_lr_fraction"), Renaming("decay", "decay_fraction")),
    "MachineSpec": (Renaming("float32_products", "float32_matmul_precision"),),
    # spec/study_spec.py
    "StudySpec": (
        Renaming("rates", "tune_lr", {"tuned": True, "fixed": False}),
        Renaming("grid", "lr_grid_size"),
        Renaming("ratio", "lr_ratio"),
        Renaming("margin", "equivalence_margin"),
        Renaming("together", "parallelism", {"threads": "processes", "stacked": "ensemble"}),
    ),
}
"""By the class that has the key."""


class RenamedWarning(UserWarning):
    """A key or value that a user gave by its old name."""


def renamed(cls: type[Spec], values: Mapping[str, object], *, warn: bool = False) -> dict[str, Any]:
    """Return a table of `cls`, whole or in part, with today's keys and values.

    A key that a choice has today is never taken for an old one. Where both names are given, the old one
    is left as it is, to be refused as unknown.

    Args:
        warn: give one line for each old name, as it was typed.
    """
    notes: dict[str, str] = {}
    found = _renamed([cls], values, "", notes)
    for old, new in notes.items() if warn else ():
        warnings.warn(f"{old} is now {new}", RenamedWarning, stacklevel=3)
    return found


def format_1(spec: Spec, name: str, value: object) -> tuple[str, Any]:
    """Return a field of a spec, and its value, as format 1 named them: what hashes are made of."""
    for renaming in _renamings(type(spec)):
        if renaming.new == name:
            table = value.model_dump() if isinstance(value, Spec) else value
            olds = [old for old, new in renaming.values.items() if new == table]
            return renaming.old, olds[0] if olds else value
    return name, value


def _renamings(cls: type) -> Iterator[Renaming]:
    for base in cls.__mro__:
        yield from RENAMINGS.get(base.__name__, ())


def _renamed(
    classes: list[type[Spec]], values: Mapping[str, Any], at: str, notes: dict[str, str]
) -> dict[str, Any]:
    """Rename what stands in a table that is one of `classes`, and in the tables inside of it."""
    classes = _candidates(classes, values)
    today = {field.alias or name for cls in classes for name, field in cls.model_fields.items()}
    found: dict[str, Any] = {}
    for key, value in values.items():
        new_key, new_value = key, value
        for renaming in (r for cls in classes for r in _renamings(cls)):
            is_key = key == renaming.old and (key not in today or renaming.old == renaming.new)
            if is_key and renaming.new not in values.keys() - {key}:
                known = isinstance(value, (str, bool)) and value in renaming.values
                new_key, new_value = renaming.new, renaming.values[value] if known else value
                if new_key != key or known:
                    old_text, new_text = map(_shown, (value, new_value)) if known else ("", "")
                    notes[f"{at}{key}{old_text}"] = f"{at}{new_key}{new_text}"
                break
        found[new_key] = _inner(classes, new_key, new_value, at, notes)
    return found


def _shown(value: object) -> str:
    """Return what stands behind a key for a value, or for a table with nothing but its kind."""
    if isinstance(value, dict):
        return f".kind={value['kind']}"
    return f"={json.dumps(value)}".replace('"', "")


def _candidates(classes: list[type[Spec]], values: Mapping[str, object]) -> list[type[Spec]]:
    """Return the classes that a table may be of: that of its kind, or all choices where it states none."""
    members: list[type[Spec]] = []
    for cls in classes:
        if issubclass(cls, Choice) and cls.is_axis():
            members += cls.choices().values()
        else:
            members.append(cls)
    kind = str(values.get("kind", ""))
    names = {kind, *(r.values.get(kind) for m in members for r in _renamings(m) if r.old == "kind")}
    same_kind = [
        m for m in members if "kind" in m.model_fields and m.model_fields["kind"].default in names
    ]
    return same_kind or members


def _inner(
    classes: list[type[Spec]], key: str, value: object, at: str, notes: dict[str, str]
) -> Any:
    """Rename what stands inside a value that is a table."""
    if not isinstance(value, Mapping):
        return value
    if key == "layer_kinds":  # name -> a partial table with the axes that the stack itself has
        return {
            name: _renamed(classes, t, f"{at}{key}.{name}.", notes) if isinstance(t, Mapping) else t
            for name, t in value.items()
        }
    if key == "sources":
        return {_path(classes, path): source for path, source in value.items()}
    fields = [
        f for cls in classes for name, f in cls.model_fields.items() if key == (f.alias or name)
    ]
    inner = [f.annotation for f in fields if isinstance(f.annotation, type)]
    specs = [cls for cls in dict.fromkeys(inner) if issubclass(cls, Spec)]
    return _renamed(specs, value, f"{at}{key}.", notes) if specs else dict(value)


def _path(classes: list[type[Spec]], path: str) -> str:
    """Return a dotted path with today's keys."""
    table: Any = None
    for key in reversed(path.split(".")):
        table = {key: table}
    table, keys = _renamed(classes, table, "", {}), []
    while isinstance(table, dict):
        ((key, table),) = table.items()
        keys.append(key)
    return ".".join(keys)
