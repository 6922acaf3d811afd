"""The spec's tokenizer is trained once, on the training part, and kept."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from archwright.spec.data import DataSpec, TokenizerSpec
from archwright.spec.errors import UserError
from archwright.text import open_tokenizer as module
from archwright.text.bpe import raw_bytes
from archwright.text.corpus import Documents, open_corpus, open_texts
from archwright.text.open_tokenizer import open_tokenizer, sample


@pytest.fixture
def documents(tmp_path: Path) -> Documents:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"the line number {i}\n" for i in range(2000)))
    return open_texts((str(path),), DataSpec())


def test_a_bpe_is_trained_once(
    documents: Documents, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_tokenizer(TokenizerSpec(vocab_size=300), documents)
    assert first.vocab_size == 300
    assert len(list((cache / "tokenizers").glob("*.json"))) == 1

    def never(*args: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(module, "train_bpe", never)
    assert open_tokenizer(TokenizerSpec(vocab_size=300), documents).fingerprint == first.fingerprint
    with pytest.raises(AssertionError, match="trained again"):
        open_tokenizer(TokenizerSpec(vocab_size=301), documents)


def test_held_out_text_is_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("common words here\n" * 900 + "zyzzyva zyzzyva\n" * 100)
    corpus = open_corpus(DataSpec(text=(str(path),)))
    tokenizer = open_tokenizer(TokenizerSpec(vocab_size=400), corpus.train)
    assert tokenizer.token_bytes is not None
    assert not any(b"zyz" in token for token in tokenizer.token_bytes)
    assert any(b"common" in token for token in tokenizer.token_bytes)


def test_special_tokens_of_the_spec_are_in_the_vocabulary(documents: Documents) -> None:
    for kind in ("bpe", "bytes"):
        spec = TokenizerSpec(
            kind=kind, vocab_size=300, end_of_text="<|end|>", special_tokens=("<|user|>", "<|end|>")
        )
        tokenizer = open_tokenizer(spec, documents)
        text = tokenizer.decode(range(tokenizer.vocab_size), keep_special=True)
        assert "<|user|>" in text
        assert text.count("<|end|>") == 1


def test_a_sample_is_even_and_within_its_limit(tmp_path: Path) -> None:
    for i in range(100):
        (tmp_path / f"{i:02}.txt").write_text(f"{i:02} " + "x" * 97)
    documents = open_texts((str(tmp_path),), DataSpec())
    taken = [int(text[:2]) for text in sample(documents, 2000)]
    assert len(taken) == 20
    gaps = {b - a for a, b in pairwise(taken)}
    assert gaps == {5}
    assert len(list(sample(documents, 10**9))) == 100


def test_a_file_is_opened_from_its_path_or_folder(documents: Documents, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(raw_bytes(["</s>"]).to_str())
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        spec = TokenizerSpec(kind="file", path=str(path), end_of_text="</s>")
        assert open_tokenizer(spec, documents).vocab_size == 257


def test_special_tokens_are_added_to_a_file(documents: Documents, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(raw_bytes(["</s>"]).to_str())
    spec = TokenizerSpec(
        kind="file", path=str(tmp_path), end_of_text="</s>", special_tokens=("<|user|>",)
    )
    tokenizer = open_tokenizer(spec, documents)
    assert tokenizer.vocab_size == 258
    assert tokenizer.decode([257], keep_special=True) == "<|user|>"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", 'kind = "file" needs the path'),
        ("tokeniser.json", 'there is no file "tokeniser.json". Did you mean "tokenizer.json"?'),
        ("text.txt", '"text.txt" is not a tokenizer.json'),
        ("nowhere/tokenizer.json", "there is no file"),
    ],
)
def test_a_wrong_path_is_told(
    documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text(raw_bytes(["</s>"]).to_str())
    (tmp_path / "text.txt").write_text("no tokenizer")
    with pytest.raises(UserError) as caught:
        open_tokenizer(TokenizerSpec(kind="file", path=path), documents)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unwritable_cache_is_told(
    documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ARCHWRIGHT_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        UserError, match=f"{tmp_path}/file.* cannot be written: .* Set ARCHWRIGHT_CACHE to"
    ):
        open_tokenizer(TokenizerSpec(vocab_size=300), documents)


def test_the_path_of_a_tokenizer_is_checked(documents: Documents, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, line in (
        ("~nobody-here/x", "data.tokenizer.path: .*no home folder is known"),
        (str(tmp_path / "pipe"), 'data.tokenizer.path: ".*pipe" is a pipe; expected a tokenizer'),
        (str(tmp_path / "none"), "data.tokenizer.path: there is no file"),
    ):
        with pytest.raises(UserError, match=line):
            open_tokenizer(TokenizerSpec(kind="file", path=path), documents)
