"""From documents to a token store: encoded in parallel, written at one go, made only once.

A large text of several files is made in parts, each a folder of its own beside the store and named, locked and cleaned
like one, so that any number of processes on any number of machines can make one store. Where parts end depends on the
text alone. The last step joins them by links to their shards; until the store is published, every part stays as it is,
so a process may be killed anywhere."""

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
"""Tokens of a shard."""
PART = 1 << 30
"""Bytes of files that one process tokenizes at a time, at least."""
BATCH = 1 << 20
"""Characters that a thread encodes at a time, about."""


class Prepared(NamedTuple):
    """The token stores of both parts of a corpus."""

    train: TokenStore
    held_out: TokenStore


@dataclass(frozen=True)
class _Target:
    """A store to make, or a part of one."""

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
    """Return both parts of a corpus as token stores; see `prepare_documents`."""
    targets = [
        _target(corpus.train, tokenizer, folder, SHARD, threads, check_text=False),
        _target(corpus.held_out, tokenizer, folder, SHARD, threads),
    ]
    with _of_one_text(*targets):
        for target in targets:  # parts of both, before this process waits for others
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
    """Return the token store of documents, made below `folder` (by default the cache) if need be.

    Its name is a hash of content and tokenizer, so it is used again as long as neither changes. It
    appears complete or not at all; processes that want the same store make it once, and share its parts.

    Args:
        threads: that encode; by default `num_threads`.

    Raises:
        UserError: full disk, read-only folder, or text that changed meanwhile; nothing unfinished is left.
    """
    target = _target(documents, tokenizer, folder, shard, threads)
    with _of_one_text(target):
        return _prepared(target)


def _prepared(target: _Target) -> TokenStore:
    """Return a store, made if need be."""
    try:
        return _opened(target)
    except StoreError:
        pass  # missing, damaged, or being made this very moment
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
    return _made_together(target)


def _target(
    documents: Documents,
    tokenizer: Tokenizer,
    folder: Path | None,
    shard: int,
    threads: int | None,
    *,
    check_text: bool = True,
) -> _Target:
    """Return the store to make; tokenizers that are made here change no text, so that theirs need no check."""
    check_text = check_text and not tokenizer.is_fast
    folder = folder or cache_folder("tokens")
    threads = threads or num_threads()
    pieces, checks = documents.parts(PART), ["text"] * check_text
    how = tokenizer, shard, threads, check_text
    parts = tuple(
        _Target(folder / _name(piece, tokenizer, shard, *checks), piece, *how)
        for piece in (pieces if len(pieces) > 1 else ())
    )
    # Shards end where parts do, so that the same text cut otherwise is another store.
    name = _name(
        documents, tokenizer, shard, *checks, *(part.documents.fingerprint for part in parts)
    )
    return _Target(folder / name, documents, *how, parts)


def _name(documents: Documents, tokenizer: Tokenizer, shard: int, *parts: str) -> str:
    """Return the name of the folder for the tokens of documents: a hash of all that decides what is in it."""
    content = json.dumps([FORMAT, documents.fingerprint, tokenizer.fingerprint, shard, *parts])
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _opened(target: _Target) -> TokenStore:
    """Return the store if it is there, whole, and of this text and tokenizer."""
    if os.path.lexists(target.place):
        # Left by a process that was killed after it had joined them. Removing a link changes the times of the file,
        # for which the store would be verified again: hence before it is opened.
        _remove_parts(target)
    store = TokenStore(target.place)
    if not _is_of(store.index, target):
        raise StoreError(target.place, "it is of another text or tokenizer")
    mark_used(target.place)
    return store


def _is_of(index: Index, target: _Target) -> bool:
    """Tell whether an index is of this text and tokenizer."""
    tokenizer = target.tokenizer
    found = (index.text, index.tokenizer, index.end_of_text, index.dtype)
    dtype = dtype_for(tokenizer.vocab_size).name
    expected = (target.documents.fingerprint, tokenizer.fingerprint, tokenizer.begin_of_text, dtype)
    return found == expected


def _made(target: _Target) -> TokenStore:
    """Make a store in one go, and open it."""
    with Progress("Tokenizing", target.documents.size) as progress:
        _write(target, progress)
    return TokenStore(target.place)


def _write(target: _Target, progress: Progress) -> None:
    """Write a store, or a part, beside its place and move it there when all of it is on the disk."""
    with _written_beside(target) as writer:
        for encoded in _encoded(target, progress):
            writer.add(encoded)
        writer.finish(target.documents.fingerprint)


@contextmanager
def _written_beside(target: _Target) -> Iterator[Writer]:
    """Yield a writer to a draft, which takes its place after the block; the caller holds the lock."""
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


def _made_together(target: _Target) -> TokenStore:
    """Make the parts that no other process makes, wait for the others, and let one process join them."""
    _make_parts(target, wait=True)
    with only_one(target.place):
        try:
            return _opened(target)
        except StoreError:
            _join(target)
    _remove_parts(target)
    return TokenStore(target.place)


@contextmanager
def _of_one_text(*targets: _Target) -> Iterator[None]:
    """Remove all parts where the text has changed in the block: nobody will ask for them again."""
    try:
        yield
    except ChangedError:
        for target in targets:
            _remove_parts(target)
        raise


def _make_parts(target: _Target, *, wait: bool) -> None:
    """Make each part that is neither made nor being made; then, with `wait`, those whose processes died meanwhile."""
    with Progress("Tokenizing", target.documents.size) as progress:
        left = target.parts
        for is_last in (False, True) if wait else (False,):
            left = tuple(p for p in left if not _make_part(p, target.place, progress, wait=is_last))


def _make_part(part: _Target, joined: Path, progress: Progress, *, wait: bool) -> bool:
    """Make a part unless it is there, also as a part of the joined store; return False if another process is at it."""
    if not _is_made(part):
        with only_one(part.place, wait=wait) as ours:
            if not ours:
                return False
            # In this order: parts are removed after the store has appeared.
            if not _is_made(part) and not os.path.lexists(joined):
                _write(part, progress)
                return True
    progress.counted(part.documents.size, int)
    return True


def _is_made(part: _Target) -> bool:
    """Tell whether a part is there; its content is checked when it is joined."""
    try:
        return _is_of(read_index(part.place), part)
    except StoreError:
        return False


def _join(target: _Target) -> None:
    """Publish the store that all parts are; they stay as they are. The caller holds the lock of the store."""
    with _written_beside(target) as writer:
        for part in target.parts:
            with only_one(part.place):
                writer.take(part.place, _checked(part))
        writer.finish(target.documents.fingerprint)


def _checked(part: _Target) -> Index:
    """Return the index of a part; one that is damaged, or that somebody removed, is made once more."""
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
    """Remove the parts of a store, but those that a process is making."""
    for part in target.parts:
        if os.path.lexists(part.place):
            with suppress(UserError), only_one(part.place, wait=False) as ours:
                if ours:
                    remove(part.place)


class Piece(NamedTuple):
    """Text, and whether a document begins with it."""

    text: str
    first: bool


def _encoded(target: _Target, progress: Progress) -> Iterator[Encoded]:
    """Encode batches of pieces in threads (both libraries let go of the interpreter) in order."""
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


def _encode(batch: list[Piece], target: _Target) -> Encoded:
    """Encode pieces and put the token that begins a text where a document begins."""
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
