"""Bits per byte of general-purpose compressors, which are baselines for language models."""

import lzma
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from archwright.text.corpus import Document


class Baseline(NamedTuple):
    """A compressor's result on a text of `num_bytes` bytes."""

    name: str
    bits_per_byte: float
    num_bytes: int


DICTIONARY = 2**26
"""Dictionary size of xz -9, in bytes; xz needs about ten times this memory."""


def baselines(documents: Iterable[Document], most_bytes: int = DICTIONARY) -> tuple[Baseline, ...]:
    """Compress concatenated documents with gzip -9 and xz -9e, as a stream.

    Args:
        most_bytes: Upper bound of the text's size. A dictionary larger than the text has no effect.

    Raises:
        ValueError: the text is empty.
    """
    # 16 + 15 bits: the largest window, with gzip's header and checksum.
    compressors: dict[str, Any] = {
        "gzip -9": zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS),
        "xz -9e": lzma.LZMACompressor(
            filters=[
                {
                    "id": lzma.FILTER_LZMA2,
                    "preset": 9 | lzma.PRESET_EXTREME,
                    "dict_size": min(DICTIONARY, max(4096, 1 << (most_bytes - 1).bit_length())),
                }
            ]
        ),
    }
    sizes = dict.fromkeys(compressors, 0)
    num_bytes = 0
    for piece in (piece for document in documents for piece in document.pieces):
        content = piece.encode()
        num_bytes += len(content)
        for name, compressor in compressors.items():
            sizes[name] += len(compressor.compress(content))
    if not num_bytes:
        raise ValueError("there is no text to compress")
    for name, compressor in compressors.items():
        sizes[name] += len(compressor.flush())
    return tuple(Baseline(name, 8 * size / num_bytes, num_bytes) for name, size in sizes.items())
