"""Source-target pairs for training and evaluation. They come from files or from two artificial languages."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from archwright.spec.data import SYNTHETIC, DataSpec
from archwright.spec.errors import UserError
from archwright.spec.files import open_regular
from archwright.text import synthetic_pairs
from archwright.text.corpus import Document, Readable
from archwright.text.sources import TextFile, find_files

Side = Literal["train", "held_out", "longer"]
JUDGED: Mapping[str, Side] = {SYNTHETIC: "held_out", f"{SYNTHETIC}-longer": "longer"}
"""Synthetic pairs for evaluation, by name."""
FORMAT = 1
"""Version of fingerprints; incremented if the same files give different pairs."""
TABLES = (".tsv", ".jsonl", ".ndjson")
NUM_PAIRS: Mapping[Side, int] = {"train": 20_000, "held_out": 2048, "longer": 500}
"""Number of synthetic pairs per side: "train" for training a tokenizer, the others for evaluation."""
STREAMS: tuple[Side, ...] = ("train", "held_out", "longer")
"""Sides of the split; the index of a side is its number in seeds."""


class Pair(NamedTuple):
    """A source text and its target text."""

    source: str
    target: str
    place: str = ""
    """Location for error messages."""


class Pairs(Readable, Protocol):
    """One side of a split. Iteration yields each source and each target as a document, to train a tokenizer."""

    endless: ClassVar[bool]
    """True if pairs are drawn by seed and number."""

    @property
    def num_pairs(self) -> int:
        """Number of pairs. If training pairs are drawn: the number for training a tokenizer."""

    def pair(self, seed: int, index: int) -> Pair:
        """Return a pair by its number. The seed matters only for drawn pairs."""


class PairCorpus(NamedTuple):
    """Training pairs and held-out pairs."""

    train: Pairs
    held_out: Pairs


def open_pairs(data: DataSpec) -> PairCorpus:
    """Open the pairs of `data.pairs`, split by source.

    `data.held_out` names the held-out pairs. By default, pairs with sources that hash to 0 modulo 10 are held out; if a
    side is empty, the pairs of the last tenth of sources. No held-out source is in the training pairs.

    Raises:
        UserError: Missing or malformed files, or too few pairs.
    """
    if data.pairs == SYNTHETIC:
        return PairCorpus(SyntheticPairs("train"), SyntheticPairs("held_out"))
    pairs = _read(data.pairs, "data.pairs", data.errors)
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    if data.held_out:
        held_out = [p for name in data.held_out for p in _read(name, "data.held_out", data.errors)]
        held = {pair.source for pair in held_out}
        if held.issuperset(sources):
            raise UserError(
                "data.pairs: every source is also in data.held_out; nothing is left to train on"
            )
    else:
        held = {source for source in sources if _hashed(source)[0] % 10 == 0}
        if not held or len(held) == len(sources):
            held = set(sources[-max(1, len(sources) // 10) :])
        if len(sources) < 2:
            raise UserError(
                f"data.pairs: found pairs of {len(sources)} source; expected two sources at least, as one is held "
                "out, or name a file of pairs in data.held_out"
            )
        held_out = [pair for pair in pairs if pair.source in held]
    return PairCorpus(FilePairs([p for p in pairs if p.source not in held]), FilePairs(held_out))


def read_pairs(name: str, key: str, errors: str = "strict") -> Pairs:
    """Return all pairs of a file, folder or glob, or synthetic pairs (`JUDGED`).

    Raises:
        UserError: Missing or malformed files; the message starts with `key`.
    """
    if name in JUDGED:
        return SyntheticPairs(JUDGED[name])
    return FilePairs(_read(name, key, errors))


@dataclass(frozen=True)
class FilePairs:
    """Pairs from files."""

    pairs: Sequence[Pair]
    endless: ClassVar[bool] = False

    @property
    def num_pairs(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    @cached_property
    def size(self) -> int:
        """Bytes of all texts."""
        return sum(len(pair.source.encode()) + len(pair.target.encode()) for pair in self.pairs)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all texts, in order."""
        hasher = hashlib.blake2b(str(FORMAT).encode(), digest_size=16)
        for pair in self.pairs:
            for text in (pair.source.encode(), pair.target.encode()):
                hasher.update(len(text).to_bytes(8, "little") + text)
        return hasher.hexdigest()

    def __iter__(self) -> Iterator[Document]:
        return _documents(self.pairs)

    def pair(self, seed: int, index: int) -> Pair:
        """Return the pair with number `index`; the seed has no effect."""
        return self.pairs[index]


@dataclass(frozen=True)
class SyntheticPairs:
    """Sentences in two artificial languages. Sides share no sentences; side "longer" has longer sentences."""

    side: Side
    endless: ClassVar[bool] = True

    @property
    def num_pairs(self) -> int:
        """Number of pairs for evaluation or for training a tokenizer."""
        return NUM_PAIRS[self.side]

    @property
    def fingerprint(self) -> str:
        """Hash of the generator's version, the side and its number of pairs."""
        return _hashed(json.dumps([synthetic_pairs.FORMAT, self.side, self.num_pairs])).hex()

    @cached_property
    def size(self) -> int:
        """Bytes of the texts for training a tokenizer."""
        return sum(len(piece) for document in self for piece in document.pieces)

    def __iter__(self) -> Iterator[Document]:
        return _documents(self.pair(0, index) for index in range(self.num_pairs))

    def pair(self, seed: int, index: int) -> Pair:
        """Return the pair of a seed and a number, deterministically."""
        generator = np.random.default_rng((seed, index, STREAMS.index(self.side)))
        draw = synthetic_pairs.draw_longer if self.side == "longer" else synthetic_pairs.draw
        while True:
            sentence = draw(generator)
            source = synthetic_pairs.source_text(sentence)
            is_judged = synthetic_pairs.is_held_out(source) or self.side == "longer"
            if is_judged == (self.side != "train"):
                return Pair(source, synthetic_pairs.target_text(sentence), f"sentence {index}")


def _documents(pairs: Iterator[Pair] | Sequence[Pair]) -> Iterator[Document]:
    for i, pair in enumerate(pairs):
        yield Document(f"source {i}", iter((pair.source,)))
        yield Document(f"target {i}", iter((pair.target,)))


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _read(name: str, key: str, errors: str) -> list[Pair]:
    """Return the pairs of a user's file, folder or glob."""
    pairs = [pair for file in find_files((name,), key) for pair in _of_file(file, key, errors)]
    if not pairs:
        raise UserError(
            f'{key}: "{name}" is empty; expected a pair of a source and a target in each line'
        )
    return pairs


def _of_file(file: TextFile, key: str, errors: str) -> Iterator[Pair]:
    path = file.path
    if path.suffix.lower() not in TABLES:
        raise UserError(
            f'{key}: found "{path}"; expected a file of pairs: .tsv (a source, a tab and a target in each line) or '
            '.jsonl (an object with "source" and "target" in each line)'
        )
    try:
        with open_regular(path) as handle:
            for number, line in enumerate(handle, 1):
                place = f'"{path}" line {number}'
                try:
                    pair = _of_line(line, path, number, errors)
                except UserError as error:
                    raise UserError(f"{key}: {place}: {error}") from None
                if pair is not None:
                    yield Pair(*pair, place)
    except OSError as error:
        raise UserError(f'{key}: cannot read "{path}": {error.strerror or error}') from None


def _of_line(line: bytes, path: Path, number: int, errors: str) -> tuple[str, str] | None:
    """Return source and target of a line, or None if blank."""
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 at byte {error.start + 1} of the line") from None
    if not text.strip():
        return None
    columns = text.split("\t") if path.suffix.lower() == ".tsv" else _of_record(text)
    if len(columns) != 2:
        raise UserError(
            f"found {len(columns)} column{'s' * (len(columns) != 1)}; expected a source, a tab and a target"
        )
    source, target = (column.strip() for column in columns)
    for side, text in (("source", source), ("target", target)):
        if not text:
            raise UserError(f"the {side} is empty; expected a text")
    return source, target


def _of_record(text: str) -> list[str]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(
            'not JSON; expected an object such as {"source": "...", "target": "..."}'
        ) from None
    if not isinstance(record, dict):
        raise UserError(
            f"found {type(record).__name__}; expected an object with a source and a target"
        )
    for key in ("source", "target"):
        if not isinstance(record.get(key), str):
            kind = type(record[key]).__name__ if key in record else "none"
            raise UserError(f'"{key}": found {kind}; expected a text')
        try:
            record[key].encode()
        except UnicodeEncodeError:
            raise UserError(f'"{key}": found half a character (a lone surrogate)') from None
    return [record["source"], record["target"]]
