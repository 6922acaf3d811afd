"""Tokens on disk: memory-mapped shards with an index, made once for a text and a tokenizer."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from archwright.spec.errors import UserError

FORMAT = 1
"""Of the folder's layout."""

Tokens = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Shard:
    """A file of tokens: its name, number of tokens, and BLAKE2 hash."""

    file: str
    num_tokens: int
    digest: str


@dataclass(frozen=True)
class Index:
    """What `index.json` says about a store; offsets and bytes of documents are arrays beside it."""

    dtype: str
    num_tokens: int
    num_documents: int
    num_bytes: int
    end_of_text: int
    """The id every document starts from: end-of-text, or the token that a foreign tokenizer has for it."""
    text: str
    """Fingerprint of the documents."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    shards: tuple[Shard, ...]
    format: int = FORMAT


class TokenStore:
    """The tokens of a text, each document preceded by end-of-text, read as one long array.

    Document i is `store.read(offsets[i], offsets[i + 1])`, with its end-of-text token first;
    `document_bytes[i]` counts the UTF-8 bytes of its text.

    Raises:
        UserError: the folder holds no store, a damaged one, or one of another format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = _read_index(folder)
        dtype = np.dtype(self.index.dtype)
        self._shards = [_mapped(folder / shard.file, dtype, shard) for shard in self.index.shards]
        sizes = [shard.num_tokens for shard in self.index.shards]
        self._borders = np.cumsum([0, *sizes])
        self.offsets: NDArray[np.int64] = np.load(folder / "offsets.npy", mmap_mode="r")
        self.document_bytes: NDArray[np.int64] = np.load(folder / "bytes.npy", mmap_mode="r")

    def __len__(self) -> int:
        """Return the number of tokens, end-of-text included."""
        return self.index.num_tokens

    def __getitem__(self, where: slice) -> Tokens:
        """Return the tokens of a range, in the store's own integer type."""
        start, stop, step = where.indices(len(self))
        assert step == 1, "a store is read in order"
        return self.read(start, stop)

    def read(self, start: int, stop: int) -> Tokens:
        """Return tokens `start` to `stop`; no copy unless the range crosses shards."""
        first = int(np.searchsorted(self._borders, start, "right")) - 1
        parts = []
        while start < stop:
            base, end = int(self._borders[first]), min(stop, int(self._borders[first + 1]))
            parts.append(self._shards[first][start - base : end - base])
            start, first = end, first + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, self.index.dtype)

    def document(self, i: int) -> Tokens:
        """Return document i, its end-of-text token first."""
        return self.read(int(self.offsets[i]), int(self.offsets[i + 1]))

    def verify(self) -> None:
        """Compare every shard with its hash.

        Raises:
            UserError: one differs; the store can be removed and is made again.
        """
        for shard in self.index.shards:
            with (self.folder / shard.file).open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            if digest.hexdigest() != shard.digest:
                raise UserError(f'"{self.folder / shard.file}" is damaged. Remove its folder.')

    @property
    def end_of_text(self) -> int:
        """The id that stands before each document."""
        return self.index.end_of_text

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return self.index.num_documents

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return self.index.num_bytes

    def __repr__(self) -> str:
        return f"TokenStore({len(self):,} tokens, {self.num_documents:,} documents)"


def write_index(folder: Path, index: Index) -> None:
    """Write index.json."""
    (folder / "index.json").write_text(json.dumps(asdict(index), indent=2) + "\n", "utf-8")


def _read_index(folder: Path) -> Index:
    try:
        values = json.loads((folder / "index.json").read_text("utf-8"))
        if values["format"] != FORMAT:
            raise UserError(
                f'"{folder}" has format {values["format"]}, this version reads {FORMAT}. Remove it.'
            )
        values["shards"] = tuple(Shard(**shard) for shard in values["shards"])
        return Index(**values)
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise UserError(f'"{folder}" holds no token store that can be read: {error}.') from error


def _mapped(path: Path, dtype: np.dtype[Any], shard: Shard) -> Tokens:
    expected = shard.num_tokens * dtype.itemsize
    found = path.stat().st_size if path.exists() else 0
    if found != expected:
        raise UserError(f'"{path}" is damaged: {found} bytes, not {expected}. Remove its folder.')
    if not expected:
        return np.zeros(0, dtype)
    # A plain array over the map: slicing np.memmap itself costs microseconds.
    return np.asarray(np.memmap(path, dtype, "r"))
