"""Text as a stream of documents, split into training and held-out documents."""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from archwright.format import percent
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.text.reading import Span, Surveyed, line_border, read, spans, survey
from archwright.text.sources import find_files

FORMAT = 1
"""Version of fingerprints; incremented if the same files give different documents."""

DIGITS = 16
"""Hexadecimal digits of a document in `Surveyed.contents`."""
Choose = Callable[[Surveyed, Span], Span | None]
"""Function from a document to its part on one side of a split; None if the document has no text on that side."""


class Document(NamedTuple):
    """A document with a name and a stream of text pieces (iterate once)."""

    name: str
    pieces: Iterator[str]


class Readable(Protocol):
    """Documents that can be read repeatedly."""

    @property
    def size(self) -> int:
        """Total size in bytes."""

    @property
    def fingerprint(self) -> str:
        """Hash of all content."""

    def __iter__(self) -> Iterator[Document]: ...


@dataclass(frozen=True)
class Documents:
    """A stream of documents that can be read repeatedly.

    `fingerprint` is a hash of the content, names and split of the documents; `size` is their total size in bytes.
    """

    files: tuple[Surveyed, ...]
    data: DataSpec
    choose: Choose
    size: int
    fingerprint: str

    def __iter__(self) -> Iterator[Document]:
        for file in self.files:
            for number, span in enumerate(spans(file, self.data)):
                chosen = self.choose(file, span)
                if number in file.moved:
                    chosen = None if chosen else span
                if chosen is not None:
                    yield Document(chosen.name, read(file, chosen, self.data))

    def parts(self, least: int) -> tuple["Documents", ...]:
        """Split into parts of at least `least` bytes. The last may be smaller.

        A part consists of consecutive whole files. The parts depend only on the files, and their sizes are estimates.
        """
        borders, num_bytes = [0], 0
        for stop, file in enumerate(self.files, 1):
            num_bytes += file.size
            if num_bytes >= least or stop == len(self.files):
                borders.append(stop)
                num_bytes = 0
        if len(borders) < 3:
            return (self,)
        share = self.size / sum(file.size for file in self.files)
        return tuple(self._part(first, stop, share) for first, stop in pairwise(borders))

    def _part(self, first: int, stop: int, share: float) -> "Documents":
        """Return the documents in `files[first:stop]`. `share` is their share of the bytes, to estimate the size."""
        files = self.files[first:stop]
        size = round(share * sum(file.size for file in files))
        fingerprint = _hash(self.fingerprint, "files", str(first), str(stop))
        return replace(self, files=files, size=size, fingerprint=fingerprint)


@dataclass(frozen=True)
class Corpus:
    """Training documents, held-out documents, and names of skipped binary files."""

    train: Documents
    held_out: Documents
    skipped: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of all content."""
        return _hash(self.train.fingerprint, self.held_out.fingerprint)


def open_corpus(data: DataSpec) -> Corpus:
    """Open the text of `data`, split into training and held-out documents.

    `data.held_out` names the held-out files. By default, documents with names that hash to 0 modulo 10 are held out; if
    a side is empty, the last tenth of the text. Exact duplicates are on the side of their first copy.

    Raises:
        UserError: Missing, binary, empty or undecodable files, one per line.
    """
    if data.held_out:
        return _given_split(data)
    files, skipped = survey(find_files(data.text), data, "data.text")
    codes = _codes(files)
    _, first, text = np.unique(codes >> 1, return_index=True, return_inverse=True)
    first, is_held_out, numbers = first[text], codes % 2 == 1, np.arange(len(codes))
    if 0 < is_held_out[first].sum() < len(first):
        how, moved = "sha256", is_held_out != is_held_out[first]
        choices = _SIDES
        sizes = sum(f.kept_bytes for f in files), sum(f.held_out_bytes for f in files)
    else:
        total = sum(f.size for f in files)
        border, number = _tail(files, data, total * 9 // 10, {*numbers[first < numbers].tolist()})
        how, moved = f"tail/{border}", (numbers >= number) & (first < number)
        choices = partial(_before, border), partial(_after, border)
        sizes = border, total - border
    if moved.any():
        how += "/first copies"
        ends = np.cumsum([len(file.contents) // DIGITS for file in files])[:-1]
        files = tuple(
            replace(file, moved=frozenset(np.flatnonzero(part).tolist()))
            for file, part in zip(files, np.split(moved, ends), strict=True)
        )
    train, held_out = (
        _documents(files, data, choose, size, f"{how}/{side}")
        for choose, size, side in zip(choices, sizes, ("train", "held_out"), strict=True)
    )
    return Corpus(train, held_out, skipped)


def open_texts(texts: tuple[str, ...], data: DataSpec) -> Documents:
    """Open all documents of `texts`, with the options of `data`.

    Raises:
        UserError: Missing, binary, empty or undecodable files, one per line.
    """
    files, _ = survey(find_files(texts, "text"), data, "text")
    return _documents(files, data, _all, sum(f.size for f in files), "all")


def _given_split(data: DataSpec) -> Corpus:
    """Hold out the files of `data.held_out`. Training never reads them."""
    held_out = find_files(data.held_out, "data.held_out")
    paths = {file.path.resolve() for file in held_out}
    train = tuple(f for f in find_files(data.text) if f.path.resolve() not in paths)
    if not train:
        raise UserError(
            "data.text: every file is also in data.held_out; nothing is left to train on."
        )
    files, skipped = survey(train, data, "data.text")
    others, skipped_too = survey(held_out, data, "data.held_out")
    repeats = np.isin(_codes(others) >> 1, _codes(files) >> 1)
    if repeats.any():
        warnings.warn(
            f"data.held_out: {repeats.sum():,} of {len(repeats):,} documents ({percent(repeats.mean())}) are also in "
            "data.text: losses on them do not show what a model does with new text",
            stacklevel=3,
        )
    return Corpus(
        _documents(files, data, _all, sum(f.size for f in files), "all"),
        _documents(others, data, _all, sum(f.size for f in others), "all"),
        skipped + skipped_too,
    )


def _codes(files: Sequence[Surveyed]) -> NDArray[np.uint64]:
    """Return the codes of all documents, as in `Surveyed.contents`: [documents]."""
    return np.frombuffer(bytes.fromhex("".join(file.contents for file in files)), "<u8")


def _tail(
    files: tuple[Surveyed, ...], data: DataSpec, near: int, repeats: Set[int]
) -> tuple[int, int]:
    """Return the start of the held-out tail, and the number of earlier documents.

    The start is a byte offset over all files, inside or at the start of a document without an earlier duplicate.
    """
    starts: list[tuple[int, int]] = []
    number = -1
    for file in files:
        for span in spans(file, data):
            number += 1
            if number in repeats:
                continue
            start = file.base + span.start
            if start >= near and starts:
                return start, number
            starts.append((start, number))
            if file.base + span.stop > near and span.text is None:
                border = line_border(file, span, max(near - file.base, span.start + 1))
                if border is not None:
                    return file.base + border, number + 1
    if len(starts) < 2:
        raise UserError(
            "data.text: the text is too short to hold out a part of it. "
            "Give more documents that differ, or name a text in data.held_out."
        )
    return starts[-1]


def _documents(
    files: tuple[Surveyed, ...], data: DataSpec, choose: Choose, size: int, side: str
) -> Documents:
    content = [part for f in files for part in (f.file.name, f.digest)]
    fingerprint = _hash(str(FORMAT), data.field, data.separator, data.errors, side, *content)
    return Documents(files, data, choose, size, fingerprint)


def _hash(*parts: str) -> str:
    # File names may be any bytes.
    encoded = [part.encode("utf-8", "surrogateescape") for part in parts]
    joined = b"".join(len(part).to_bytes(8, "little") + part for part in encoded)
    return hashlib.blake2b(joined, digest_size=16).hexdigest()


def _before(border: int, file: Surveyed, span: Span) -> Span | None:
    """Return the part of a document before the tail."""
    stop = min(span.stop, border - file.base)
    return span._replace(stop=stop) if stop > span.start else None


def _after(border: int, file: Surveyed, span: Span) -> Span | None:
    """Return the part of a document in the tail."""
    start = max(span.start, border - file.base)
    return span._replace(start=start) if start < span.stop else None


def _all(file: Surveyed, span: Span) -> Span | None:
    return span


def _of_side(held_out: bool, file: Surveyed, span: Span) -> Span | None:
    return span if span.held_out == held_out else None


_SIDES = partial(_of_side, False), partial(_of_side, True)
