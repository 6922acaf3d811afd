"""The tokenizer of a spec: a BPE that is trained once and cached, raw bytes, or the tokenizer of a file."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import tokenizers

from archwright.files import atomic_write, read_object, remove
from archwright.progress import Progress
from archwright.spec.data import TokenizerSpec
from archwright.spec.errors import UserError, hub_hint, nearest
from archwright.spec.files import expanded, irregular
from archwright.text.bpe import LONGEST, WORDS, has_long_run, raw_bytes
from archwright.text.bpe_training import train_bpe
from archwright.text.cache import SETTING, cache_folder, mark_used, only_one
from archwright.text.corpus import Readable
from archwright.text.foreign import begin_of, parse, read_json
from archwright.text.tokenizer import Tokenizer

SAMPLE = 100_000_000
"""Maximum bytes of text for training a tokenizer."""
FORMAT = 2
"""Version of cached tokenizers."""
CHECKED = 1 << 15
"""Characters of text for comparing the fast and the slow encoder."""


def open_tokenizer(spec: TokenizerSpec, documents: Readable) -> Tokenizer:
    """Return the tokenizer of `spec`. A BPE is trained on `documents` and cached.

    Raises:
        UserError: The file is missing, or the vocabulary is too small or lacks the special tokens.
    """
    special = list(dict.fromkeys((spec.end_of_text, *spec.special_tokens)))
    if "" in special:
        raise UserError("data.tokenizer.special_tokens: a special token cannot be empty.")
    begin = ""
    if spec.kind == "bpe":
        inner = _trained(spec, special, documents)
    elif spec.kind == "bytes":
        inner = raw_bytes(special)
    else:
        inner = read_json(tokenizer_file(spec.path))
        begin = begin_of(inner)
        inner.add_special_tokens(list(spec.special_tokens))
    tokenizer = Tokenizer(inner, spec.end_of_text, begin)
    # Compare the fast encoder with the slow one on the start of the text.
    held: list[str] = []
    for document in documents:
        held += document.pieces
        if sum(map(len, held)) >= CHECKED:
            break
    tokenizer.check("".join(held)[:CHECKED])
    return tokenizer


def sample(documents: Readable, limit: int) -> Iterator[str]:
    """Yield pieces of text, spread evenly over the documents, with at most about `limit` bytes in total."""
    share = min(1.0, limit / max(documents.size, 1))
    seen = taken = 0
    warned = False
    for document in documents:
        for piece in document.pieces:
            seen += len(piece)
            if taken + len(piece) / 2 <= seen * share:
                taken += len(piece)
                if not warned and has_long_run(piece):
                    warnings.warn(
                        f"data.text: {document.name} has more than {LONGEST:,} letters, signs or spaces "
                        "in a row; training splits them into words of that length",
                        stacklevel=2,
                    )
                    warned = True
                yield piece


def tokenizer_file(name: str) -> Path:
    """Return the tokenizer.json of `data.tokenizer.path`, a file or its folder.

    Raises:
        UserError: The file is missing.
    """
    if not name:
        raise UserError('data.tokenizer.path: kind = "file" needs the path of a tokenizer.json.')
    try:
        path = expanded(name)
    except UserError as error:
        raise UserError(f"data.tokenizer.path: {error}") from None
    if path.is_dir():
        path = path / "tokenizer.json"
    if kind := irregular(path):
        raise UserError(f'data.tokenizer.path: "{path}" is {kind}; expected a tokenizer.json.')
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, beside) or hub_hint(name)
        raise UserError(f'data.tokenizer.path: there is no file "{path}".{hint}')
    return path


def _trained(spec: TokenizerSpec, special: list[str], documents: Readable) -> tokenizers.Tokenizer:
    """Return the BPE from the cache, or train and cache it."""
    settings = [documents.fingerprint, spec.vocab_size, special, WORDS, SAMPLE]
    name = _digest(json.dumps([FORMAT, *settings, tokenizers.__version__]))
    path = cache_folder("tokenizers") / f"{name}.json"
    inner = _cached(path)
    if inner is not None:
        return inner
    with only_one(path):
        inner = _cached(path)
        if inner is not None:
            return inner
        if os.path.lexists(path):
            warnings.warn(
                f"the cached tokenizer of data.text was damaged ({path.name}); trained again",
                stacklevel=2,
            )
        with Progress("Training the tokenizer", min(SAMPLE, documents.size)) as progress:
            texts = (progress.counted(text, len) for text in sample(documents, SAMPLE))
            inner = train_bpe(texts, spec.vocab_size, special)
        remove(path)
        text = inner.to_str()
        values = {"digest": _digest(text), "tokenizer": text}
        atomic_write(path, json.dumps(values), setting=SETTING)
    return inner


def _cached(path: Path) -> tokenizers.Tokenizer | None:
    """Return a cached tokenizer, or None if it is missing or damaged."""
    entry = read_object(path)
    text = str(entry.get("tokenizer"))
    if entry.get("digest") != _digest(text):
        return None
    mark_used(path)
    return parse(text, str(path))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
