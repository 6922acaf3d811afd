"""Read the tokenizer of a Hugging Face folder."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from archwright.hf.byte_level import MERGES, VOCABULARY, read_byte_level
from archwright.spec.errors import UserError
from archwright.text.companions import (
    CONFIG,
    GENERATION,
    TOKEN_IDS,
    as_text,
    check_ids,
    content,
    ids,
    read_companions,
    table,
)
from archwright.text.foreign import begin_of, parse, read_json
from archwright.text.json_table import read_table
from archwright.text.tokenizer import FILE, Tokenizer

SPECIAL = "special_tokens_map.json"
OTHER_FILES = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "vocab.txt")
"""Files of unsupported tokenizers."""
ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
"""End-of-text tokens to try in order, if no file names one."""


def read_files(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Return the text of each file next to a tokenizer, by name, and add the token ids of a config.

    Raises:
        UserError: A file is damaged, or a token id is invalid.
    """
    files = read_companions(folder)
    text = config.get("text_config")
    token_ids = ids(text if isinstance(text, Mapping) else {}) | ids(config)
    check_ids(token_ids, folder / "config.json")
    check_ids(table(files, GENERATION), folder / GENERATION)
    return files | ({TOKEN_IDS: as_text(token_ids)} if token_ids else {})


def read_tokenizer(
    folder: Path, vocab_size: int, files: Mapping[str, str] | None = None
) -> Tokenizer | None:
    """Return the tokenizer of a folder, or None if there is none.

    An unsupported tokenizer also returns None, with a warning.

    Args:
        vocab_size: Rows of the model's embedding. Added tokens beyond it are removed.
        files: Result of `read_files`; default: read from the folder.

    Raises:
        UserError: The tokenizer is damaged, is too large for the model, or has no end-of-text token.
    """
    if files is None:
        path = folder / "config.json"
        files = read_files(folder, read_table(path) if path.is_file() else {})
    settings = table(files, CONFIG)
    inner = _inner(folder, settings)
    if inner is None:
        return None
    full, inner = inner, _trimmed(inner, vocab_size, folder)
    names = inner.get_vocab(with_added_tokens=True)
    end = _end(settings, files, names) or next((name for name in ENDS if name in names), None)
    if end is None:
        raise UserError(
            f"{folder / CONFIG}: found no eos_token; expected the token that ends a text"
        )
    if inner is not full:
        files = _without(files, set(full.get_vocab(with_added_tokens=True)) - set(names))
    return Tokenizer(inner, end, _begin(inner, settings, names), files)


def _without(files: Mapping[str, str], removed: set[str]) -> dict[str, str]:
    """Delete removed tokens from files; libraries would add them again."""
    result = dict(files)
    for name in (CONFIG, SPECIAL):
        if name in files:
            settings = {k: _without_tokens(v, removed) for k, v in table(files, name).items()}
            result[name] = as_text({k: v for k, v in settings.items() if content(v) not in removed})
    return result


def _without_tokens(value: object, removed: set[str]) -> Any:
    """Delete tokens from a list or a table."""
    if isinstance(value, list):
        return [token for token in value if content(token) not in removed]
    if isinstance(value, Mapping):
        return {key: token for key, token in value.items() if content(token) not in removed}
    return value


def _inner(folder: Path, settings: Mapping[str, object]) -> tokenizers.Tokenizer | None:
    """Return a folder's tokenizer as an object of the tokenizers library; None if missing or unsupported."""
    if (folder / FILE).is_file():
        return read_json(folder / FILE)
    if (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        added = folder / "added_tokens.json"
        inner = read_byte_level(folder, settings, read_table(added) if added.is_file() else {})
        if inner is not None:
            return inner
    for name in (VOCABULARY, *OTHER_FILES):
        if (folder / name).is_file():
            warnings.warn(
                f"{folder / name}: found an unsupported tokenizer; expected {FILE}, or {VOCABULARY} and {MERGES} "
                f"of GPT-2. Write {FILE} with transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                stacklevel=4,
            )
            return None
    return None


def _trimmed(inner: tokenizers.Tokenizer, vocab_size: int, folder: Path) -> tokenizers.Tokenizer:
    """Remove added tokens beyond the model's vocabulary, such as image tokens."""
    if max(inner.get_vocab(with_added_tokens=True).values(), default=-1) < vocab_size:
        return inner
    content = json.loads(inner.to_str())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] < vocab_size]
    cut = parse(json.dumps(content), str(folder))
    if (size := max(cut.get_vocab(with_added_tokens=True).values()) + 1) > vocab_size:
        raise UserError(
            f"{folder}: found a tokenizer of {size:,} tokens; expected at most {vocab_size:,}, the model's "
            "vocab_size"
        )
    return cut


def _end(
    settings: Mapping[str, object], files: Mapping[str, str], names: Mapping[str, int]
) -> str | None:
    """Return the end-of-text token of the config files; None if there is none."""
    end = content(settings.get("eos_token"))
    if end in names:
        return end
    for file in (TOKEN_IDS, GENERATION):
        end_ids = table(files, file).get("eos_token_id")
        for end_id in end_ids if isinstance(end_ids, list) else [end_ids]:
            if token := next((name for name, i in names.items() if i == end_id), None):
                return token
    return None


def _begin(
    inner: tokenizers.Tokenizer, settings: Mapping[str, object], names: Mapping[str, int]
) -> str:
    """Return the token added before a text; empty if there is none.

    The config's key `add_bos_token` has priority over the tokenizer's post-processor.
    """
    if (adds := settings.get("add_bos_token")) is not None:
        begin = content(settings.get("bos_token"))
        return begin if adds and begin in names else ""
    return begin_of(inner)
