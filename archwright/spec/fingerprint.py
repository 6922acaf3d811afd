"""Stable hashes of specs: adding an option with a default never changes an old one."""

import hashlib
import json
from typing import Any

from archwright.spec.choice import Choice, Spec
from archwright.spec.renamings import format_1

FORMAT = 1
"""Number of the hash's rule, which has the names of format 1. It rises when a default changes its meaning."""


def fingerprint(spec: Spec) -> str:
    """Return 16 hex digits over the values that differ from the defaults."""
    text = json.dumps({"format": FORMAT, "values": differing(spec)}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def differing(spec: Spec) -> dict[str, Any]:
    """Return the fields that differ from their defaults, nested; a choice always says its kind."""
    fields = type(spec).model_fields
    found = dict([format_1(spec, "kind", spec.kind)]) if isinstance(spec, Choice) else {}
    for name, value in spec.identity().items():
        if value != fields[name].get_default(call_default_factory=True):
            old_name, old_value = format_1(spec, name, value)
            found[old_name] = _plain(old_value)
    return found


def _plain(value: object) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, Spec):
        return differing(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
