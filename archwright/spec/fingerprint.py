"""Stable hashes of specs: an option added with a default changes no existing hash."""

import hashlib
import json
from typing import Any

from archwright.spec.choice import Choice, Spec


def fingerprint(spec: Spec) -> str:
    """Return 16 hex digits over the values that differ from the defaults."""
    text = json.dumps(differing(spec), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def differing(spec: Spec) -> dict[str, Any]:
    """Return the fields that differ from their defaults, nested; a choice always has its kind."""
    fields = type(spec).model_fields
    values: dict[str, Any] = {"kind": spec.kind} if isinstance(spec, Choice) else {}
    for name, value in spec.identity().items():
        if value != fields[name].get_default(call_default_factory=True):
            values[name] = _plain(value)
    return values


def _plain(value: object) -> Any:
    """Return a value in JSON types."""
    if isinstance(value, Spec):
        return differing(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
