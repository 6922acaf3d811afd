"""`python -m docs._make.hf_defaults` writes defaults.json of archwright/hf and archwright/classic/families
from the installed release of `transformers`."""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from archwright.hf import families
from archwright.hf.defaults import files

NOT_ARCHITECTURE = ("bos_token_id", "eos_token_id", "initializer_range", "model_type", "use_cache")
"""Fields of most classes that no family reads."""


def generate(model_types: Iterable[str]) -> dict[str, Any]:
    """Return the table of the file, from the installed release of `transformers`."""
    import transformers

    known = transformers.CONFIG_MAPPING  # without the classes of other libraries
    classes = {name: known[name] for name in model_types if name in known}
    defaults = {name: _declared(config_class) for name, config_class in classes.items()}
    aliases = {
        # Files have the key to which a class maps a key that it declares itself, as Qwen3MoeConfig does.
        name: dict((key, word) if word in defaults[name] else (word, key) for word, key in map_)
        for name, config_class in classes.items()
        if (map_ := config_class.attribute_map.items())
    }
    return {"transformers": transformers.__version__, "defaults": defaults, "key_aliases": aliases}


def _declared(config_class: Any) -> dict[str, Any]:
    """Return the defaults that a class declares, without defaults computed from other values of a config, such
    as the number of key heads."""
    from transformers import PreTrainedConfig

    theta = getattr(config_class, "default_theta", None)
    declared: dict[str, Any] = {"rope_theta": theta} if isinstance(theta, float) else {}
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    for field in dataclasses.fields(config_class):
        if field.name in common or field.name in NOT_ARCHITECTURE:
            continue
        factory = field.default_factory
        value = field.default if factory is dataclasses.MISSING else factory()
        if isinstance(value, str | int | float | list | dict | None):
            declared[field.name] = value
    return declared | {name: _declared(part) for name, part in config_class.sub_configs.items()}


if __name__ == "__main__":
    usual = families.families_in(families)
    for file, names in zip(files(), (usual, families.FAMILIES.keys() - usual.keys()), strict=True):
        text = json.dumps(generate(names), indent=1, sort_keys=True)
        file.write_text(text + "\n", encoding="utf-8")
