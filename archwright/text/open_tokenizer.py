"""The tokenizer that a spec asks for: trained on the text (once), raw bytes, or a file's."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import tokenizers

from archwright.spec.errors import UserError, nearest
from archwright.spec.run_spec import TokenizerSpec
from archwright.text.bpe import WORDS, raw_bytes, train_bpe
from archwright.text.cache import cache_folder, only_one, writing
from archwright.text.corpus import Documents
from archwright.text.progress import Progress
from archwright.text.tokenizer import Tokenizer, read_json

SAMPLE = 100_000_000
"""Bytes of text that a tokenizer is trained on at most."""


CHECKED = 1 << 15
"""Characters of the text on which the fast path is compared with the slow one."""


def open_tokenizer(spec: TokenizerSpec, documents: Documents) -> Tokenizer:
    """Return the tokenizer of `spec`; a BPE is trained on `documents` and kept in the cache.

    Raises:
        UserError: no such file, a vocabulary too small or without the special tokens.
    """
    special = list(dict.fromkeys((spec.end_of_text, *spec.special_tokens)))
    if "" in special:
        raise UserError("data.tokenizer.special_tokens: a special token cannot be empty.")
    if spec.kind == "bpe":
        inner = _trained(spec, special, documents)
    elif spec.kind == "bytes":
        inner = raw_bytes(special)
    else:
        inner = read_json(_file(spec.path))
        inner.add_special_tokens(list(spec.special_tokens))
    tokenizer = Tokenizer(inner, spec.end_of_text)
    tokenizer.check(_beginning(documents))
    return tokenizer


def sample(documents: Documents, limit: int) -> Iterator[str]:
    """Yield pieces of at most about `limit` bytes in all, taken evenly over the text."""
    share = min(1.0, limit / max(documents.size, 1))
    seen = taken = 0
    for document in documents:
        for piece in document.pieces:
            seen += len(piece)
            if taken + len(piece) / 2 <= seen * share:
                taken += len(piece)
                yield piece


def _beginning(documents: Documents) -> str:
    """Return the first text of a corpus, enough to see whether the fast path agrees on it."""
    held: list[str] = []
    for document in documents:
        held += document.pieces
        if sum(map(len, held)) >= CHECKED:
            break
    return "".join(held)[:CHECKED]


def _trained(spec: TokenizerSpec, special: list[str], documents: Documents) -> tokenizers.Tokenizer:
    """Return the BPE from the cache, or train it and put it there."""
    settings = [documents.fingerprint, spec.vocab_size, special, WORDS, SAMPLE]
    content = json.dumps([*settings, tokenizers.__version__]).encode()
    folder = cache_folder("tokenizers")
    path = folder / f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.json"
    if path.exists():
        return read_json(path)
    with only_one(path):
        if path.exists():
            return read_json(path)
        with Progress("Training the tokenizer", min(SAMPLE, documents.size)) as progress:
            texts = (progress.counted(text, len) for text in sample(documents, SAMPLE))
            inner = train_bpe(texts, spec.vocab_size, special)
        with writing(folder):
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                unfinished.write_text(inner.to_str(), "utf-8")
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
    return inner


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not name:
        raise UserError('data.tokenizer.path: kind = "file" needs the path of a tokenizer.json.')
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, beside)
        raise UserError(f'data.tokenizer.path: there is no file "{path}".{hint}')
    return path
