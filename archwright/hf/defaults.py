"""Defaults of the configuration classes of `transformers` for keys that a config.json leaves out, and their other words
for keys, as recorded by docs/_make/hf_defaults.py."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("defaults.json")


@cache
def recorded() -> dict[str, Any]:
    """Return the recorded defaults and key aliases by `model_type`, and the release of `transformers`."""
    table: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return table


def class_defaults(model_type: str) -> Mapping[str, Any]:
    """Return the defaults of the class of a `model_type`; none of a type that was not recorded."""
    found: Mapping[str, Any] = recorded()["defaults"].get(model_type, {})
    return found


def class_key_aliases(model_type: str) -> Mapping[str, str]:
    """Return the other words that the class of a `model_type` has for keys, with the keys."""
    found: Mapping[str, str] = recorded()["key_aliases"].get(model_type, {})
    return found
