"""Reading text files: surveys, documents, and text as a stream."""

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError, nearest
from archwright.spec.files import open_regular
from archwright.text.chunking import TARGET, pieces
from archwright.text.sources import TextFile
from archwright.text.surveys import Survey, cached_survey
from archwright.text.tables import rows

BLOCK = 1 << 18
HEAD = 8192
NO_CONTROLS = bytes({*range(32, 256), *b"\t\n\r\f\b\x1b"})
"""Bytes that occur in text: all except control characters, plus the usual ones, such as tab."""


@dataclass(frozen=True)
class Surveyed:
    """A file after its first reading, with size, hash and split.

    `kept_bytes` and `held_out_bytes` are the bytes on each side of the hash split. `base` is the offset in the
    concatenation of all files. `contents` has 8 bytes per document in hexadecimal: a hash of its text, with the side of
    its name as the lowest bit. Documents with numbers in `moved` are on the opposite side.
    """

    file: TextFile
    size: int
    digest: str
    kept_bytes: int = 0
    held_out_bytes: int = 0
    contents: str = ""
    base: int = 0
    moved: frozenset[int] = frozenset()


class ChangedError(UserError):
    """A file that changed after its survey."""

    def __init__(self, path: Path) -> None:
        super().__init__(f'"{path}" changed while it was read. Start again.')


class Span(NamedTuple):
    """A document as a byte range of its file. Short documents include their text."""

    name: str
    start: int
    stop: int
    text: str | None = None

    @property
    def held_out(self) -> bool:
        """True if the name's hash selects the held-out side (one in ten)."""
        digest = hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).digest()
        return digest[0] % 10 == 0


def survey(
    files: Iterable[TextFile], data: DataSpec, key: str
) -> tuple[tuple[Surveyed, ...], tuple[str, ...]]:
    """Read all files once. Return text files, and names of skipped binary files.

    Raises:
        UserError: Binary, undecodable or unreadable files, or no text; one per line.
    """
    surveyed, skipped, mistakes, base = [], [], [], 0
    for file in files:
        try:
            result = _survey_one(file, data)
        except UserError as error:
            mistakes += [f"{key}: {line}" for line in error.lines]
            continue
        if result is None:
            skipped.append(file.name)
        elif result.kept_bytes + result.held_out_bytes:
            surveyed.append(replace(result, base=base))
            base += result.size
    if mistakes:
        raise UserError(*mistakes)
    if not surveyed:
        binary = f" {len(skipped)} files are not text." if skipped else ""
        raise UserError(f"{key}: there is no text; every file is empty.{binary}")
    return tuple(surveyed), tuple(skipped)


def spans(file: Surveyed, data: DataSpec) -> Iterator[Span]:
    """Yield the non-empty documents of a file, in order."""
    name, path = file.file.name, file.file.path
    if file.file.is_table:
        yield from _rows(file, data)
        return
    with _opened(path) as handle:
        if file.file.jsonl:
            start = 0
            for index, line in enumerate(handle):
                stop = start + len(line)
                text = _text_of(line, f'"{path}" line {index + 1}', start, path, data)
                if text:
                    yield Span(f"{name}:{index}", start, stop, text)
                start = stop
        elif data.separator:
            yield from _separated(handle, file, data)
        elif file.size:
            yield Span(name, 0, file.size)


def read(file: Surveyed, span: Span, data: DataSpec) -> Iterator[str]:
    """Yield a document's text in pieces that together have the tokens of the full text.

    Raises:
        ChangedError: The file changed after its survey.
    """
    if span.text is None:
        return pieces(_decoded(file.file.path, span, data.errors))
    return iter((span.text,)) if len(span.text) <= TARGET else pieces((span.text,))


def line_border(file: Surveyed, span: Span, near: int) -> int | None:
    """Return the start of a line inside a span, near byte `near`.

    Falls back to the start of any character; None if the span is too short to be cut.
    """
    with _opened(file.file.path) as handle:
        first = max(span.start, near - BLOCK)
        handle.seek(first)
        window = handle.read(min(span.stop, near + BLOCK) - first)
    last = len(window) - 1 if first + len(window) == span.stop else len(window)
    border = window.find(b"\n", max(near - first - 1, 0), last) + 1
    border = border or window.rfind(b"\n", 0, max(near - first, 0)) + 1
    if not border:
        border = min(max(near - first, 1), len(window) - 1)
        while border > 0 and window[border] & 0xC0 == 0x80:
            border -= 1
    return first + border if span.start < first + border < span.stop else None


def _survey_one(file: TextFile, data: DataSpec) -> Surveyed | None:
    """Survey a file. None for a binary file that the user did not name."""
    options = {"name": file.name, "field": data.field, "separator": data.separator}
    options |= {"errors": data.errors, "skipped": f"{file.implicit} {file.library}"}

    def read_once() -> Survey | None:
        surveyed = _survey_table(file, data) if file.is_table else _survey_text(file, data)
        if surveyed is None:
            return None
        return Survey(**{name: getattr(surveyed, name) for name in Survey.model_fields})

    result = cached_survey(file.path, options, read_once)
    return None if result is None else Surveyed(file, **dict(result))


def _survey_text(file: TextFile, data: DataSpec) -> Surveyed | None:
    with _opened(file.path) as handle:
        kind = _binary(handle.read(HEAD))
        if kind and file.implicit:
            return None
        if kind:
            raise UserError(f'"{file.path}" is {kind}. Give a text file in UTF-8.')
        handle.seek(0)
        try:
            size, digest = _checked(handle, file, data.errors)
        except UserError:
            if file.library:
                return None
            raise
    return _with_sides(Surveyed(file, size, digest), data)


def _survey_table(file: TextFile, data: DataSpec) -> Surveyed:
    """Survey a table; its size is the bytes of its texts."""
    with _opened(file.path) as handle:
        _, digest = _checked(handle, file, errors="replace")  # a table is not UTF-8
    surveyed = _with_sides(Surveyed(file, 0, digest), data)
    return replace(surveyed, size=surveyed.kept_bytes + surveyed.held_out_bytes)


def _with_sides(surveyed: Surveyed, data: DataSpec) -> Surveyed:
    """Add `kept_bytes`, `held_out_bytes` and `contents`."""
    num_bytes, contents = [0, 0], bytearray()
    for span in spans(surveyed, data):
        side = span.held_out
        num_bytes[side] += span.stop - span.start
        contents += (_hash(surveyed, span, data) & ~1 | side).to_bytes(8, "little")
    train, held_out = num_bytes
    return replace(surveyed, kept_bytes=train, held_out_bytes=held_out, contents=contents.hex())


def _hash(file: Surveyed, span: Span, data: DataSpec) -> int:
    """Return 64 bits of a document's hash. An undivided file uses the file's hash."""
    digest = bytes.fromhex(file.digest)
    if span.text is not None or span.stop - span.start < file.size:
        hasher = hashlib.blake2b(digest_size=16)
        for piece in read(file, span, data):
            hasher.update(piece.encode())
        digest = hasher.digest()
    return int.from_bytes(digest[:8], "little")


def _binary(head: bytes) -> str:
    """Return the kind of binary data, or an empty string for text."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16, not UTF-8"
    if b"\0" in head:
        return f"a binary file (a zero at byte {head.index(0)})"
    controls = len(head.translate(None, NO_CONTROLS))
    return "a binary file (mostly control bytes)" if controls * 20 > len(head) else ""


def _checked(handle: BinaryIO, file: TextFile, errors: str) -> tuple[int, str]:
    """Return size and hash of a file. Validate UTF-8 if `errors` is "strict"."""
    hasher, size = hashlib.blake2b(digest_size=16), 0
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    while True:
        block = handle.read(BLOCK)
        if errors == "strict":
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                where = size - pending + error.start
                raise UserError(_not_utf8(file.path, where, error.object[error.start])) from None
        if not block:
            return size, hasher.hexdigest()
        hasher.update(block)
        size += len(block)


def _not_utf8(path: Path, where: int, byte: int) -> str:
    return (
        f'"{path}" is not UTF-8 at byte {where} (0x{byte:02x}). '
        "Convert it, or set data.errors=replace to read such bytes as \ufffd."
    )


def _rows(file: Surveyed, data: DataSpec) -> Iterator[Span]:
    """Yield the non-empty rows of a table.

    A span's start and stop are byte offsets in the concatenation of all rows' texts.
    """
    start = 0
    for index, text in enumerate(rows(file.file.path, data.field)):
        if text:
            stop = start + len(text.encode())
            yield Span(f"{file.file.name}:{index}", start, stop, text)
            start = stop


def _separated(handle: BinaryIO, file: Surveyed, data: DataSpec) -> Iterator[Span]:
    """Yield the spans between separators. In UTF-8, a search for bytes never matches inside a character."""
    name, separator = file.file.name, data.separator.encode()
    start = index = position = 0
    carry = b""
    while block := handle.read(BLOCK):
        window, offset = carry + block, position - len(carry)
        searched = max(start - offset, 0)
        while (border := window.find(separator, searched)) >= 0:
            stop = offset + border
            if stop > start:
                inside = window[start - offset : border] if start >= offset else None
                text = None if inside is None else _short(inside, file.file.path, data.errors)
                yield Span(f"{name}:{index}", start, stop, text)
            index += 1
            searched = border + len(separator)
            start = offset + searched
        position += len(block)
        carry = window[len(window) - len(separator) + 1 :] if len(separator) > 1 else b""
    if file.size > start:
        yield Span(f"{name}:{index}", start, file.size)


def _short(content: bytes, path: Path, errors: str) -> str:
    """Decode a short document."""
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError:
        raise ChangedError(path) from None


def _text_of(line: bytes, place: str, start: int, path: Path, data: DataSpec) -> str:
    """Return the text of a JSONL line. Empty if the line is blank."""
    try:
        decoded = line.decode("utf-8-sig" if start == 0 else "utf-8", data.errors)
    except UnicodeDecodeError as error:
        raise UserError(_not_utf8(path, start + error.start, error.object[error.start])) from None
    if not decoded.strip():
        return ""
    try:
        record = _loaded(decoded)
    except json.JSONDecodeError as error:
        raise UserError(f"{place} is not JSON: {error.msg} at column {error.colno}.") from None
    except RecursionError:
        raise UserError(f"{place} is not usable JSON: it is nested too deeply.") from None
    if not isinstance(record, dict):
        raise UserError(f"{place}: expected an object, found {type(record).__name__}.")
    if data.field not in record:
        names = ", ".join(f'"{name}"' for name in list(record)[:8]) or "none"
        hint = nearest(data.field, record)
        raise UserError(f'{place}: no field "{data.field}" (found {names}). Set data.field.{hint}')
    text = record[data.field]
    if not isinstance(text, str):
        raise UserError(f'{place}: field "{data.field}" is {type(text).__name__}, not a string.')
    return _without_surrogates(text, place, data.errors)


def _loaded(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer with too many digits for Python; texts are no numbers
        return json.loads(line, parse_int=float)


def _without_surrogates(text: str, place: str, errors: str) -> str:
    """Refuse or replace lone surrogates, which JSON can represent but UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            raise UserError(
                f"{place}: half a character (a lone surrogate) at position {error.start} of the "
                "text. Fix it, or set data.errors=replace."
            ) from None
        return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)
    return text


def _decoded(path: Path, span: Span, errors: str) -> Iterator[str]:
    """Yield the text of a byte range in blocks of complete characters."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    left = span.stop - span.start
    with _opened(path) as handle:
        handle.seek(span.start)
        while left:
            block = handle.read(min(BLOCK, left))
            left -= len(block)
            try:
                text = decoder.decode(block, final=not left)
            except UnicodeDecodeError:
                block = b""
            if not block:
                raise ChangedError(path)
            yield text


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; errors in the block name the file."""
    try:
        with open_regular(path) as handle:
            yield handle
    except OSError as error:
        raise UserError(f'cannot read "{path}": {error.strerror or error}.') from error
