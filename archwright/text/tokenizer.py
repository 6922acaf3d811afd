"""Encoding and decoding text: one class for trained, raw-byte and foreign tokenizers."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import ArrayLike, NDArray

from archwright.spec.errors import UserError, nearest
from archwright.text.bpe import GPT_2_WORDS, WORDS, bpe_of, byte_names, fast_encoding, merges_of
from archwright.text.chunking import pieces, split_at
from archwright.text.companions import (
    CONFIG,
    DECODER_START,
    FORCED_FIRST,
    as_text,
    content,
    end_ids,
    first_id,
    read_companions,
    table,
    write_companions,
)
from archwright.text.foreign import hiding, library_errors, quiet, read_json
from archwright.text.selfcheck import PROBE

Ids = NDArray[np.int64]
AllowedSpecial = Collection[str] | Literal["all"]

FILE = "tokenizer.json"
PAD = "<|pad|>"
OWN_KEYS = {"tokenizer_class", "eos_token", "bos_token", "add_bos_token"}
"""Settings that `Tokenizer.save` writes."""
UNKNOWN = "ᚠ𐏑𓀀𐭀"
"""Rare letters, which a vocabulary without bytes encodes to its unknown token."""
JOINED = 1 << 24
"""Maximum characters per piece, for tokenizers with tokens that may cross a `BORDER`."""


class Tokenizer:
    """A vocabulary with an end-of-text token. Text encodes to special tokens only on request.

    `vocab_size` is the largest id plus 1. `end_of_text` is the id that ends a text. `begin_of_text` is the first id of
    every document: equal to `end_of_text`, except for foreign tokenizers with a separate token. `fingerprint` is a hash
    of everything that affects the ids.

    Args:
        files: Text of the files next to tokenizer.json, by name (see `companions`); `save` writes them again.

    Raises:
        UserError: The vocabulary lacks the end-of-text or the begin-of-text token.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        end_of_text: str,
        begin_of_text: str = "",
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.files = dict(files)
        with library_errors("data.tokenizer"), quiet():
            inner.encode_special_tokens = True
            inner.no_truncation()
            inner.no_padding()
            self._inner = inner
            self._vocabulary: dict[str, int] = inner.get_vocab(with_added_tokens=True)
            if end_of_text not in self._vocabulary:
                raise UserError(_no_end(end_of_text, inner))
            self.end_of_text = self._vocabulary[end_of_text]
            self.end_of_text_name = end_of_text
            self.begin_of_text_name = begin_of_text or end_of_text
            if self.begin_of_text_name not in self._vocabulary:
                raise UserError(
                    f'the vocabulary has no token "{begin_of_text}" to begin a text with'
                )
            self.begin_of_text = self._vocabulary[self.begin_of_text_name]
            self.vocab_size = max(self._vocabulary.values()) + 1
            content = inner.to_str() + "\n" + end_of_text
            if self.begin_of_text != self.end_of_text:
                content += "\n" + begin_of_text
            self.fingerprint = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
            self._encoder = self._without_specials(inner)
            self._fast = fast_encoding(inner)
            self._cuts = True
            self.check(PROBE + "".join(f"a{name} b" for name in self._plain_added))

    @classmethod
    def from_bpe(
        cls,
        vocab: Mapping[int, bytes],
        merges: Sequence[tuple[bytes, bytes]],
        special_tokens: Sequence[str] = ("<|endoftext|>",),
        pattern: str = WORDS,
    ) -> "Tokenizer":
        """Build a byte-level BPE from a vocabulary and ordered merges.

        The first special token ends a text. Special tokens missing from the vocabulary get the next ids, in order.

        Args:
            pattern: Regular expression that splits a text into words before merging, such as `bpe.GPT_2_WORDS`.

        Raises:
            UserError: No special token, an invalid pattern, or a byte or a merge's tokens missing from the vocabulary.
        """
        if not special_tokens:
            raise UserError(
                "special_tokens: found none; expected the token that ends a text first."
            )
        with library_errors("pattern"):
            inner = bpe_of(vocab, merges, special_tokens, pattern)
        return cls(inner, special_tokens[0])

    @classmethod
    def from_files(
        cls,
        vocab: Path | str,
        merges: Path | str,
        special_tokens: Sequence[str] = ("<|endoftext|>",),
        pattern: str = GPT_2_WORDS,
    ) -> "Tokenizer":
        """Build a byte-level BPE from GPT-2's vocab.json and merges.txt; see `from_bpe`.

        Raises:
            UserError: A missing or malformed file.
        """
        with library_errors(f"{vocab}, {merges}"):
            ids, pairs = tokenizers.models.BPE.read_file(str(vocab), str(merges))
            byte_of = {name: byte for byte, name in byte_names().items()}

            def content(token: str) -> bytes:
                return bytes(byte_of[character] for character in token)

            contents = {i: content(token) for token, i in ids.items()}
            ordered = [(content(left), content(right)) for left, right in pairs]
        return cls.from_bpe(contents, ordered, special_tokens, pattern)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Load a tokenizer that `save` wrote into a folder.

        Raises:
            UserError: The folder holds no tokenizer.
        """
        files = read_companions(folder)
        config = table(files, CONFIG)
        if "eos_token" not in config:
            raise UserError(f'"{folder}" holds no tokenizer: its {CONFIG} has no eos_token.')
        begin = content(config.get("bos_token")) if config.get("add_bos_token") else ""
        return cls(read_json(folder / FILE), content(config["eos_token"]), begin, files)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, the config for other libraries, and `files`."""
        folder.mkdir(parents=True, exist_ok=True)
        write_companions({**self.files, CONFIG: as_text(self._config())}, folder)
        (folder / FILE).write_text(self._inner.to_str(pretty=True), "utf-8")

    def _config(self) -> dict[str, Any]:
        """Return the original config, updated with this tokenizer's settings."""
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"} | table(
            self.files, CONFIG
        )
        if config.pop("auto_map", None) is not None:  # its code is not in the folder
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        config["eos_token"] = self.end_of_text_name
        if self.begin_of_text != self.end_of_text:
            config |= {"bos_token": self.begin_of_text_name, "add_bos_token": True}
        elif (
            config.get("add_bos_token") and content(config.get("bos_token")) not in self._vocabulary
        ):
            config["add_bos_token"] = False
        return config

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Ids of special tokens by name; text never encodes to them."""
        return {name.decode(): i for i, name in self._special_names.items()}

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that stop generation: all end-of-text ids, and the begin-of-text id."""
        ends = {i for i in end_ids(self.files) if 0 <= i < self.vocab_size}
        return frozenset({self.end_of_text, self.begin_of_text} | ends)

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the tokenizer's file puts before and after a text."""
        plain, framed = (
            self._inner.encode("a", add_special_tokens=adds).ids for adds in (False, True)
        )
        starts = [i for i in range(len(framed)) if framed[i : i + len(plain)] == plain]
        if not plain or not starts:
            return (), ()
        return tuple(framed[: starts[0]]), tuple(framed[starts[0] + len(plain) :])

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids before and after a text in encoder-decoder models: `around`, but end-of-text if no id follows a text."""
        before, behind = self.around
        return before, behind or (self.end_of_text,)

    def trained_around(self, *, has_source: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids that training puts before and after a text."""
        return self.frame if has_source else ((self.begin_of_text,), ())

    def otherwise(self, around: tuple[Sequence[int], Sequence[int]], *, has_source: bool) -> str:
        """Return the difference between `around` and the ids of training; empty if there is none."""
        theirs, ours = (
            " ".join((*self._names(before), "TEXT", *self._names(behind)))
            for before, behind in (around, self.trained_around(has_source=has_source))
        )
        return "" if theirs == ours else f"transformers reads {theirs}, training read {ours}"

    def exported(self, rows: int, context_length: int, *, has_source: bool) -> "Tokenizer":
        """Return a tokenizer for export: other libraries then encode as in training.

        A tokenizer with settings or files from a model is returned unchanged. Others get a padding
        token, the model's context length and, if their file puts no ids around a text, the ids of training.

        Args:
            rows: Rows of the embedding. If all ids below `vocab_size` are in use and a row is free, `<|pad|>` takes
                the next id; otherwise end-of-text is the padding.
        """
        config = table(self.files, CONFIG)
        if {*self.files} - {CONFIG} or config.keys() - OWN_KEYS:
            return self
        inner = tokenizers.Tokenizer.from_str(self._inner.to_str())
        before, behind = self.trained_around(has_source=has_source)
        if self.around == ((), ()):
            first, last = self._names(before), self._names(behind)
            inner.post_processor = tokenizers.processors.TemplateProcessing(
                single=[*first, "$A", *last],
                pair=[*first, "$A", *last, *first, "$B", *last],
                special_tokens=[(n, self._vocabulary[n]) for n in dict.fromkeys([*first, *last])],
            )
        pad = PAD if PAD in self.special_ids else self.end_of_text_name
        if PAD not in self._vocabulary and len(self._vocabulary) == self.vocab_size < rows:
            inner.add_special_tokens([PAD])
            pad = PAD
        config |= {"pad_token": pad, "model_max_length": context_length}
        if not has_source and self.around in (((), ()), (before, behind)):
            config |= {"bos_token": self.begin_of_text_name, "add_bos_token": True}
        files = {**self.files, CONFIG: as_text(config)}
        return Tokenizer(inner, self.end_of_text_name, self.begin_of_text_name, files)

    def _names(self, ids: Iterable[int]) -> list[str]:
        """Return the names of ids (`id N` if outside the vocabulary)."""
        names = {i: name for name, i in self._vocabulary.items()}
        return [names.get(i, f"id {i}") for i in ids]

    @cached_property
    def decoder_start(self) -> tuple[int, ...]:
        """First inputs of an encoder-decoder's decoder: a start id, then the forced first id or `frame[0]`."""
        start, first = (first_id(self.files, key) for key in (DECODER_START, FORCED_FIRST))
        return (
            self.begin_of_text if start is None else start,
            *(self.frame[0] if first is None else (first,)),
        )

    def encode(self, text: str, *, allowed_special: AllowedSpecial = ()) -> Ids:
        """Return the ids of a text, without begin-of-text and end-of-text.

        Args:
            allowed_special: Names of special tokens to recognise in the text, or "all"; others are plain text.

        Raises:
            UserError: A lone surrogate in the text, or an unknown special token.
        """
        parts = list(self._parts([text], allowed_special))
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)

    def encode_iterable(
        self, texts: Iterable[str], *, allowed_special: AllowedSpecial = ()
    ) -> Iterator[int]:
        """Yield the ids of the joined texts as in `encode`, in bounded memory.

        Raises:
            UserError: As in `encode`.
        """
        for part in self._parts(texts, allowed_special):
            yield from part.tolist()

    def _parts(
        self, texts: Iterable[str], allowed_special: AllowedSpecial
    ) -> Iterator[NDArray[np.uint32]]:
        """Yield the ids of the joined texts, in parts."""
        ids = self._allowed(allowed_special)
        for name, stretch in split_at(ids, texts):
            if name:
                yield np.array([ids[name]], np.uint32)
            else:
                for piece in self.whole(pieces(stretch)):
                    yield from self.encode_many([piece])

    def _allowed(self, names: AllowedSpecial) -> dict[str, int]:
        """Return the ids of the allowed special tokens by name."""
        special = self.special_ids
        if names == "all":
            return special
        if isinstance(names, str):
            raise UserError(f'allowed_special: expected "all" or names in a list, found "{names}".')
        if unknown := [name for name in names if name not in special]:
            hint = nearest(unknown[0], special)
            raise UserError(f'allowed_special: "{unknown[0]}" is no special token.{hint}')
        return {name: special[name] for name in names}

    def encode_many(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Return the ids of each text by the fastest encoder. Other threads run meanwhile."""
        try:
            if self._fast is not None:
                return [self._fast_or_not(self._fast, text) for text in texts]
            with library_errors("data.tokenizer"):
                encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text has half a character (a lone surrogate) at position {error.start}: "
                "its source was not UTF-8."
            ) from error
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]

    def _fast_or_not(
        self, fast: Callable[[str], NDArray[np.uint32]], text: str
    ) -> NDArray[np.uint32]:
        try:
            return fast(text)
        except UnicodeEncodeError:
            raise
        except ValueError:  # tiktoken overflows its stack on half a million spaces
            return np.asarray(self._encoder.encode(text, add_special_tokens=False).ids, np.uint32)

    def decode(self, ids: ArrayLike, *, keep_special: bool = False) -> str:
        """Return the text of ids. Invalid UTF-8 becomes U+FFFD; special tokens are dropped by default."""
        wanted = [int(i) for i in np.asarray(ids).reshape(-1) if 0 <= i < self.vocab_size]
        names = self._special_names if keep_special else {}
        if self.token_bytes is None:
            with library_errors("data.tokenizer"):
                return str(self._inner.decode(wanted, skip_special_tokens=not keep_special))
        content = self.token_bytes
        return b"".join(names.get(i, content[i]) for i in wanted).decode("utf-8", "replace")

    def text_change(self, text: str, ids: ArrayLike) -> str:
        """Return the first difference between a text and its decoded ids. Empty if there is none."""
        decoded = self.decode(ids)
        if decoded == text:
            return ""
        both = enumerate(zip(text, decoded, strict=False))
        start = next((i for i, (a, b) in both if a != b), min(len(text), len(decoded)))
        start = max(0, start - 10)
        return " becomes ".join(
            json.dumps(part[start : start + 20], ensure_ascii=False) for part in (text, decoded)
        )

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...] | None:
        """Bytes of each id, or None if the tokenizer normalises text. Empty for special tokens.

        If None, only complete documents have a known number of bytes.
        """
        values = {name: byte for byte, name in byte_names().items()}
        content = [b""] * self.vocab_size
        plain = self._plain_added
        byte_level = '"ByteLevel"' in self._inner.to_str().split('"vocab"')[0]
        for token, i in self._vocabulary.items():
            if i in self._special_names:
                continue
            if byte_level and token not in plain:
                content[i] = bytes(values.get(char, 0) for char in token)
            elif len(token) == 6 and token.startswith("<0x"):
                content[i] = bytes([int(token[3:5], 16)])
            else:
                content[i] = token.replace("▁", " ").encode()
        spelled = b"".join(content[i] for i in self.encode(PROBE))
        return tuple(content) if spelled == PROBE.encode() else None

    @property
    def vocab(self) -> dict[int, bytes]:
        """Bytes of each id. For a special token: the bytes of its name.

        Raises:
            UserError: The tokenizer normalises text, so its tokens have no fixed bytes.
        """
        if self.token_bytes is None:
            raise UserError("vocab: the tokenizer normalises its text; tokens have no fixed bytes.")
        used = set(self._vocabulary.values())
        return {i: self._special_names.get(i, self.token_bytes[i]) for i in sorted(used)}

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """Ordered merges of a byte-level BPE. Empty for raw bytes.

        Raises:
            UserError: The tokenizer is no byte-level BPE.
        """
        pairs = merges_of(self._inner)
        if pairs is None:
            raise UserError("merges: this tokenizer is no byte-level BPE.")
        return pairs

    @cached_property
    def token_lengths(self) -> NDArray[np.int64] | None:
        """Number of bytes of each id, or None as for `token_bytes`."""
        return None if self.token_bytes is None else np.array([len(b) for b in self.token_bytes])

    def whole(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield a document's pieces, joined if tokens may span two pieces."""
        if self._cuts:
            yield from parts
            return
        held: list[str] = []
        for part in parts:
            held.append(part)
            if sum(map(len, held)) >= JOINED:
                yield "".join(held)
                held = []
        if held:
            yield "".join(held)

    def check(self, text: str) -> None:
        """Disable the fast encoder, or splitting into pieces, if it changes the ids of `text`."""
        expected = self._encoder.encode(text, add_special_tokens=False).ids
        if self._fast is not None and self._fast(text).tolist() != expected:
            self._fast = None
        if self._cuts:
            # Short texts are cut at every border, long ones at about every tenth word.
            target = 1 if len(text) < 10_000 else 64
            cut = self.encode_many(list(pieces([text], target, limit=len(text) + 1)))
            self._cuts = np.concatenate(cut).tolist() == expected

    @property
    def is_fast(self) -> bool:
        """True if ids come from the fast encoder."""
        return self._fast is not None

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, end_of_text={self.end_of_text_name!r})"

    @cached_property
    def _special_names(self) -> dict[int, bytes]:
        added = self._inner.get_added_tokens_decoder()
        special = {i: token.content.encode() for i, token in added.items() if token.special}
        ends = (self.end_of_text_name, self.begin_of_text_name)
        return special | {self._vocabulary[name]: name.encode() for name in ends}

    @cached_property
    def _plain_added(self) -> frozenset[str]:
        """Added tokens for ordinary text, such as runs of spaces or markup."""
        added = self._inner.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added if not token.special)

    def _without_specials(self, inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Return a tokenizer that never encodes text to special tokens.

        Special tokens in the vocabulary are hidden, as SentencePiece hides control pieces."""
        listed = {t.content for t in inner.get_added_tokens_decoder().values() if t.special}
        encoder = inner
        if hidden := self._spelled(inner) & listed:
            with suppress(Exception):  # if merges produce one, it is refused below
                encoder = hiding(inner, hidden)
        unknown = self._spelled(encoder, UNKNOWN) - {self.end_of_text_name, self.begin_of_text_name}
        if spelled := self._spelled(encoder) - unknown:
            name = min(spelled)
            raise UserError(
                f'data.tokenizer: the special token "{name}" is also an ordinary word. Choose one that no text has, '
                f'such as "<|{name}|>".'
            )
        return encoder

    def _spelled(self, encoder: tokenizers.Tokenizer, text: str = "") -> set[str]:
        """Return the special tokens with ids in the encoding of `text` (default: of the token's name)."""
        return {
            name
            for name, i in self.special_ids.items()
            if i in encoder.encode(text or name, add_special_tokens=False).ids
        }


def _no_end(name: str, inner: tokenizers.Tokenizer) -> str:
    """Return the error for a missing end-of-text token, with likely candidates."""
    added = [t.content for t in inner.get_added_tokens_decoder().values() if t.special]
    ends = [t for t in added if "end" in t.lower() or t.lower() in {"</s>", "<eos>", "[sep]"}]
    others = ", ".join(f'"{t}"' for t in (ends or added)[:6]) or "none"
    return (
        f'data.tokenizer.end_of_text: the vocabulary has no token "{name}". '
        f"Name the one that ends a text (special tokens there: {others})."
    )
