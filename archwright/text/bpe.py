"""Byte-level byte-pair encoding: training, and a faster encoder with the same ids."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tiktoken
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from archwright.spec.errors import UserError
from archwright.text.chunking import pattern_of
from archwright.text.foreign import check_ids

Ids = NDArray[np.uint32]

WORDS = (
    r" ?(?:[\p{L}\p{M}]+|[^\s\p{L}\p{M}\p{N}]+)"  # a word or punctuation, with the space before it
    r"|\p{N}{1,3}"  # up to three digits, as in GPT-4
    r"|\s+(?!\S)|\s"  # whitespace, except for a last space, which belongs to the next word
)
"""Pre-tokenization pattern: GPT-2's without English contractions, which split quoted strings in code.

A word has the same token inside a line and at its start, because the word includes the last space of the
indentation. Patterns that keep the whole indentation together need 6 % fewer tokens, but a small
model of Python source then needs 2 % more bits per byte at an equal number of tokens.
"""
GPT_2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The split pattern of GPT-2 (Radford et al., 2019)."""

LONGEST = 2048
"""Maximum characters of a word in BPE training, since time grows quadratically.

No ordinary word is longer. Longer runs of characters, such as DNA or a line of spaces, are split
into words of this length.
"""
LONG_RUN = re.compile(
    "|".join(f"(?<!{kind}){kind}{{{LONGEST + 1}}}" for kind in (r"[^\W\d_]", r"[^\w\s]", r"\s"))
)


def train_here(
    texts: Iterable[str], vocab_size: int, special_tokens: list[str]
) -> tokenizers.Tokenizer:
    """Train as in `train_bpe`, in this process. Ctrl-C has no effect until the end."""
    if special_tokens:
        border = pattern_of(special_tokens)
        texts = (part for text in texts for part in border.split(text))
    tokenizer = _byte_level(models.BPE(), _words(), pre_tokenizers.FixedLength(length=LONGEST))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = _byte_level(models.BPE(), _words()).pre_tokenizer
    return tokenizer


def has_long_run(text: str) -> bool:
    """True if a word is longer than BPE training allows (`LONGEST`)."""
    words = text.split()
    longest = max(map(len, words), default=0)
    # Cheap bounds first: they clear ordinary text.
    if max(longest, len(text) - sum(map(len, words))) <= LONGEST:
        return False
    return LONG_RUN.search(text) is not None


def bpe_of(
    vocab: Mapping[int, bytes],
    merges: Sequence[tuple[bytes, bytes]],
    special_tokens: Sequence[str],
    pattern: str = WORDS,
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE from a vocabulary and ordered merges.

    Special tokens missing from the vocabulary get the next ids, in order.

    Raises:
        UserError: The vocabulary lacks a byte, a token of a merge, or the result of a merge.
    """
    special = {name.encode() for name in special_tokens}
    tokens = {content for i, content in vocab.items() if content not in special}
    if missing := [byte for byte in range(256) if bytes([byte]) not in tokens]:
        raise UserError(f"the vocabulary has no token for the byte 0x{missing[0]:02x}.")
    for left, right in merges:
        for part in (left, right, left + right):
            if part not in tokens:
                raise UserError(
                    f"the merge of {left!r} and {right!r}: the vocabulary lacks {part!r}."
                )
    names = byte_names()
    ids = {
        content.decode() if content in special else spelled(content, names): i
        for i, content in vocab.items()
    }
    check_ids(ids.items(), "the vocabulary")
    pairs = [(spelled(left, names), spelled(right, names)) for left, right in merges]
    tokenizer = _byte_level(models.BPE(vocab=ids, merges=pairs), _words(pattern))
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def merges_of(tokenizer: tokenizers.Tokenizer) -> list[tuple[bytes, bytes]] | None:
    """Return the ordered merges of a byte-level BPE, or None for other tokenizers."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    values = {name: byte for byte, name in byte_names().items()}
    pairs = [tuple(p if isinstance(p, list) else p.split(" ")) for p in model.get("merges", [])]
    if model["type"] != "BPE" or any(c not in values for pair in pairs for c in "".join(pair)):
        return None
    return [
        (bytes(values[c] for c in left), bytes(values[c] for c in right)) for left, right in pairs
    ]


def raw_bytes(special_tokens: list[str]) -> tokenizers.Tokenizer:
    """Return a tokenizer with UTF-8 bytes as ids, followed by special tokens."""
    names = byte_names()
    tokenizer = _byte_level(models.BPE(vocab={names[b]: b for b in range(256)}, merges=[]))
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def fast_encoding(tokenizer: tokenizers.Tokenizer) -> Callable[[str], Ids] | None:
    """Return a faster encoder with the same ids; None if there is none.

    Raw bytes are copied. A BPE is encoded by tiktoken, about ten times faster; the rank of a merge
    is the id of its result.
    """
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    if len(special) < len(content["added_tokens"]):
        return None
    if _same(content, raw_bytes([])):
        return lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    if not _same(content, _byte_level(models.BPE(), _words()), ignored={"vocab", "merges"}):
        return None
    ranks = _ranks(content["model"]["vocab"], special)
    if ranks is None or not _merges_by_id(tokenizer, ranks):
        return None
    # A special token that never occurs: without any, tiktoken is half as fast.
    never = {"\0" * 8: max(content["model"]["vocab"].values()) + 1}
    fast = tiktoken.Encoding("own", pat_str=WORDS, mergeable_ranks=ranks, special_tokens=never)
    return lambda text: fast.encode_to_numpy(text, disallowed_special=())


def _merges_by_id(tokenizer: tokenizers.Tokenizer, ranks: dict[bytes, int]) -> bool:
    """True if merging by lowest resulting id equals merging in order.

    This holds if ids rise with the merges and each token's bytes merge into that token. Every
    trained BPE has both properties; a vocabulary made by hand may lack them.
    """
    ids = [ranks.get(left + right, -1) for left, right in merges_of(tokenizer) or []]
    rise = all(before < after for before, after in pairwise(ids))
    names = byte_names()
    return rise and all(len(tokenizer.model.tokenize(spelled(t, names))) == 1 for t in ranks)


def _ranks(vocab: dict[str, int], special: Collection[str]) -> dict[bytes, int] | None:
    """Return ids by token bytes. None if a token is not bytes or a byte is missing."""
    values = {name: byte for byte, name in byte_names().items()}
    tokens = [token for token in vocab if token not in special]
    if any(char not in values for token in tokens for char in token):
        return None
    ranks = {bytes(values[char] for char in token): vocab[token] for token in tokens}
    return ranks if all(bytes([byte]) in ranks for byte in range(256)) else None


def _same(
    content: dict[str, Any], other: tokenizers.Tokenizer, ignored: Collection[str] = ()
) -> bool:
    """True if a serialised tokenizer equals `other`. Keys of the model in `ignored` may differ."""
    expected = json.loads(other.to_str())
    parts = [(content[part], expected[part]) for part in ("normalizer", "pre_tokenizer")]
    keys = (content["model"].keys() | expected["model"].keys()) - set(ignored)
    parts += [(content["model"].get(key), expected["model"].get(key)) for key in keys]
    return all(value == reference for value, reference in parts)


def byte_names() -> dict[int, str]:
    """Return the printable character of each byte in a byte-level vocabulary.

    Source: `bytes_to_unicode` of GPT-2 (Radford et al., 2019).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    unprintable = (byte for byte in range(256) if byte not in names)
    return names | {byte: chr(256 + i) for i, byte in enumerate(unprintable)}


def spelled(content: bytes, names: Mapping[int, str]) -> str:
    """Return bytes in the spelling of a byte-level vocabulary."""
    return "".join(names[byte] for byte in content)


def _words(pattern: str = WORDS) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def _byte_level(model: models.BPE, *splits: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes]) if splits else to_bytes
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
