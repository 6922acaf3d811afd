"""Lossy tokenizers: they change the held-out text, so bits per byte are undefined."""

from contextlib import suppress

from archwright.data.prepare import prepare_documents
from archwright.runs.folder import RunFolder
from archwright.spec.errors import UserError
from archwright.text.corpus import open_corpus
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer


def text_change_of(folder: RunFolder) -> str | None:
    """Return the first place where a run's tokenizer does not reproduce its held-out text.

    Empty if it reproduces all, None if unknown. Newer runs record this; for older runs, the tokenizer is tested on the
    text or, if the text is unavailable, on `PROBE`.
    """
    spec, data = folder.spec, folder.environment().get("data", {})
    is_lossless = spec.data.tokenizer.kind != "file" and not spec.init.from_
    if is_lossless or not spec.data.task.is_none or not spec.objective.defines_bits_per_byte:
        return ""
    if (change := data.get("text_change")) is not None:
        return str(change)
    try:
        tokenizer = Tokenizer.load(folder.tokenizer_folder)
    except UserError:
        return None
    with suppress(UserError):
        text = open_corpus(spec.data).held_out
        if text.fingerprint == data.get("held_out", {}).get("text"):
            return prepare_documents(text, tokenizer).text_change(tokenizer)
    return tokenizer.text_change(PROBE, tokenizer.encode(PROBE))
