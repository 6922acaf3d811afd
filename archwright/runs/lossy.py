"""Lossy tokenizers: they change the held-out text, so bits per byte are undefined."""

from archwright.runs.folder import RunFolder


def text_change_of(folder: RunFolder) -> str | None:
    """Return the recorded place where a run's tokenizer does not reproduce its held-out text.

    Empty if it reproduces all, None if unknown.
    """
    spec, data = folder.spec, folder.environment().get("data", {})
    is_lossless = spec.data.tokenizer.kind != "file" and not spec.init.from_
    if is_lossless or not spec.data.task.is_none or not spec.objective.defines_bits_per_byte:
        return ""
    change = data.get("text_change")
    return None if change is None else str(change)
