"""The tokenizer of a foreign folder."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from archwright.hf.byte_level import MERGES, VOCABULARY, read_byte_level
from archwright.spec.errors import UserError
from archwright.spec.files import read_text
from archwright.text.foreign import LARGEST, parse, read_json
from archwright.text.tokenizer import Tokenizer

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
OTHER_FILES = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "vocab.txt")
"""Files of tokenizers that are not read here."""
ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
"""Tokens that end a text, where no file says which one does."""


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Return the tokenizer of a folder, for a model with so many rows of its embedding; None where there is
    none that can be read, which a warning then says.

    Raises:
        UserError: the file is something else, has tokens that the model does not know, or no token is known
            to end a text.
    """
    told = _table(folder / CONFIG)
    inner = _inner(folder, told)
    if inner is None:
        return None
    inner = _known(inner, vocab_size, folder)
    names = inner.get_vocab(with_added_tokens=True)
    end = _end(folder, told, names) or next((name for name in ENDS if name in names), None)
    if end is None:
        raise UserError(
            f"{folder / CONFIG}: found no eos_token; expected the token that ends a text"
        )
    return Tokenizer(inner, end, _begin(inner, told, names))


def _inner(folder: Path, told: Mapping[str, Any]) -> tokenizers.Tokenizer | None:
    """Return the vocabulary of a folder and how it is used."""
    if (folder / FILE).is_file():
        return read_json(folder / FILE)
    if (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        inner = read_byte_level(folder, told, _table(folder / "added_tokens.json"))
        if inner is not None:
            return inner
    for name in (VOCABULARY, *OTHER_FILES):
        if (folder / name).is_file():
            warnings.warn(
                f"{folder / name}: not a tokenizer that is read here, which are {FILE} and the byte-level "
                f"{VOCABULARY} of GPT-2 with {MERGES}; transformers writes a {FILE}: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                stacklevel=4,
            )
            return None
    return None


def _known(inner: tokenizers.Tokenizer, vocab_size: int, folder: Path) -> tokenizers.Tokenizer:
    """Return a tokenizer without added tokens that the model has no row for, as those of images.

    Raises:
        UserError: other tokens have no row.
    """
    unknown = {i for i in inner.get_vocab(with_added_tokens=True).values() if i >= vocab_size}
    if not unknown:
        return inner
    content = json.loads(inner.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] < vocab_size]
    cut = parse(json.dumps(content), str(folder))
    if (found := max(cut.get_vocab(with_added_tokens=True).values()) + 1) > vocab_size:
        raise UserError(
            f"{folder}: found a tokenizer of {found:,} tokens; expected at most {vocab_size:,}, the model's "
            "vocab_size"
        )
    return cut


def _end(folder: Path, told: Mapping[str, Any], names: Mapping[str, int]) -> str | None:
    """Return the token that ends a text, as one of the configs says it."""
    end = _content(told.get("eos_token"))
    if end in names:
        return end
    config = _table(folder / "config.json")
    text = config.get("text_config")
    tables = (config, text, _table(folder / "generation_config.json"))
    for table in tables:
        ids = table.get("eos_token_id") if isinstance(table, Mapping) else None
        for wanted in ids if isinstance(ids, list) else [ids]:
            if found := next((name for name, i in names.items() if i == wanted), None):
                return found
    return None


def _begin(inner: tokenizers.Tokenizer, told: Mapping[str, Any], names: Mapping[str, int]) -> str:
    """Return the token that is put before a text; none where none is.

    The config may say so. Otherwise it is what the tokenizer itself puts there.
    """
    if (adds := told.get("add_bos_token")) is not None:
        begin = _content(told.get("bos_token"))
        return begin if adds and begin in names else ""
    plain = inner.encode("a", add_special_tokens=False).ids
    whole = inner.encode("a", add_special_tokens=True)
    return whole.tokens[0] if whole.ids[: len(plain)] != plain else ""


def _content(token: Any) -> str:
    """Return the text of a token, which a config has as it is or in a table."""
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else ""


def _table(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path, LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
