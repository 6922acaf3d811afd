"""Early ends of runs, before the last planned step."""

from collections.abc import Iterable, Mapping
from typing import Any

EARLY_STOP = "early_stop"
"""Name of an early end's event; its `num_steps` is the number of planned steps."""


def early_end(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the event of a run's early end, None without one."""
    events = [r for r in records if r["kind"] == "event" and r["name"] == EARLY_STOP]
    return events[-1] if events else None


def early_end_text(event: Mapping[str, Any]) -> str:
    """Return the step and reason of an early end: `step 60 of 100: the held-out loss ...`."""
    planned = event.get("num_steps")
    total = f" of {planned:,}" if isinstance(planned, int) else ""
    return f"step {event['step']:,}{total}: {event.get('text', '')}"
