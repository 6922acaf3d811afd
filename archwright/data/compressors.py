"""Bits per byte of general compressors on a text: the mark for a language model to beat."""

import lzma
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from archwright.text.corpus import Document


class Baseline(NamedTuple):
    """A compressor's size for a text, in bits per byte of it."""

    name: str
    bits_per_byte: float
    num_bytes: int


DICTIONARY = 2**26
"""Bytes of xz's dictionary at -9: beside it come ten times as many, which a shorter text does not need."""


def baselines(documents: Iterable[Document], most_bytes: int = DICTIONARY) -> tuple[Baseline, ...]:
    """Return what gzip -9 and xz -9e reach on the concatenation of documents, read as a stream.

    Args:
        most_bytes: that there may be. A dictionary as large as the text finds all that a larger one does.

    Raises:
        ValueError: there is no text.
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
