"""Stable hashes of specs: adding an option with a default never changes an old one."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from archwright.spec.choice import Choice, Spec

FORMAT = 1
"""Number of the hash's rule. It rises when a default changes its meaning."""


def fingerprint(spec: Spec, leave_out: Iterable[str] = ()) -> str:
    """Return 16 hex digits over the values that differ from the defaults."""
    values = {k: v for k, v in differing(spec).items() if k not in set(leave_out)}
    text = json.dumps({"format": FORMAT, "values": values}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def differing(spec: Spec) -> dict[str, Any]:
    """Return the fields that differ from their defaults, nested; a choice always says its kind."""
    fields = type(spec).model_fields
    found: dict[str, Any] = {"kind": spec.kind} if isinstance(spec, Choice) else {}
    for name, field in fields.items():
        value = getattr(spec, name)
        if value != field.get_default(call_default_factory=True):
            found[name] = differing(value) if isinstance(value, Spec) else value
    return found
