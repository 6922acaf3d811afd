"""Defaults and key aliases of `transformers` configs, recorded by docs/_make/hf_defaults.py."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from archwright.spec.installed import classic_folder

FILE = "defaults.json"


@cache
def recorded() -> dict[str, Any]:
    """Return the recorded table: `defaults`, `key_aliases`, and the `transformers` release."""
    tables = [json.loads(file.read_text("utf-8")) for file in files() if file.is_file()]
    return {
        "transformers": tables[0]["transformers"],
        "defaults": {k: v for table in tables for k, v in table["defaults"].items()},
        "key_aliases": {k: v for table in tables for k, v in table["key_aliases"].items()},
    }


def files() -> list[Path]:
    """Return the recorded files: for the families of this room and for those of `archwright.classic`."""
    classic = classic_folder()
    folders = [Path(__file__).parent, *([classic / "families"] if classic else [])]
    return [folder / FILE for folder in folders]


def class_defaults(model_type: str) -> Mapping[str, Any]:
    """Return the defaults of a `model_type`; empty if not recorded."""
    defaults: Mapping[str, Any] = recorded()["defaults"].get(model_type, {})
    return defaults


def class_key_aliases(model_type: str) -> Mapping[str, str]:
    """Return alias -> key of a `model_type`; empty if not recorded."""
    aliases: Mapping[str, str] = recorded()["key_aliases"].get(model_type, {})
    return aliases
