"""Pieces are the text, do not depend on how it was read, and encode as the whole does."""

from collections.abc import Iterator

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, pre_tokenizers, trainers

from archwright.text.bpe_training import train_bpe
from archwright.text.chunking import pieces
from archwright.text.selfcheck import PROBE

NASTY = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "\r\n",
                "\n",
                "\r",
                "\n\n",
                " ",
                "  ",
                "    ",
                "\t",
                "\u00a0",
                "\u3000",
                "\x1c",
                "\x85",
            ]
        ),
        st.sampled_from(["'s", "'ll", "I'm", "can't", "'", '"', "''", "don't'"]),
        st.sampled_from(["1", "12345678", "3.14", "½", "²", "٣", "Ⅷ"]),
        st.sampled_from(["the", "self", "Ünï", "中文", "привет", "cafe\u0301", "नमस्ते", "\u0301"]),
        st.sampled_from(
            ["_", "__x__", "(", "):", "=", "//", "->", "，", "。", "…", "😀", "\u200d"]
        ),
        st.sampled_from(["<|endoftext|>", "<|", "</s>"]),
        st.text(max_size=3),
    ),
    max_size=40,
).map("".join)

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt4": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def trained(pattern: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PROBE] * 3, trainer)
    return tokenizer


ALL = {name: trained(pattern) for name, pattern in PATTERNS.items()}
ALL["own"] = train_bpe([PROBE] * 3, 600, ["<|endoftext|>"])
ALL["own"].encode_special_tokens = True


def blocks(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=150, deadline=None)
@given(text=NASTY, target=st.integers(1, 20))
def test_pieces_encode_as_the_whole(name: str, text: str, target: int) -> None:
    encode = ALL[name].encode
    cut = list(pieces([text], target, limit=10_000))
    assert [i for piece in cut for i in encode(piece).ids] == encode(text).ids


@settings(max_examples=200)
@given(text=NASTY, size=st.integers(1, 9), target=st.integers(1, 8), limit=st.integers(9, 30))
def test_pieces_depend_on_the_text_alone(text: str, size: int, target: int, limit: int) -> None:
    cut = list(pieces(blocks(text, size), target, limit))
    assert cut == list(pieces([text], target, limit))
    assert "".join(cut) == text
    assert all(0 < len(piece) <= limit for piece in cut)


def test_the_probe_is_cut_often() -> None:
    assert len(list(pieces([PROBE], 8, 10_000))) > 50


@pytest.mark.parametrize("sign", ["a", "中", " ", "\n", "1", "="])
def test_text_without_a_border_is_cut_at_the_limit(sign: str) -> None:
    cut = list(pieces([sign] * 5000, target=100, limit=1000))
    assert "".join(cut) == sign * 5000
    assert max(map(len, cut)) == 1000


def test_pieces_have_about_the_target_size() -> None:
    cut = list(pieces(["some words and a line\n" * 10_000], target=1000, limit=4000))
    assert all(900 < len(piece) <= 1000 for piece in cut[:-1])
