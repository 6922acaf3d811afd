"""From documents to a token store: encoded in parallel, written at one go, made only once."""

import hashlib
import json
import os
import warnings
from array import array
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from archwright.data.store import FORMAT, Index, Shard, StoreError, TokenStore, write_index
from archwright.files import clear_errors, publishing, remove
from archwright.progress import Progress
from archwright.text.cache import SETTING, cache_folder, mark_used, only_one
from archwright.text.corpus import Corpus, Documents
from archwright.text.tokenizer import Tokenizer

SHARD = 1 << 27
"""Tokens of a shard."""
BATCH = 1 << 20
"""Characters that a thread encodes at a time, about."""


class Prepared(NamedTuple):
    """The token stores of both parts of a corpus."""

    train: TokenStore
    held_out: TokenStore


def prepare(corpus: Corpus, tokenizer: Tokenizer, folder: Path | None = None) -> Prepared:
    """Return both parts of a corpus as token stores; see `prepare_documents`."""
    return Prepared(
        prepare_documents(corpus.train, tokenizer, folder),
        prepare_documents(corpus.held_out, tokenizer, folder),
    )


def prepare_documents(
    documents: Documents, tokenizer: Tokenizer, folder: Path | None = None, shard: int = SHARD
) -> TokenStore:
    """Return the token store of documents, made below `folder` (by default the cache) if need be.

    Its name is a hash of content and tokenizer, so it is used again as long as neither changes. It
    appears complete or not at all; two processes that want the same store make it once.

    Raises:
        UserError: full disk, read-only folder, or text that changed meanwhile; nothing is left.
    """
    content = json.dumps([FORMAT, documents.fingerprint, tokenizer.fingerprint, shard])
    name = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    place = (folder or cache_folder("tokens")) / name
    try:
        return _opened(place, documents, tokenizer)
    except StoreError:
        pass  # missing, damaged, or being made this very moment
    with only_one(place):
        try:
            return _opened(place, documents, tokenizer)
        except StoreError as error:
            if os.path.lexists(place):
                warnings.warn(
                    f"the cached tokens of data.text were damaged ({error.reason}); tokenized again",
                    stacklevel=2,
                )
        return _made(place, documents, tokenizer, shard)


def _opened(place: Path, documents: Documents, tokenizer: Tokenizer) -> TokenStore:
    """Return the store if it is there, whole, and of this text and tokenizer."""
    store = TokenStore(place)
    found = (store.index.text, store.index.tokenizer, store.end_of_text, store.index.dtype)
    dtype = dtype_for(tokenizer.vocab_size).name
    if found != (documents.fingerprint, tokenizer.fingerprint, tokenizer.begin_of_text, dtype):
        raise StoreError(place, "it is of another text or tokenizer")
    mark_used(place)
    return store


def _made(place: Path, documents: Documents, tokenizer: Tokenizer, shard: int) -> TokenStore:
    """Write a store beside its place and move it there when all of it is on the disk."""
    for unfinished in [place, *place.parent.glob(f".tmp-{place.name}-*")]:
        remove(unfinished)
    draft = place.with_name(f".tmp-{place.name}-{os.getpid()}")
    with (
        clear_errors(place.parent, SETTING),
        publishing(draft, place),
        Writer(draft, tokenizer, shard) as writer,
    ):
        for encoded in _encoded(documents, tokenizer):
            writer.add(encoded)
        writer.finish(documents.fingerprint)
    return TokenStore(place)


@dataclass(frozen=True)
class Encoded:
    """Tokens of some pieces in a row, and for each document that begins among them, where.

    `num_bytes[0]` belongs to the document that began earlier, the others to those in `starts`.
    """

    tokens: NDArray[np.integer[Any]]
    starts: list[int]
    num_bytes: list[int]


class Piece(NamedTuple):
    """Text, and whether a document begins with it."""

    text: str
    first: bool


def _encoded(documents: Documents, tokenizer: Tokenizer) -> Iterator[Encoded]:
    """Encode batches of pieces in threads (both libraries let go of the interpreter) in order."""
    threads = num_threads()
    waiting: deque[Future[Encoded]] = deque()
    with Progress("Tokenizing", documents.size) as progress, ThreadPoolExecutor(threads) as pool:
        try:
            for batch in _batches(documents, tokenizer):
                waiting.append(pool.submit(_encode, batch, tokenizer))
                while len(waiting) > 2 * threads:
                    yield progress.counted(waiting.popleft().result(), _size)
            while waiting:
                yield progress.counted(waiting.popleft().result(), _size)
        finally:  # after Ctrl-C nobody waits for what was not begun
            pool.shutdown(wait=False, cancel_futures=True)


def num_threads() -> int:
    """Return how many threads encode: the cores this process may use, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, 8))


def _size(encoded: Encoded) -> int:
    return sum(encoded.num_bytes)


def _batches(documents: Documents, tokenizer: Tokenizer) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for document in documents:
        first = True
        for text in tokenizer.whole(document.pieces):
            batch.append(Piece(text, first))
            first = False
            size += len(text)
            if size >= BATCH or len(batch) >= 4096:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _encode(batch: list[Piece], tokenizer: Tokenizer) -> Encoded:
    """Encode pieces and put the token that begins a text where a document begins."""
    begin = np.array([tokenizer.begin_of_text], np.uint32)
    parts: list[NDArray[np.uint32]] = []
    starts: list[int] = []
    num_bytes, position = [0], 0
    for piece, ids in zip(batch, tokenizer.encode_many([p.text for p in batch]), strict=True):
        if piece.first:
            starts.append(position)
            num_bytes.append(0)
            parts.append(begin)
            position += 1
        parts.append(ids)
        position += len(ids)
        num_bytes[-1] += len(piece.text if piece.text.isascii() else piece.text.encode())
    tokens = np.concatenate(parts).astype(dtype_for(tokenizer.vocab_size))
    return Encoded(tokens, starts, num_bytes)


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest integer type a store uses for this vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class Writer:
    """Writes shards, then the index; by plain writes, as a full disk kills who writes to a map."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard: int) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.size = shard
        self.shards: list[Shard] = []
        self.offsets = array("q")
        self.document_bytes = array("q")
        self.num_tokens = 0
        self._next_shard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def add(self, encoded: Encoded) -> None:
        """Append tokens and remember where documents begin."""
        if self.document_bytes:
            self.document_bytes[-1] += encoded.num_bytes[0]
        self.document_bytes.extend(encoded.num_bytes[1:])
        self.offsets.extend(self.num_tokens + start for start in encoded.starts)
        self.num_tokens += len(encoded.tokens)
        tokens = encoded.tokens
        while len(tokens) > self.size - self.filled:
            room = self.size - self.filled
            self._write(tokens[:room])
            tokens = tokens[room:]
            self._close_shard()
            self._next_shard()
        self._write(tokens)

    def finish(self, text: str) -> None:
        """Close the last shard and write offsets, bytes and index."""
        self._close_shard()
        self.offsets.append(self.num_tokens)
        for name, values in (("offsets", self.offsets), ("bytes", self.document_bytes)):
            with (self.folder / f"{name}.npy").open("wb") as file:
                np.save(file, np.frombuffer(values, np.int64))
        index = Index(
            dtype="uint16" if dtype_for(self.tokenizer.vocab_size) == np.uint16 else "uint32",
            num_tokens=self.num_tokens,
            num_documents=len(self.document_bytes),
            num_bytes=sum(self.document_bytes),
            end_of_text=self.tokenizer.begin_of_text,
            text=text,
            tokenizer=self.tokenizer.fingerprint,
            shards=tuple(self.shards),
        )
        write_index(self.folder, index)

    def _write(self, tokens: NDArray[np.integer[Any]]) -> None:
        content = tokens.tobytes()
        self.file.write(content)
        self.hasher.update(content)
        self.filled += len(tokens)

    def _next_shard(self) -> None:
        self.path = self.folder / f"shard-{len(self.shards):05}.bin"
        self.file = self.path.open("wb")
        self.hasher = hashlib.blake2b(digest_size=16)
        self.filled = 0

    def _close_shard(self) -> None:
        self.file.close()
        digest = self.hasher.hexdigest()
        self.shards.append(Shard(file=self.path.name, num_tokens=self.filled, digest=digest))
