"""Byte-level byte-pair encoding: training it on text, and a faster way to compute the same ids."""

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
    r" ?(?:[\p{L}\p{M}]+|[^\s\p{L}\p{M}\p{N}]+)"  # a word or signs, and the blank before them
    r"|\p{N}{1,3}"  # digits by threes, as GPT-4 has them
    r"|\s+(?!\S)|\s"  # blanks and line ends, but for the last blank, which is the next word's
)
"""How text is split before pairs are merged: GPT-2's way, less its English contractions, which
would tear quoted strings apart in code.

A word is the same token within a line and at its start, as its blank may be the last one of the
indentation. Splits that keep the whole indentation together make 6 % fewer tokens, but a small
model on Python's source then needs 2 % more bits per byte at an equal number of tokens.
"""
GPT_2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The split pattern of GPT-2 (Radford et al., 2019)."""

LONGEST = 2048
"""Characters of a word when a BPE is trained: the library's time grows with the square of them.

No ordinary text has a word of as many; long runs without any border, such as DNA or a line of blanks,
are trained on as words of this length.
"""
LONG_RUN = re.compile(
    "|".join(f"(?<!{kind}){kind}{{{LONGEST + 1}}}" for kind in (r"[^\W\d_]", r"[^\w\s]", r"\s"))
)


def train_here(
    texts: Iterable[str], vocab_size: int, special_tokens: list[str]
) -> tokenizers.Tokenizer:
    """Train in this process, which hears no Ctrl-C meanwhile; see `train_bpe` in `bpe_training`."""
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
    """Tell whether some word of a text is longer than those that a BPE is trained on."""
    words = text.split()
    longest = max(map(len, words), default=0)
    # Cheap bounds first: ordinary text has neither.
    if max(longest, len(text) - sum(map(len, words))) <= LONGEST:
        return False
    return LONG_RUN.search(text) is not None


def bpe_of(
    vocab: Mapping[int, bytes],
    merges: Sequence[tuple[bytes, bytes]],
    special_tokens: Sequence[str],
    pattern: str = WORDS,
) -> tokenizers.Tokenizer:
    """Return the byte-level BPE of a vocabulary and its merges, the first merged first.

    Special tokens that the vocabulary lacks follow it, in order.

    Raises:
        UserError: a merge of tokens, or into one, that the vocabulary lacks, or a byte it lacks.
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
    """Return the merges of a byte-level BPE, the first merged first; None of any other tokenizer."""
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    values = {name: byte for byte, name in byte_names().items()}
    pairs = [tuple(p if isinstance(p, list) else p.split(" ")) for p in model.get("merges", [])]
    if model["type"] != "BPE" or any(c not in values for pair in pairs for c in "".join(pair)):
        return None
    return [
        (bytes(values[c] for c in left), bytes(values[c] for c in right)) for left, right in pairs
    ]


def raw_bytes(special_tokens: list[str]) -> tokenizers.Tokenizer:
    """Return the tokenizer whose ids are the bytes of UTF-8; special tokens follow them."""
    names = byte_names()
    tokenizer = _byte_level(models.BPE(vocab={names[b]: b for b in range(256)}, merges=[]))
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer


def fast_encoding(tokenizer: tokenizers.Tokenizer) -> Callable[[str], Ids] | None:
    """Return a faster way to the ids of a tokenizer that was made here, or None for any other.

    For BPE it is tiktoken with a merge's rank being the id of its result, which gives equal ids
    about ten times faster.
    """
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    special = {token["content"] for token in content["added_tokens"] if token["special"]}
    if len(special) < len(content["added_tokens"]):
        return None
    if _same(content, raw_bytes([])):
        return lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
    if not _same(content, _byte_level(models.BPE(), _words()), besides={"vocab", "merges"}):
        return None
    ranks = _ranks(content["model"]["vocab"], special)
    if ranks is None or not _merges_by_id(tokenizer, ranks):
        return None
    # One special token that is never allowed: with none at all tiktoken is half as fast.
    never = {"\0" * 8: max(content["model"]["vocab"].values()) + 1}
    fast = tiktoken.Encoding("own", pat_str=WORDS, mergeable_ranks=ranks, special_tokens=never)
    return lambda text: fast.encode_to_numpy(text, disallowed_special=())


def _merges_by_id(tokenizer: tokenizers.Tokenizer, ranks: dict[bytes, int]) -> bool:
    """Tell whether merging what gives the lowest id is the same as merging in the order of the merges.

    So it is if ids rise with the merges and each token is what its own bytes are merged to, which holds
    of every BPE that was trained; a vocabulary made by hand may have neither.
    """
    ids = [ranks.get(left + right, -1) for left, right in merges_of(tokenizer) or []]
    rise = all(before < after for before, after in pairwise(ids))
    names = byte_names()
    return rise and all(len(tokenizer.model.tokenize(spelled(t, names))) == 1 for t in ranks)


def _ranks(vocab: dict[str, int], special: Collection[str]) -> dict[bytes, int] | None:
    """Return the bytes of each token with its id; None where some are no bytes, or bytes are missing."""
    values = {name: byte for byte, name in byte_names().items()}
    tokens = [token for token in vocab if token not in special]
    if any(char not in values for token in tokens for char in token):
        return None
    ranks = {bytes(values[char] for char in token): vocab[token] for token in tokens}
    return ranks if all(bytes([byte]) in ranks for byte in range(256)) else None


def _same(
    content: dict[str, Any], other: tokenizers.Tokenizer, besides: Collection[str] = ()
) -> bool:
    """Tell whether a serialised tokenizer is made like another one."""
    expected = json.loads(other.to_str())
    parts = [(content[part], expected[part]) for part in ("normalizer", "pre_tokenizer")]
    keys = (content["model"].keys() | expected["model"].keys()) - set(besides)
    parts += [(content["model"].get(key), expected["model"].get(key)) for key in keys]
    return all(found == wanted for found, wanted in parts)


def byte_names() -> dict[int, str]:
    """Return the printable character that stands for each byte in a byte-level vocabulary.

    Source: `bytes_to_unicode` of GPT-2 (Radford et al., 2019).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in names)
    return names | {byte: chr(256 + i) for i, byte in enumerate(others)}


def spelled(content: bytes, names: Mapping[int, str]) -> str:
    """Return bytes as a byte-level vocabulary spells them."""
    return "".join(names[byte] for byte in content)


def _words(pattern: str = WORDS) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


def _byte_level(model: models.BPE, *splits: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes]) if splits else to_bytes
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
