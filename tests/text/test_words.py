"""Tokens that are words."""

from pathlib import Path

from archwright.text.tokenizer import Tokenizer
from archwright.text.words import word_tokenizer

WORDS = ("k0", "k1", "v0", "blank")


def test_ids_are_places_and_text_comes_back(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(WORDS)
    assert tokenizer.encode("v0 k1  k0\nblank").tolist() == [2, 1, 0, 3]
    assert tokenizer.decode([2, 1, 0, 3]) == "v0 k1 k0 blank"
    assert (tokenizer.end_of_text, tokenizer.vocab_size) == (5, 6)
    # What is no word, even the name of end-of-text, is a token that no example has.
    assert tokenizer.encode("k2 <|endoftext|>").tolist() == [4, 4]
    tokenizer.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
