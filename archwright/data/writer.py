"""Writing of token stores."""

import hashlib
import shutil
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from archwright.data.store import BYTES, INDEX, OFFSETS, Index, Shard, hashed_arrays
from archwright.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Encoded:
    """The tokens of consecutive pieces of text."""

    tokens: NDArray[np.integer[Any]]
    starts: list[int]
    """Start positions of documents."""
    num_bytes: list[int]
    """UTF-8 bytes of text before the first start, and of each document in `starts`."""
    text_change: str | None = None
    """First place where the tokenizer changes the text; see `Index`."""


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the integer type of a store for this vocabulary size."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class Writer:
    """Writes shards, then the index. Memory maps are not used, because they are fatal on a full disk."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard: int) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.size = shard
        self.shards: list[Shard] = []
        self.offsets = array("q")
        self.document_bytes = array("q")
        self.num_tokens = 0
        self.text_change: str | None = None
        self.file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.file:
            self.file.close()

    def add(self, encoded: Encoded) -> None:
        """Append tokens and the offsets of their documents."""
        if self.document_bytes:
            self.document_bytes[-1] += encoded.num_bytes[0]
        self.document_bytes.extend(encoded.num_bytes[1:])
        self.offsets.extend(self.num_tokens + start for start in encoded.starts)
        self.num_tokens += len(encoded.tokens)
        if encoded.text_change is not None:
            self.text_change = self.text_change or encoded.text_change
        tokens = encoded.tokens
        if not self.file:
            self._next_shard()
        while len(tokens) > self.size - self.filled:
            room = self.size - self.filled
            self._write(tokens[:room])
            tokens = tokens[room:]
            self._close_shard()
            self._next_shard()
        self._write(tokens)

    def take(self, folder: Path, index: Index) -> None:
        """Append a complete store by linking (else copying) its shards; finished shards are never modified."""
        for shard in index.shards:
            name = f"shard-{len(self.shards):05}.bin"
            _link(folder / shard.file, self.folder / name)
            self.shards.append(shard.model_copy(update={"file": name}))
        offsets, document_bytes = (np.load(folder / name) for name in (OFFSETS, BYTES))
        self.offsets.frombytes((offsets[:-1] + self.num_tokens).tobytes())
        self.document_bytes.frombytes(document_bytes.tobytes())
        self.num_tokens += index.num_tokens
        if index.text_change is not None:  # a part without documents has no tokens to test
            self.text_change = self.text_change or index.text_change

    def finish(self, text: str) -> None:
        """Close the last shard and write offsets, bytes and index."""
        if self.file:
            self._close_shard()
        self.offsets.append(self.num_tokens)
        for name, values in ((OFFSETS, self.offsets), (BYTES, self.document_bytes)):
            with (self.folder / name).open("wb") as file:
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
            arrays=hashed_arrays(self.folder),
            text_change=self.text_change,
        )
        content = index.sealed().model_dump_json(indent=2, exclude_none=True)
        (self.folder / INDEX).write_text(content + "\n", "utf-8")

    def _write(self, tokens: NDArray[np.integer[Any]]) -> None:
        content = tokens.tobytes()
        assert self.file
        self.file.write(content)
        self.hasher.update(content)
        self.filled += len(tokens)

    def _next_shard(self) -> None:
        self.path = self.folder / f"shard-{len(self.shards):05}.bin"
        self.file = self.path.open("wb")
        self.hasher = hashlib.blake2b(digest_size=16)
        self.filled = 0

    def _close_shard(self) -> None:
        assert self.file
        self.file.close()
        digest = self.hasher.hexdigest()
        self.shards.append(Shard(file=self.path.name, num_tokens=self.filled, digest=digest))


def _link(file: Path, name: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no links."""
    try:
        name.hardlink_to(file)
    except OSError as error:
        if isinstance(error, FileNotFoundError | FileExistsError):
            raise
        shutil.copyfile(file, name)
