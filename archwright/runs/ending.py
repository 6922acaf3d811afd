"""The end of a run before its last planned step."""

from collections.abc import Iterable, Mapping
from typing import Any

EARLY_STOP = "early_stop"
"""The name of the event that says why; its `num_steps` is how many were planned."""


def early_end(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the event that ended a run early; None where its last step was the planned one."""
    found = [r for r in records if r["kind"] == "event" and r["name"] == EARLY_STOP]
    return found[-1] if found else None


def early_end_text(event: Mapping[str, Any]) -> str:
    """Return where and why a run ended early: `step 60 of 100, as the held-out loss ...`."""
    planned = event.get("num_steps")
    whole = f" of {planned:,}" if isinstance(planned, int) else ""
    return f"step {event['step']:,}{whole}: {event.get('text', '')}"
