"""Tokenizers of published layouts: special tokens are no text, ids are the library's, and changes of text are known."""

import json
from pathlib import Path

import pytest
import tokenizers

from archwright.text.bpe import GPT_2_WORDS, byte_names, raw_bytes, spelled
from archwright.text.foreign import parse
from archwright.text.tokenizer import Tokenizer
from tests.text.families import FAMILIES, TEXT


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_read_and_written(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]()
    library = tokenizers.Tokenizer.from_str(family.inner.to_str())
    # From a file, as the library rounds the scores of one once.
    tokenizer = Tokenizer(parse(family.inner.to_str(), name), family.end)
    ids = tokenizer.encode(TEXT)
    assert ids.tolist() == library.encode(TEXT, add_special_tokens=False).ids
    assert (tokenizer.text_change(TEXT, ids) == "") == family.lossless
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert json.loads((tmp_path / "tokenizer.json").read_text()) == json.loads(library.to_str())
    # What the vocabulary lacks, as some lack "<" and all lack "p", is unknown, not special.
    special = {
        tokenizer.special_ids[s]
        for s in family.special
        if not s.lower().strip("<[").startswith("unk")
    }
    for text in (f"a {s} b{s}c" for s in family.special):
        for each in (tokenizer, again):
            assert not special & {*each.encode(text).tolist()}
    allowed = tokenizer.encode(f"a{family.end}b", allowed_special="all").tolist()
    assert allowed.count(tokenizer.end_of_text) == 1


def test_pieces_with_the_score_of_control_pieces_are_no_text() -> None:
    """T5's own: SentencePiece's control pieces have the score 0, above all others."""
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.01)]
    vocab += [(letter, -5.0) for letter in "</s>ab"]
    model = tokenizers.models.Unigram(list(dict(vocab).items()), unk_id=2)
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    inner.decoder = tokenizers.decoders.Metaspace()
    inner.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer = Tokenizer(inner, "</s>")
    tokens = [inner.id_to_token(int(i)) for i in tokenizer.encode("a</s> <unk>")]
    assert tokens == ["▁", "a", "<", "/", "s", ">", "▁", "<", "<unk>", ">"]
    assert tokenizer.decode(tokenizer.encode("a </s>b")) == "a </s>b"


def test_an_unknown_token_that_ends_a_text_is_refused() -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<e>": 1}, unk_token="<e>"))
    inner.add_special_tokens(["<e>"])
    with pytest.raises(ValueError, match='special token "<e>" is also an ordinary word'):
        Tokenizer(inner, "<e>")


def test_gpt_2_splits_contractions() -> None:
    bytes_of = raw_bytes(["<|endoftext|>"]).get_vocab_size() - 1
    vocab = dict(enumerate([*(bytes([b]) for b in range(bytes_of)), b"'t", b"n'"]))
    merges = [(b"n", b"'"), (b"'", b"t")]
    ours = Tokenizer.from_bpe(vocab, [(b"'", b"t"), (b"n", b"'")])
    theirs = Tokenizer.from_bpe(vocab, merges, pattern=GPT_2_WORDS)
    assert ours.encode("don't").tolist() == [*b"don't"]  # a sign and letters are two words
    assert theirs.encode("don't").tolist() == [*b"don", 256]
    # As the library splits for GPT-2, and as a tokenizer.json says it.
    byte_level = tokenizers.Tokenizer.from_str(theirs._inner.to_str())
    byte_level.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    kept = Tokenizer(parse(theirs._inner.to_str(), "t.json"), "<|endoftext|>")
    for text in ("don't", TEXT, "I'll  we've\n\n 12345 x_1 é'S"):
        assert theirs.encode(text).tolist() == byte_level.encode(text).ids
        assert kept.encode(text).tolist() == theirs.encode(text).tolist()
    with pytest.raises(ValueError, match=r"^pattern: "):
        Tokenizer.from_bpe(vocab, merges, pattern="(")


def test_gpt_2s_files_are_read(tmp_path: Path) -> None:
    bytes_of = raw_bytes(["<|endoftext|>"]).get_vocab_size() - 1
    vocab = dict(enumerate([*(bytes([b]) for b in range(bytes_of)), b" t", b" th", b"\xc3\xa9"]))
    merges = [(b" ", b"t"), (b" t", b"h"), (b"\xc3", b"\xa9")]
    names = byte_names()
    words = {spelled(content, names): i for i, content in vocab.items()}
    lines = [" ".join(spelled(part, names) for part in pair) for pair in merges]
    (tmp_path / "vocab.json").write_text(json.dumps(words), "utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *lines, ""]), "utf-8")
    files = tmp_path / "vocab.json", tmp_path / "merges.txt"
    tokenizer = Tokenizer.from_files(*files)
    assert (
        tokenizer.fingerprint == Tokenizer.from_bpe(vocab, merges, pattern=GPT_2_WORDS).fingerprint
    )
    assert tokenizer.decode(tokenizer.encode("caf\u00e9 the")) == "caf\u00e9 the"
    with pytest.raises(ValueError, match=r"none\.json, "):
        Tokenizer.from_files(tmp_path / "none.json", files[1])
