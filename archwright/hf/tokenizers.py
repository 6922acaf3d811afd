"""The tokenizer of a foreign folder."""

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
"""Files of tokenizers that are not read here."""
ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
"""Tokens that end a text, where no file says which one does."""


def read_files(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Return what stands beside the tokenizer of a folder with such a config.json, and the ids that this names.

    Raises:
        UserError: a damaged file, or what is no id.
    """
    files = read_companions(folder)
    text = config.get("text_config")
    named = ids(text if isinstance(text, Mapping) else {}) | ids(config)
    check_ids(named, folder / "config.json")
    check_ids(table(files, GENERATION), folder / GENERATION)
    return files | ({TOKEN_IDS: as_text(named)} if named else {})


def read_tokenizer(
    folder: Path, vocab_size: int, files: Mapping[str, str] | None = None
) -> Tokenizer | None:
    """Return the tokenizer of a folder, for a model with so many rows of its embedding; None where there is
    none that can be read, which a warning then says.

    Args:
        files: what `read_files` found in the folder.

    Raises:
        UserError: the file is something else, has tokens that the model does not know, or no token is known
            to end a text.
    """
    if files is None:
        path = folder / "config.json"
        files = read_files(folder, read_table(path) if path.is_file() else {})
    settings = table(files, CONFIG)
    inner = _inner(folder, settings)
    if inner is None:
        return None
    whole, inner = inner, _known(inner, vocab_size, folder)
    names = inner.get_vocab(with_added_tokens=True)
    end = _end(settings, files, names) or next((name for name in ENDS if name in names), None)
    if end is None:
        raise UserError(
            f"{folder / CONFIG}: found no eos_token; expected the token that ends a text"
        )
    if inner is not whole:
        files = _without(files, set(whole.get_vocab(with_added_tokens=True)) - set(names))
    return Tokenizer(inner, end, _begin(inner, settings, names), files)


def _without(files: Mapping[str, str], unknown: set[str]) -> dict[str, str]:
    """Return files that name none of the tokens that the model has no row for, which a library would add again."""
    left = dict(files)
    for name in (CONFIG, SPECIAL):
        if name in files:
            kept = {k: _known_of(v, unknown) for k, v in table(files, name).items()}
            left[name] = as_text({k: v for k, v in kept.items() if content(v) not in unknown})
    return left


def _known_of(value: object, unknown: set[str]) -> Any:
    """Return a list or table of tokens without those."""
    if isinstance(value, list):
        return [token for token in value if content(token) not in unknown]
    if isinstance(value, Mapping):
        return {key: token for key, token in value.items() if content(token) not in unknown}
    return value


def _inner(folder: Path, settings: Mapping[str, object]) -> tokenizers.Tokenizer | None:
    """Return the vocabulary of a folder and how it is used."""
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
                f"{folder / name}: not a tokenizer that is read here, which are {FILE} and the byte-level "
                f"{VOCABULARY} of GPT-2 with {MERGES}; transformers writes a {FILE}: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                stacklevel=4,
            )
            return None
    return None


def _known(inner: tokenizers.Tokenizer, vocab_size: int, folder: Path) -> tokenizers.Tokenizer:
    """Return a tokenizer without added tokens that the model has no row for, as those of images."""
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


def _end(
    settings: Mapping[str, object], files: Mapping[str, str], names: Mapping[str, int]
) -> str | None:
    """Return the token that ends a text, as one of the configs says it."""
    end = content(settings.get("eos_token"))
    if end in names:
        return end
    for file in (TOKEN_IDS, GENERATION):
        given = table(files, file).get("eos_token_id")
        for wanted in given if isinstance(given, list) else [given]:
            if found := next((name for name, i in names.items() if i == wanted), None):
                return found
    return None


def _begin(
    inner: tokenizers.Tokenizer, settings: Mapping[str, object], names: Mapping[str, int]
) -> str:
    """Return the token that is put before a text; none where none is.

    The config may say so. Otherwise it is what the tokenizer itself puts there.
    """
    if (adds := settings.get("add_bos_token")) is not None:
        begin = content(settings.get("bos_token"))
        return begin if adds and begin in names else ""
    return begin_of(inner)
