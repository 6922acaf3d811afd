"""One change to a file: half of them keep its container valid and change values, the others do not care."""

import io
import json
import struct
import tomllib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from tests.fuzz.arrow_tables import table_types, table_values
from tests.fuzz.trees import FLOATS, INTEGERS, changed, fill_in, json_with_a_key_twice

Words = Sequence[str]
KEPT, TYPES = 0.5, 0.12
"""Shares of changes that keep the container, and of those that keep its syntax but not its types."""


class Mutation(NamedTuple):
    """A file's new content, and whether its container is as valid as it was."""

    content: bytes
    kept: bool


def mutated(content: bytes, kind: str, dice: Random, words: Words = ()) -> Mutation:
    """Return a file's content with something changed; `kind` is a key of KINDS."""
    values, types = KINDS[kind]
    way = dice.random()
    change = values if way < KEPT else types if way < KEPT + TYPES else _other_bytes
    for _ in range(50):
        if (found := change(content, dice, words)) != content:
            return Mutation(found, way < KEPT)
    return Mutation(b"", False)


def _json_values(content: bytes, dice: Random, words: Words) -> bytes:
    tree = json.loads(content)
    if dice.random() < 0.05:
        return json_with_a_key_twice(tree, dice).encode()
    return _json(changed(tree, dice, words))


def _json_types(content: bytes, dice: Random, words: Words) -> bytes:
    return _json(changed(json.loads(content), dice, words, types=True))


def _json(tree: Any) -> bytes:
    return fill_in(json.dumps(tree)).encode("utf-8", "surrogatepass")


def _lines_values(content: bytes, dice: Random, words: Words) -> bytes:
    """Change records of JSON lines, or drop, repeat or move lines."""
    lines = content.splitlines(keepends=True)
    i = dice.randrange(len(lines))
    way = dice.random()
    if way < 0.7:
        lines[i] = _json_values(lines[i], dice, words) + b"\n"
    elif way < 0.8:
        del lines[i]
    elif way < 0.9:
        lines.insert(dice.randrange(len(lines) + 1), lines[i])
    else:
        dice.shuffle(lines)
    return b"".join(lines)


def _lines_types(content: bytes, dice: Random, words: Words) -> bytes:
    lines = content.splitlines(keepends=True)
    i = dice.randrange(len(lines))
    lines[i] = _json_types(lines[i], dice, words) + b"\n"
    return b"".join(lines)


def _toml_values(content: bytes, dice: Random, words: Words) -> bytes:
    return _toml(changed(tomllib.loads(content.decode()), dice, words))


def _toml_types(content: bytes, dice: Random, words: Words) -> bytes:
    return _toml(changed(tomllib.loads(content.decode()), dice, words, types=True))


def _toml(tree: Any) -> bytes:
    text = tomli_w.dumps(_without_null(tree if isinstance(tree, dict) else {"x": tree}))
    return fill_in(text).encode("utf-8", "surrogatepass")


def _without_null(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {str(k): _without_null(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_without_null(v) for v in tree]
    return "" if tree is None else tree


def _array_values(content: bytes, dice: Random, words: Words) -> bytes:
    """Change numbers of an .npy file, or their order; dtype and shape stay."""
    array = np.load(io.BytesIO(content))
    flat = array.reshape(-1)
    if flat.size:
        _change_numbers(flat, dice)
    return _npy(array)


def _array_types(content: bytes, dice: Random, words: Words) -> bytes:
    """Write an .npy file of another dtype or shape, with a header that is true."""
    array = np.load(io.BytesIO(content))
    ways: list[Callable[[], Any]] = [
        lambda: array.astype(dice.choice(["i1", "i4", ">i8", "u8", "f8", "c16", "?", "S3", "U2"])),
        lambda: array[:-1],
        lambda: np.concatenate([array, array]),
        lambda: array.reshape(1, -1),
        lambda: array[:0],
        lambda: array[0] if array.size else array,
        lambda: array.view([("a", "i4"), ("b", "i4")]),
    ]
    return _npy(np.asarray(dice.choice(ways)()))


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def _token_values(content: bytes, dice: Random, words: Words) -> bytes:
    """Change 16-bit tokens, or their order; the size stays."""
    tokens = np.frombuffer(content[: len(content) // 2 * 2], np.uint16).copy()
    if tokens.size:
        _change_numbers(tokens, dice)
    return tokens.tobytes() + content[tokens.nbytes :]


def _token_types(content: bytes, dice: Random, words: Words) -> bytes:
    """Write the tokens in another width, with as many bytes."""
    wide = np.frombuffer(content[: len(content) // 2 * 2], np.uint16).astype(np.uint32).tobytes()
    return dice.choice((wide[: len(content)], content[::-1]))


def _change_numbers(flat: Any, dice: Random) -> None:
    size, info = flat.size, np.iinfo(flat.dtype)
    i, j = dice.randrange(size), dice.randrange(size)
    way = dice.randrange(6)
    if way == 0:
        flat[i] = flat[i] ^ (1 << dice.randrange(info.bits - 1))
    elif way == 1:
        flat[i] = min(max(dice.choice(INTEGERS), info.min), info.max)
    elif way == 2:
        flat[i] = flat[j] if flat[i] != flat[j] else (int(flat[i]) + 1) % info.max
    elif way == 3:
        flat[min(i, j) : max(i, j) + 1] = dice.choice((0, info.max))
    elif way == 4:
        flat[:] = np.array(dice.sample(flat.tolist(), size), flat.dtype)
    else:
        flat[min(i, j) : max(i, j) + 1] = flat[min(i, j) : max(i, j) + 1][::-1].copy()


def _tensor_values(content: bytes, dice: Random, words: Words) -> bytes:
    """Change what a safetensors header says, with offsets that stay true, or numbers of tensors."""
    header, data = _safetensors(content)
    names = [name for name in header if name != "__metadata__"]
    a, b = dice.choice(names), dice.choice(names)
    way = dice.randrange(7)
    if way == 0:
        header[a]["shape"] = _same_size(header[a]["shape"], dice)
    elif way == 1:
        header[a]["dtype"] = _as_wide(header[a]["dtype"], dice)
    elif way == 2:
        header[a], header[b] = header[b], header[a]
    elif way == 3:
        ways = (a[:-1], f"{a}x", a.upper(), b.replace("0", "1"), "\x1b[2J", "x" * 3000, "")
        header = {dice.choice(ways) if n == a else n: entry for n, entry in header.items()}
    elif way == 4:
        told = dict(header.get("__metadata__") or {"format": "pt"})
        other = changed(told, dice, words)
        told = other if isinstance(other, dict) else {}
        header["__metadata__"] = {str(k): str(v) for k, v in told.items()}
    elif way == 5:
        start, end = header[a]["data_offsets"]
        data = data[:start] + _other_numbers(data[start:end], dice) + data[end:]
    else:
        start, end = header.pop(a)["data_offsets"]
        data = data[:start] + data[end:]
        for entry in (header[n] for n in header if n != "__metadata__"):
            entry["data_offsets"] = [o - (o >= end) * (end - start) for o in entry["data_offsets"]]
    return _with_header(header, data)


def _tensor_types(content: bytes, dice: Random, words: Words) -> bytes:
    """Change anything in a safetensors header, whose length is then right."""
    header, data = _safetensors(content)
    return _with_header(changed(header, dice, words, types=dice.random() < 0.5), data)


def _safetensors(content: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _with_header(header: Any, data: bytes) -> bytes:
    text = _json(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


INFO = "DCP_SHARDING_INFO"
"""Key of a part's metadata: a table from names to where their blocks begin."""


def _part_values(content: bytes, dice: Random, words: Words) -> bytes:
    """Change where blocks of a part of a checkpoint begin, or what any safetensors file says."""
    header, data = _safetensors(content)
    begins = json.loads(header["__metadata__"][INFO])
    cut = [name for name, block in begins.items() if block["saved_offsets"]]
    way = dice.randrange(6)
    if way > 2 or not cut:
        return _tensor_values(content, dice, words)
    a, b = dice.choice(cut), dice.choice(cut)
    if way == 0:
        begin = begins[a]["saved_offsets"]
        at = dice.randrange(len(begin))
        size = header[a]["shape"][at]
        begin[at] = dice.choice((*INTEGERS, -size, size, begin[at] + 1, begin[at] - 1))
    elif way == 1:
        begins[a], begins[b] = begins[b], begins[a]
    else:
        del begins[a]
    header["__metadata__"][INFO] = json.dumps(begins)
    return _with_header(header, data)


def _part_types(content: bytes, dice: Random, words: Words) -> bytes:
    """Change anything in the table of where blocks begin, which stands in the metadata as text."""
    header, data = _safetensors(content)
    begins = json.loads(header["__metadata__"][INFO])
    header["__metadata__"][INFO] = fill_in(json.dumps(changed(begins, dice, words, types=True)))
    return _with_header(header, data)


def _same_size(shape: list[int], dice: Random) -> list[int]:
    ways = [shape[::-1], [*shape, 1], [1, *shape], [int(np.prod(shape, dtype=object))]]
    if shape and shape[0] % 2 == 0:
        ways.append([shape[0] // 2, *shape[1:-1], 2 * shape[-1]])
    return dice.choice(ways)


def _as_wide(dtype: str, dice: Random) -> str:
    widths = (("F64", "I64", "U64"), ("F32", "I32", "U32"), ("F16", "BF16", "I16", "U16"))
    alike = next((group for group in widths if dtype in group), ("I8", "U8", "BOOL", "F8_E4M3"))
    return dice.choice(alike)


def _other_numbers(data: bytes, dice: Random) -> bytes:
    """Write a number or all of them anew, among them ones that are not finite."""
    value = dice.choice((*FLOATS, float("nan"), float("inf")))
    with np.errstate(over="ignore"):
        four = np.float32(value).tobytes()
    if dice.random() < 0.3 or len(data) < 8:
        return (four * (len(data) // 4 + 1))[: len(data)]
    i = dice.randrange(len(data) // 4) * 4
    return (data[:i] + four + data[i + 4 :])[: len(data)]


def _other_bytes(content: bytes, dice: Random, words: Words) -> bytes:
    """Flip, cut, insert, repeat or blank bytes, as disks, editors and strangers do."""
    size = len(content)
    i, j = sorted((dice.randrange(size + 1), dice.randrange(size + 1)))
    short = min(j, i + dice.choice((1, 2, 8, 64)))
    some = bytes(dice.randrange(256) for _ in range(dice.choice((1, 3, 20))))
    at = min(i, max(size - 1, 0))
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :],
        lambda: content[:at] + bytes([dice.randrange(256)]) + content[at + 1 :],
        lambda: content[:i],
        lambda: content[: size // 2],
        lambda: b"",
        lambda: content[:i] + content[short:],
        lambda: content[:i] + some + content[i:],
        lambda: content[:short] + content[i:],
        lambda: content[:i] + bytes(short - i) + content[short:],
        lambda: content[:i] + bytes(j - i) + content[j:],
        lambda: content[:i] + dice.choice(ODD) + content[i:],
        lambda: bytes(dice.randrange(256) for _ in range(min(size, 500))),
        lambda: content + content,
        lambda: content + some,
    )
    return dice.choice(ways)() if size else some


ODD = (
    b"\xff\xfe",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\x00",
    b"\x1b[31m",
    b"\xef\xbb\xbf",
    b"[" * 9999,
)
"""Bytes that are no UTF-8, or that no text file should have."""

Change = Callable[[bytes, Random, Words], bytes]
KINDS: dict[str, tuple[Change, Change]] = {
    "json": (_json_values, _json_types),
    "jsonl": (_lines_values, _lines_types),
    "toml": (_toml_values, _toml_types),
    "npy": (_array_values, _array_types),
    "tokens": (_token_values, _token_types),
    "safetensors": (_tensor_values, _tensor_types),
    "parts": (_part_values, _part_types),
    "parquet": (table_values, table_types),
    "arrow": (table_values, table_types),
}
"""How each kind of file is changed: in its values, and in their types."""
