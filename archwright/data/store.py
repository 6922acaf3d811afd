"""Tokens on disk: memory-mapped shards with an index."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from archwright import files
from archwright.progress import Progress
from archwright.spec.errors import UserError
from archwright.text.cache import only_one
from archwright.text.tokenizer import Tokenizer

FORMAT = 1
"""Version of the folder layout."""

INDEX, OFFSETS, BYTES = "index.json", "offsets.npy", "bytes.npy"
CHECKED = "verified"
VERIFIED = f"{CHECKED}-*.json"
"""File pattern of verification records, one per machine."""
BLOCK = 1 << 22
"""Bytes per block of hashing."""

Tokens = NDArray[np.integer[Any]]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StoreError(UserError):
    """A missing or damaged token store; `reason` describes the problem."""

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
    """BLAKE2 hashes of the two files with the offsets and the bytes of documents."""

    offsets: Hash
    bytes: Hash


class Index(_Values):
    """Contents of `index.json`; offsets and bytes of documents are separate arrays."""

    dtype: Literal["uint16", "uint32"]
    num_tokens: Count
    num_documents: Count
    num_bytes: Count
    end_of_text: Count
    """Id at the start of every document: end-of-text, or the begin-of-text of an imported tokenizer."""
    text: str
    """Fingerprint of the documents."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    shards: tuple[Shard, ...]
    arrays: Arrays
    text_change: str | None = None
    """First place where the tokenizer changes the text; empty if there is none, None if untested."""
    format: int = FORMAT
    digest: str = ""
    """BLAKE2 hash of all other values."""

    def sealed(self) -> "Index":
        """Return a copy with the hash of its values."""
        return self.model_copy(update={"digest": self._digest()})

    @property
    def is_intact(self) -> bool:
        """True if the values match their hash."""
        return self.digest == self._digest()

    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"digest"}, exclude_none=True)
        return hashlib.blake2b(
            json.dumps(values, sort_keys=True).encode(), digest_size=16
        ).hexdigest()


class TokenStore:
    """The tokens of a text as one array; end-of-text precedes each document.

    Document i is `store.read(offsets[i], offsets[i + 1])`, starting with its end-of-text token.
    `document_bytes[i]` is the number of UTF-8 bytes of its text. All content is compared with its hashes before its
    first use, and again after a reboot or a change of a file. One process verifies; others on the machine wait.

    Raises:
        StoreError: the store is missing, damaged, of another format, or changed during use.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = read_index(folder)
        self.end_of_text = self.index.end_of_text
        """Id before each document."""
        self.num_documents, self.num_bytes = self.index.num_documents, self.index.num_bytes
        """Number of documents, and of UTF-8 bytes of the text."""
        if not self.index.num_documents:  # only a part may be empty
            raise StoreError(folder, f'"{INDEX}" is damaged')
        try:
            self._verify_once()
            self._map()
        except OSError as error:
            if error.errno in files.EXHAUSTED:  # the store itself may be intact
                raise
            name = Path(error.filename or folder).name
            raise StoreError(folder, f'"{name}": {error.strerror or error}') from error

    def _map(self) -> None:
        dtype, shards = np.dtype(self.index.dtype), self.index.shards
        paths = (str(self.folder / shard.file) for shard in shards)
        self._stamps = [(path, files.stamp(path)) for path in paths]
        # A plain array over the map: slicing np.memmap itself costs microseconds. An empty file cannot be mapped.
        self._shards: list[Tokens] = [
            np.asarray(np.memmap(self.folder / shard.file, dtype, "r"))
            if shard.num_tokens
            else np.zeros(0, dtype)
            for shard in shards
        ]
        self._borders = np.cumsum([0, *(shard.num_tokens for shard in shards)])
        self.offsets: NDArray[np.int64] = np.load(self.folder / OFFSETS, mmap_mode="r")
        self.document_bytes: NDArray[np.int64] = np.load(self.folder / BYTES, mmap_mode="r")

    def _verify_once(self) -> None:
        """Verify the content, unless this machine has verified it since its start."""
        # Each machine verifies separately, because its memory and connections can corrupt data.
        names = (INDEX, OFFSETS, BYTES, *(shard.file for shard in self.index.shards))
        state = files.state_of({name: self.folder / name for name in names})
        place = files.machine_file(self.folder, CHECKED, state)
        if _is_recorded(place, state):
            return
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(UserError):  # without a lock, each process verifies
                stack.enter_context(only_one(place))
            if not _is_recorded(place, state):
                self.verify()
                with contextlib.suppress(OSError, UserError):  # the next process verifies
                    files.write_machine_file(place, state, CHECKED)

    def __len__(self) -> int:
        """Return the number of tokens, including end-of-text tokens."""
        return self.index.num_tokens

    def __getitem__(self, where: slice) -> Tokens:
        """Return a range of tokens, in the dtype of the store."""
        start, stop, step = where.indices(len(self))
        assert step == 1, "a store is read in order"
        return self.read(start, stop)

    def read(self, start: int, stop: int) -> Tokens:
        """Return tokens `start` to `stop`; no copy unless the range crosses shards."""
        first = int(np.searchsorted(self._borders, start, "right")) - 1
        parts = []
        while start < stop:
            self._check_unchanged(first)
            base, end = int(self._borders[first]), min(stop, int(self._borders[first + 1]))
            parts.append(self._shards[first][start - base : end - base])
            start, first = end, first + 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, self.index.dtype)

    def _check_unchanged(self, shard: int) -> None:
        """Raise a StoreError if a shard changed on disk; reading a truncated map is fatal."""
        file, expected = self._stamps[shard]
        with contextlib.suppress(FileNotFoundError):  # removed files stay mapped
            now = files.stamp(file)
            if now != expected and now[0] == expected[0]:
                raise StoreError(self.folder, f'"{Path(file).name}" was changed while it was read')

    def document(self, i: int) -> Tokens:
        """Return document i, starting with its end-of-text token."""
        return self.read(int(self.offsets[i]), int(self.offsets[i + 1]))

    def verify(self) -> None:
        """Compare every file with its hash.

        Raises:
            StoreError: a file differs. Remove the folder to recreate the store.
        """
        arrays = self.index.arrays
        digests = {OFFSETS: arrays.offsets, BYTES: arrays.bytes}
        digests |= {shard.file: shard.digest for shard in self.index.shards}
        total = len(self) * np.dtype(self.index.dtype).itemsize
        with Progress("Checking the tokens", total) as progress:
            for name, digest in digests.items():
                counts = progress if name not in (OFFSETS, BYTES) else None
                if _digest(self.folder / name, counts) != digest:
                    raise StoreError(self.folder, f'"{name}" is damaged: its hash differs')

    @property
    def digest(self) -> str:
        """Hash of all tokens."""
        digests = "".join(shard.digest for shard in self.index.shards)
        return hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()

    def text_change(self, tokenizer: Tokenizer) -> str | None:
        """Return the first place where the tokenizer changes the text; empty if there is none, None if untested."""
        return "" if tokenizer.is_fast else self.index.text_change

    def __repr__(self) -> str:
        return f"TokenStore({len(self):,} tokens, {self.num_documents:,} documents)"


def hashed_arrays(folder: Path) -> Arrays:
    return Arrays(offsets=_digest(folder / OFFSETS), bytes=_digest(folder / BYTES))


def check_part(folder: Path, index: Index) -> None:
    """Check a part's arrays by hash, and its shards by size.

    Raises:
        StoreError: a file is missing or differs.
    """
    # The shards are hashed when the joined store is opened.
    try:
        for shard in index.shards:
            size = (folder / shard.file).stat().st_size
            if size != shard.num_tokens * np.dtype(index.dtype).itemsize:
                raise StoreError(folder, f'"{shard.file}" is damaged: it has {size} bytes')
        if index.arrays != hashed_arrays(folder):
            raise StoreError(folder, "its arrays are damaged: a hash differs")
    except OSError as error:
        raise StoreError(folder, error.strerror or str(error)) from error


def read_index(folder: Path) -> Index:
    """Return the index of a store or a part.

    Raises:
        StoreError: the index is missing, damaged or of another format.
    """
    try:
        content = (folder / INDEX).read_bytes()
        index = Index.model_validate_json(content)
    except FileNotFoundError as error:
        raise StoreError(folder, f'there is no "{INDEX}"') from error
    except OSError as error:
        if error.errno in files.EXHAUSTED:
            raise
        raise StoreError(folder, f'"{INDEX}": {error.strerror or error}') from error
    except ValidationError as error:
        raise StoreError(folder, f'"{INDEX}" is damaged') from error
    if index.format != FORMAT:
        reason = f"it has format {index.format}, this version reads {FORMAT}"
        raise StoreError(folder, reason)
    if not index.is_intact:
        raise StoreError(folder, f'"{INDEX}" is damaged')
    return index


def _digest(path: Path, progress: Progress | None = None) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            if progress:
                progress.counted(block, len)
    return hasher.hexdigest()


def _is_recorded(place: Path, state: dict[str, Any]) -> bool:
    """True if a record says that the files were verified in this state."""
    record = files.read_object(place)
    return {key: record.get(key) for key in state} == state
