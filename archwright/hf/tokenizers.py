"""The tokenizer of a foreign folder."""

import json
from pathlib import Path
from typing import Any

from archwright.spec.errors import UserError
from archwright.text.tokenizer import Tokenizer, read_json

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
"""Tokens that end a text, where no file says which one does."""


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """Return the tokenizer of a folder; None where it has no tokenizer.json.

    Raises:
        UserError: the file is something else, or no token is known to end a text.
    """
    if not (folder / FILE).is_file():
        return None
    inner = read_json(folder / FILE)
    names = inner.get_vocab(with_added_tokens=True)
    end = _told(folder, names) or next((name for name in ENDS if name in names), None)
    if end is None:
        raise UserError(
            f"{folder / CONFIG}: found no eos_token; expected the token that ends a text"
        )
    return Tokenizer(inner, end)


def _told(folder: Path, names: dict[str, int]) -> str | None:
    """Return the token that ends a text, as one of the configs says it."""
    tokenizer, config, generation = (
        _table(folder / name) for name in (CONFIG, "config.json", "generation_config.json")
    )
    end = tokenizer.get("eos_token")
    if isinstance(end, dict):
        end = end.get("content")
    if isinstance(end, str) and end in names:
        return end
    ids = config.get("eos_token_id", generation.get("eos_token_id"))
    wanted = ids[0] if isinstance(ids, list) and ids else ids
    return next((name for name, i in names.items() if i == wanted), None)


def _table(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
