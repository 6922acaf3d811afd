"""Tokens on disk: memory-mapped shards with an index, made once for a text and a tokenizer."""

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archwright.files import machine_file, read_object, state_of, write_machine_file
from archwright.progress import Progress
from archwright.spec.errors import UserError
from archwright.text.cache import only_one

FORMAT = 1
"""Of the folder's layout."""

INDEX, OFFSETS, BYTES = "index.json", "offsets.npy", "bytes.npy"
CHECKED = "verified"
VERIFIED = f"{CHECKED}*.json"
"""Files that say what was verified, one for each machine; those of the first releases were one for all."""
BLOCK = 1 << 22
"""Bytes or numbers that are looked at in one go."""

Tokens = NDArray[np.integer[Any]]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StoreError(UserError):
    """A folder that holds no whole token store; `reason` says why."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f'"{folder}" holds no token store that can be read: {reason}.')
        self.reason = reason


class _Values(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Shard(_Values):
    """A file of tokens: its name, number of tokens, and BLAKE2 hash."""

    file: Annotated[str, Field(pattern=r"^shard-[0-9]{5,9}\.bin$")]
    num_tokens: Count
    digest: Hash


class Arrays(_Values):
    """The BLAKE2 hashes of the files of offsets and bytes."""

    offsets: Hash
    bytes: Hash


class Index(_Values):
    """Contents of `index.json`; offsets and bytes of documents are arrays beside it."""

    dtype: Literal["uint16", "uint32"]
    num_tokens: Count
    num_documents: Count
    num_bytes: Count
    end_of_text: Count
    """The id every document starts from: end-of-text, or the token that a foreign tokenizer has for it."""
    text: str
    """Fingerprint of the documents."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    shards: tuple[Shard, ...]
    arrays: Arrays | None = None
    """None in stores of the first releases."""
    format: int = FORMAT
    digest: Hash | None = None
    """BLAKE2 hash of all other values; None in stores of the first releases."""

    def sealed(self) -> "Index":
        """Return the index with the hash of its values."""
        return self.model_copy(update={"digest": self._digest()})

    @property
    def whole(self) -> bool:
        """Tell whether the values are those that were sealed, as far as they were."""
        return self.digest is None if self.arrays is None else self.digest == self._digest()

    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.blake2b(
            json.dumps(values, sort_keys=True).encode(), digest_size=16
        ).hexdigest()


class TokenStore:
    """The tokens of a text, each document preceded by end-of-text, read as one long array.

    Document i is `store.read(offsets[i], offsets[i + 1])`, with its end-of-text token first;
    `document_bytes[i]` counts the UTF-8 bytes of its text. All content is compared with its hashes
    before it is first used, once until the machine starts again or a file is touched: by one of its
    processes, for which the others wait.

    Raises:
        StoreError: the folder holds no store, a damaged one, or one of another format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = read_index(folder)
        if not self.index.num_documents:
            raise StoreError(folder, f'"{INDEX}" is damaged')
        try:
            self._map()
            self._verify_once()
        except OSError as error:
            name = Path(error.filename or folder).name
            raise StoreError(folder, f'"{name}": {error.strerror or error}') from error

    def _map(self) -> None:
        """Map all files, which have the size and the type that the index says."""
        dtype = np.dtype(self.index.dtype)
        self._shards = [_mapped(self.folder, dtype, shard) for shard in self.index.shards]
        sizes = [shard.num_tokens for shard in self.index.shards]
        self._borders = np.cumsum([0, *sizes])
        self.offsets = _array(self.folder, OFFSETS, self.num_documents + 1)
        self.document_bytes = _array(self.folder, BYTES, self.num_documents)
        if sum(sizes) != len(self):
            raise StoreError(self.folder, f'"{INDEX}" is damaged')

    def _verify_once(self) -> None:
        """Verify the content, unless a process of this machine has since it was started. Each machine does so for
        itself: what it reads goes through memory and links of its own."""
        state = _state(self.folder, self.index)
        place = machine_file(self.folder, CHECKED, state)
        if _is_kept(place, state):
            return
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(UserError):  # where no lock can be made, each process verifies
                stack.enter_context(only_one(place))
            if not _is_kept(place, state):
                self.verify()
                with contextlib.suppress(OSError, UserError):  # the next process verifies
                    write_machine_file(place, state, CHECKED)

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
        """Compare every file with its hash, and with what the others say.

        Raises:
            StoreError: one differs; the folder can be removed and is made again.
        """
        self._verify_arrays()
        with Progress(
            "Checking the tokens", sum(shard.nbytes for shard in self._shards)
        ) as progress:
            for shard in self.index.shards:
                if _digest(self.folder / shard.file, progress) != shard.digest:
                    raise StoreError(self.folder, f'"{shard.file}" is damaged: its hash differs')
        for first in range(0, self.num_documents, BLOCK):
            starts = self.offsets[first : min(first + BLOCK, self.num_documents)]
            if np.any(self._tokens_at(starts) != self.end_of_text):
                raise StoreError(
                    self.folder, f'"{OFFSETS}" is damaged: a document begins elsewhere'
                )

    def _verify_arrays(self) -> None:
        """Check offsets and bytes; in old stores without hashes by what must hold between them."""
        hashes = self.index.arrays
        for name, digest in (
            (OFFSETS, hashes and hashes.offsets),
            (BYTES, hashes and hashes.bytes),
        ):
            if digest and _digest(self.folder / name) != digest:
                raise StoreError(self.folder, f'"{name}" is damaged: its hash differs')
        if self.offsets[0] != 0 or self.offsets[-1] != len(self):
            raise StoreError(self.folder, f'"{OFFSETS}" is damaged: it begins or ends elsewhere')
        total = 0
        for first in range(0, self.num_documents, BLOCK):
            if np.any(np.diff(self.offsets[first : first + BLOCK + 1]) <= 0):
                raise StoreError(self.folder, f'"{OFFSETS}" is damaged: it does not rise')
            counts = self.document_bytes[first : first + BLOCK]
            if np.any((counts < 0) | (counts > self.num_bytes)):
                raise StoreError(self.folder, f'"{BYTES}" is damaged: {self.num_bytes:,} in all')
            total += sum(counts.tolist())
        if total != self.num_bytes:
            raise StoreError(
                self.folder, f'"{BYTES}" is damaged: the sum is not {self.num_bytes:,}'
            )

    def _tokens_at(self, positions: NDArray[np.int64]) -> Tokens:
        """Return the tokens at some positions in rising order."""
        borders = np.searchsorted(positions, self._borders)
        parts = [
            shard[positions[first:stop] - base]
            for shard, base, first, stop in zip(
                self._shards, self._borders[:-1], borders[:-1], borders[1:], strict=True
            )
        ]
        return np.concatenate(parts)

    @property
    def digest(self) -> str:
        """A hash of all tokens."""
        return _joined(shard.digest for shard in self.index.shards)

    def digest_in_shards(self, num_tokens: int) -> str:
        """Return the `digest` of a store of the same tokens whose shards have `num_tokens` each; all is read for it."""
        digests = []
        for start in range(0, len(self), num_tokens):
            hasher = hashlib.blake2b(digest_size=16)
            stop = min(start + num_tokens, len(self))
            for first in range(start, stop, BLOCK):
                hasher.update(self.read(first, min(first + BLOCK, stop)).tobytes())
            digests.append(hasher.hexdigest())
        return _joined(digests)

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
    """Write index.json, sealed by its own hash and those of the arrays, which are there already."""
    arrays = Arrays(offsets=_digest(folder / OFFSETS), bytes=_digest(folder / BYTES))
    sealed = index.model_copy(update={"arrays": arrays}).sealed()
    (folder / INDEX).write_text(sealed.model_dump_json(indent=2) + "\n", "utf-8")


def check_part(folder: Path, index: Index) -> None:
    """Compare arrays with their hashes, and shards with their sizes; whoever opens the joined store hashes the shards.

    Raises:
        StoreError: one is missing or differs.
    """
    try:
        for shard in index.shards:
            _mapped(folder, np.dtype(index.dtype), shard)
        if index.arrays != Arrays(offsets=_digest(folder / OFFSETS), bytes=_digest(folder / BYTES)):
            raise StoreError(folder, "its arrays are damaged: a hash differs")
    except OSError as error:
        raise StoreError(folder, error.strerror or str(error)) from error


def read_index(folder: Path) -> Index:
    """Return the index of a store, or of a part of one, which may have no documents.

    Raises:
        StoreError: it is missing or damaged, or of another format.
    """
    try:
        content = (folder / INDEX).read_bytes()
        index = Index.model_validate_json(content)
    except FileNotFoundError as error:
        raise StoreError(folder, f'there is no "{INDEX}"') from error
    except (NotADirectoryError, OSError) as error:
        raise StoreError(folder, f'"{INDEX}": {error.strerror or error}') from error
    except ValidationError as error:
        raise StoreError(folder, f'"{INDEX}" is damaged') from error
    if index.format != FORMAT:
        reason = f"it has format {index.format}, this version reads {FORMAT}"
        raise StoreError(folder, reason)
    if not index.whole:
        raise StoreError(folder, f'"{INDEX}" is damaged')
    return index


def _mapped(folder: Path, dtype: np.dtype[Any], shard: Shard) -> Tokens:
    path = folder / shard.file
    expected = shard.num_tokens * dtype.itemsize
    found = path.stat().st_size if path.is_file() else 0
    if not path.is_file() or found != expected:
        reason = f'"{shard.file}" is damaged: {found} bytes, not {expected}'
        raise StoreError(folder, reason)
    if not expected:
        return np.zeros(0, dtype)
    # A plain array over the map: slicing np.memmap itself costs microseconds.
    return np.asarray(np.memmap(path, dtype, "r"))


def _array(folder: Path, name: str, length: int) -> NDArray[np.int64]:
    """Return an array of documents, mapped."""
    try:
        found = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header raises anything, up to errors of Python's parser
        raise StoreError(folder, f'"{name}" is damaged: it is no array') from error
    if not isinstance(found, np.ndarray) or found.dtype != np.int64 or found.shape != (length,):
        raise StoreError(folder, f'"{name}" is damaged: it is not one of {length:,} integers')
    return found


def _digest(path: Path, progress: Progress | None = None) -> str:
    """Return the BLAKE2 hash of a file."""
    hasher = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            if progress:
                progress.counted(block, len)
    return hasher.hexdigest()


def _joined(digests: Iterable[str]) -> str:
    """Return a hash of the hashes of all shards."""
    return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _state(folder: Path, index: Index) -> dict[str, Any]:
    """Return what changes when the content of a store may have: what a check holds for."""
    names = (INDEX, OFFSETS, BYTES, *(shard.file for shard in index.shards))
    return state_of({name: folder / name for name in names})


def _is_kept(place: Path, state: dict[str, Any]) -> bool:
    """Return whether a check is remembered that holds for this state."""
    found = read_object(place)
    return {key: found.get(key) for key in state} == state
