"""Defaults and key aliases of `transformers` configs, recorded by docs/_make/hf_defaults.py."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("defaults.json")


@cache
def recorded() -> dict[str, Any]:
    """Return the recorded table: `defaults`, `key_aliases`, and the `transformers` release."""
    table: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return table


def class_defaults(model_type: str) -> Mapping[str, Any]:
    """Return the defaults of a `model_type`; empty if not recorded."""
    defaults: Mapping[str, Any] = recorded()["defaults"].get(model_type, {})
    return defaults


def class_key_aliases(model_type: str) -> Mapping[str, str]:
    """Return alias -> key of a `model_type`; empty if not recorded."""
    aliases: Mapping[str, str] = recorded()["key_aliases"].get(model_type, {})
    return aliases
