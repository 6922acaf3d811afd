"""Defaults of the configuration classes of `transformers` for keys that a config.json leaves out, as recorded by
`record_defaults.py`."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("defaults.json")


@cache
def recorded() -> dict[str, Any]:
    """Return the file: the release of `transformers` it was made from, and the defaults by `model_type`."""
    table: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return table


def class_defaults(model_type: str) -> Mapping[str, Any]:
    """Return the defaults of the class of a `model_type`; none of a type that was not recorded."""
    found: Mapping[str, Any] = recorded()["defaults"].get(model_type, {})
    return found
