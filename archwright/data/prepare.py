"""Tokenization of documents into a token store, in parallel and only once.

A large text of several files is tokenized in parts. Each part has a folder next to the store, and a name, lock and
cleanup like a store, so that any number of processes on any number of machines can share the work. Boundaries of parts
depend only on the text. The last step joins the parts by linking to their shards. Parts do not change until the store
is published, so a process can be killed at any time."""

import hashlib
import json
import os
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archwright.data.store import FORMAT, Index, StoreError, TokenStore, check_part, read_index
from archwright.data.writer import Encoded, Writer, dtype_for
from archwright.files import clear_errors, publishing, remove
from archwright.progress import Progress
from archwright.spec.errors import UserError
from archwright.text.cache import SETTING, cache_folder, mark_used, only_one
from archwright.text.corpus import Corpus, Documents
from archwright.text.reading import ChangedError
from archwright.text.tokenizer import Tokenizer

SHARD = 1 << 27
"""Number of tokens per shard."""
PART = 1 << 30
"""Smallest size of a part, in bytes of files."""
BATCH = 1 << 20
"""Approximate number of characters per batch of a thread."""


class Prepared(NamedTuple):
    """The token stores of a corpus."""

    train: TokenStore
    held_out: TokenStore


@dataclass(frozen=True)
class _Target:
    """A store, or a part of one, to create."""

    place: Path
    documents: Documents
    tokenizer: Tokenizer
    shard: int
    threads: int
    check_text: bool
    parts: tuple["_Target", ...] = ()


def prepare(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path | None = None, threads: int | None = None
) -> Prepared:
    """Return the token stores of a corpus; see `prepare_documents`."""
    targets = [
        _target(corpus.train, tokenizer, folder, SHARD, threads, check_text=False),
        _target(corpus.held_out, tokenizer, folder, SHARD, threads),
    ]
    with _removing_stale_parts(*targets):
        for target in targets:  # create parts of both before waiting for another process
            if target.parts and not os.path.lexists(target.place):
                _make_parts(target, wait=False)
        return Prepared(*map(_prepared, targets))


def prepare_documents(
    documents: Documents,
    tokenizer: Tokenizer,
    folder: Path | None = None,
    shard: int = SHARD,
    threads: int | None = None,
) -> TokenStore:
    """Return the token store of documents, created if missing.

    The store is named by a hash of content and tokenizer, and reused until one of the two changes. It appears only when
    it is complete. Processes that need the same store create it together, once.

    Args:
        folder: Parent folder; default: the cache.
        threads: Number of encoding threads; default: `num_threads()`.

    Raises:
        UserError: full disk, read-only folder, or a text that changed during the call; unfinished files are removed.
    """
    target = _target(documents, tokenizer, folder, shard, threads)
    with _removing_stale_parts(target):
        return _prepared(target)


def _prepared(target: _Target) -> TokenStore:
    """Return a store, created if missing."""
    try:
        return _opened(target)
    except StoreError:
        pass  # missing, damaged or incomplete
    with only_one(target.place):
        try:
            return _opened(target)
        except StoreError as error:
            if os.path.lexists(target.place):
                warnings.warn(
                    f"the cached tokens of data.text were damaged ({error.reason}); tokenized again",
                    stacklevel=3,
                )
        if not target.parts:
            return _made(target)
        remove(target.place)
    return _made_of_parts(target)


def _target(
    documents: Documents,
    tokenizer: Tokenizer,
    folder: Path | None,
    shard: int,
    threads: int | None,
    *,
    check_text: bool = True,
) -> _Target:
    """Return the store to create, with its parts if the text is large."""
    check_text = check_text and not tokenizer.is_fast  # fast tokenizers never change text
    folder = folder or cache_folder("tokens")
    threads = threads or num_threads()
    pieces, checks = documents.parts(PART), ["text"] * check_text
    options = tokenizer, shard, threads, check_text
    parts = tuple(
        _Target(folder / _name(piece, tokenizer, shard, *checks), piece, *options)
        for piece in (pieces if len(pieces) > 1 else ())
    )
    # Shards end at the boundaries of parts, so other boundaries require another name.
    name = _name(
        documents, tokenizer, shard, *checks, *(part.documents.fingerprint for part in parts)
    )
    return _Target(folder / name, documents, *options, parts)


def _name(documents: Documents, tokenizer: Tokenizer, shard: int, *parts: str) -> str:
    """Return a store's folder name, a hash of everything that affects its content."""
    content = json.dumps([FORMAT, documents.fingerprint, tokenizer.fingerprint, shard, *parts])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _opened(target: _Target) -> TokenStore:
    """Open an existing store, if it is intact and belongs to the target's text and tokenizer."""
    if os.path.lexists(target.place):
        # A process that is killed after joining leaves parts. They are removed before opening, because removing a
        # link changes the times of a shard, and a shard with other times is verified again.
        _remove_parts(target)
    store = TokenStore(target.place)
    if not _is_of(store.index, target):
        raise StoreError(target.place, "it belongs to another text or tokenizer")
    mark_used(target.place)
    return store


def _is_of(index: Index, target: _Target) -> bool:
    """True if an index belongs to the target's text and tokenizer."""
    tokenizer = target.tokenizer
    actual = (index.text, index.tokenizer, index.end_of_text, index.dtype)
    dtype = dtype_for(tokenizer.vocab_size).name
    expected = (target.documents.fingerprint, tokenizer.fingerprint, tokenizer.begin_of_text, dtype)
    return actual == expected


def _made(target: _Target) -> TokenStore:
    with Progress("Tokenizing", target.documents.size) as progress:
        _write(target, progress)
    return TokenStore(target.place)


def _write(target: _Target, progress: Progress) -> None:
    """Write a store or part as a draft, and publish it when complete."""
    with _draft_writer(target) as writer:
        for encoded in _encoded(target, progress):
            writer.add(encoded)
        writer.finish(target.documents.fingerprint)


@contextmanager
def _draft_writer(target: _Target) -> Iterator[Writer]:
    """Yield a writer to a draft, published after the block; the caller holds the lock."""
    place = target.place
    for unfinished in [place, *place.parent.glob(f".tmp-{place.name}-*")]:
        remove(unfinished)
    draft = place.with_name(f".tmp-{place.name}-{os.getpid()}")
    with (
        clear_errors(place.parent, SETTING),
        publishing(draft, place),
        Writer(draft, target.tokenizer, target.shard) as writer,
    ):
        yield writer


def _made_of_parts(target: _Target) -> TokenStore:
    """Create a store together with other processes; only one of them joins the parts."""
    _make_parts(target, wait=True)
    with only_one(target.place):
        try:
            return _opened(target)
        except StoreError:
            _join(target)
    _remove_parts(target)
    return TokenStore(target.place)


@contextmanager
def _removing_stale_parts(*targets: _Target) -> Iterator[None]:
    """Remove all parts if the text changes during the block, because they are then useless."""
    try:
        yield
    except ChangedError:
        for target in targets:
            _remove_parts(target)
        raise


def _make_parts(target: _Target, *, wait: bool) -> None:
    """Create missing parts; with `wait`, also wait for parts in progress."""
    with Progress("Tokenizing", target.documents.size) as progress:
        left = target.parts
        for is_last in (False, True) if wait else (False,):
            left = tuple(p for p in left if not _make_part(p, target.place, progress, wait=is_last))


def _make_part(part: _Target, joined: Path, progress: Progress, *, wait: bool) -> bool:
    """Create a part if it and the joined store are missing; return False if it is locked."""
    if not _is_made(part):
        with only_one(part.place, wait=wait) as ours:
            if not ours:
                return False
            # In this order, because parts are removed after the store is published.
            if not _is_made(part) and not os.path.lexists(joined):
                _write(part, progress)
                return True
    progress.counted(part.documents.size, int)
    return True


def _is_made(part: _Target) -> bool:
    """True if a part exists; its content is checked during the join."""
    try:
        return _is_of(read_index(part.place), part)
    except StoreError:
        return False


def _join(target: _Target) -> None:
    """Publish the store of all parts, which do not change; the caller holds its lock."""
    with _draft_writer(target) as writer:
        for part in target.parts:
            with only_one(part.place):
                writer.take(part.place, _checked(part))
        writer.finish(target.documents.fingerprint)


def _checked(part: _Target) -> Index:
    """Return the index of a part, which is recreated if damaged or removed."""
    try:
        index = read_index(part.place)
        if _is_of(index, part):
            check_part(part.place, index)
            return index
    except StoreError:
        pass
    with Progress("Tokenizing", part.documents.size) as progress:
        _write(part, progress)
    return read_index(part.place)


def _remove_parts(target: _Target) -> None:
    """Remove the parts of a store, except parts in progress."""
    for part in target.parts:
        if os.path.lexists(part.place):
            with suppress(UserError), only_one(part.place, wait=False) as ours:
                if ours:
                    remove(part.place)


class Piece(NamedTuple):
    """A piece of a document's text."""

    text: str
    first: bool
    """True if the document begins with the piece."""


def _encoded(target: _Target, progress: Progress) -> Iterator[Encoded]:
    """Yield encoded batches in order, from threads, because both libraries release the GIL."""
    waiting: deque[Future[Encoded]] = deque()
    threads = target.threads
    with ThreadPoolExecutor(threads) as pool:
        try:
            for batch in _batches(target.documents, target.tokenizer):
                waiting.append(pool.submit(_encode, batch, target))
                while len(waiting) > 2 * threads:
                    yield progress.counted(waiting.popleft().result(), _size)
            while waiting:
                yield progress.counted(waiting.popleft().result(), _size)
        finally:  # after Ctrl-C, cancel batches that were not started
            pool.shutdown(wait=False, cancel_futures=True)


def num_threads() -> int:
    """Return the number of encoding threads: available cores, at most eight."""
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


def _encode(batch: list[Piece], target: _Target) -> Encoded:
    """Encode pieces, with the begin-of-text token before each document."""
    tokenizer = target.tokenizer
    begin = np.array([tokenizer.begin_of_text], np.uint32)
    parts: list[NDArray[np.uint32]] = []
    starts: list[int] = []
    num_bytes, position = [0], 0
    text_change = "" if target.check_text else None
    for piece, ids in zip(batch, tokenizer.encode_many([p.text for p in batch]), strict=True):
        if piece.first:
            starts.append(position)
            num_bytes.append(0)
            parts.append(begin)
            position += 1
        parts.append(ids)
        position += len(ids)
        num_bytes[-1] += len(piece.text if piece.text.isascii() else piece.text.encode())
        if text_change == "":
            text_change = tokenizer.text_change(piece.text, ids)
    tokens = np.concatenate(parts).astype(dtype_for(tokenizer.vocab_size))
    return Encoded(tokens, starts, num_bytes, text_change)
