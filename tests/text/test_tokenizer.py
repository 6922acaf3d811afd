"""Ids are those of the saved tokenizer.json, text comes back, special tokens are borders only."""

import json
import tracemalloc
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from archwright.spec.errors import UserError
from archwright.text.bpe import WORDS, raw_bytes
from archwright.text.bpe_training import train_bpe
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer

END = "<|endoftext|>"
CODE = Path(np.__file__).read_text("utf-8") + PROBE
BPE = Tokenizer(train_bpe([CODE], 900, [END, "<|pad|>"]), END)
BYTES = Tokenizer(raw_bytes([END]), END)

TEXT = st.one_of(
    st.text(max_size=80),
    st.text(alphabet="ab \n\t'1_(=)é中\0", max_size=80),
    st.lists(st.sampled_from(CODE.split(" ")), max_size=30).map(" ".join),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_fast_ids_are_those_of_the_saved_file(text: str) -> None:
    assert BPE.is_fast
    plain = tokenizers.Tokenizer.from_str(BPE._inner.to_str())
    plain.encode_special_tokens = True
    assert BPE.encode(text).tolist() == plain.encode(text, add_special_tokens=False).ids


@pytest.mark.slow
def test_every_character_is_classified_alike_by_both_libraries() -> None:
    # Unicode tables of another version would show here, in ids of words with that character.
    blocks = (range(0x21, 0xD800), range(0xE000, 0x3400 << 2), range(0x1F000, 0x20000))
    texts = [
        f"a{chr(c)}a 1{chr(c)} ={chr(c)}=\n{chr(c)}  {chr(c)} x" for b in blocks for c in b[::3]
    ]
    plain = tokenizers.Tokenizer.from_str(BPE._inner.to_str())
    fast = BPE.encode_many(texts)
    slow = plain.encode_batch_fast(texts, add_special_tokens=False)
    assert [t for t, f, s in zip(texts, fast, slow, strict=True) if f.tolist() != s.ids] == []


@pytest.mark.sampled(fast=1)
@pytest.mark.parametrize("tokenizer", [BPE, BYTES], ids=["bpe", "bytes"])
@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_lengths is not None
    assert tokenizer.token_lengths[ids].sum() == len(text.encode())


@pytest.mark.parametrize("tokenizer", [BPE, BYTES], ids=["bpe", "bytes"])
def test_text_that_spells_a_special_token_is_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"a{END}b<|pad|>")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == f"a{END}b<|pad|>"


def test_special_tokens_decode_to_nothing_unless_asked_for() -> None:
    ids = [BPE.end_of_text, *BPE.encode("a b"), BPE.end_of_text, 10**6]
    assert BPE.decode(ids) == "a b"
    assert BPE.decode(ids, keep_special=True) == f"{END}a b{END}"


def test_raw_bytes_are_their_own_ids() -> None:
    assert BYTES.encode("é\n").tolist() == list("é\n".encode())
    assert (BYTES.vocab_size, BYTES.end_of_text) == (257, 256)


def test_ids_cut_in_a_character_decode_to_a_replacement() -> None:
    assert BYTES.decode(list("aé".encode()[:2])) == "a\ufffd"


def test_many_texts_are_encoded_as_each() -> None:
    texts = ["one", "", "two\n three", PROBE]
    for tokenizer in (BPE, BYTES):
        many = tokenizer.encode_many(texts)
        assert [m.tolist() for m in many] == [tokenizer.encode(t).tolist() for t in texts]


def test_a_lone_surrogate_is_refused() -> None:
    for tokenizer in (BPE, BYTES):
        with pytest.raises(UserError, match="half a character"):
            tokenizer.encode("a\ud800")


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    for tokenizer in (BPE, BYTES):
        tokenizer.save(tmp_path / "t")
        again = Tokenizer.load(tmp_path / "t")
        assert again.fingerprint == tokenizer.fingerprint
        assert again.encode(PROBE).tolist() == tokenizer.encode(PROBE).tolist()
        assert (again.end_of_text, again.is_fast) == (tokenizer.end_of_text, True)


@pytest.mark.slow
def test_a_saved_folder_is_opened_by_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    BPE.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.eos_token_id == BPE.end_of_text
    assert theirs.encode(CODE[:5000]) == BPE.encode(CODE[:5000]).tolist()


def test_an_empty_or_broken_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<e>"}')
    (tmp_path / "tokenizer.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"is not a tokenizer\.json"):
        Tokenizer.load(tmp_path)
    for content in ("[]", "3", "[" * 100_000, "\xff", '{"eos_token": 1}'):
        (tmp_path / "tokenizer_config.json").write_text(content, "latin-1")
        with pytest.raises(UserError):
            Tokenizer.load(tmp_path)


def test_a_token_to_begin_with_is_in_the_vocabulary() -> None:
    with pytest.raises(UserError, match='no token "<s>" to begin a text with'):
        Tokenizer(raw_bytes([END]), END, "<s>")
    begins = Tokenizer(raw_bytes([END, "<s>"]), END, "<s>")
    assert (begins.begin_of_text, begins.end_of_text) == (257, 256)
    assert (BYTES.begin_of_text, BYTES.begin_of_text_name) == (256, END)


def test_a_missing_end_of_text_names_the_likely_ones() -> None:
    inner = raw_bytes(["<s>", "</s>", "<|im_end|>"])
    with pytest.raises(UserError) as caught:
        Tokenizer(inner, END)
    assert str(caught.value) == (
        f'data.tokenizer.end_of_text: the vocabulary has no token "{END}". '
        'Name the one that ends a text (special tokens there: "</s>", "<|im_end|>").'
    )


def test_a_special_token_that_is_a_word_is_refused() -> None:
    inner = train_bpe(["the the the"] * 9, 400, [END])
    inner.add_special_tokens(["the"])
    with pytest.raises(UserError, match=r'the special token "the" is also an ordinary word'):
        Tokenizer(inner, END)
    assert Tokenizer(train_bpe(["the the the"] * 9, 400, [END, "the"]), END).encode("the").size == 3


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(UserError, match="need at least 258"):
        train_bpe(["text"], 257, [END, "<|pad|>"])


def foreign(kind: str) -> tokenizers.Tokenizer:
    """A tokenizer of another make, trained on the probe."""
    if kind == "wordpiece":  # loses case and blanks
        inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        inner.normalizer = normalizers.BertNormalizer()
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", "[SEP]"])
    elif kind == "sentencepiece":  # blanks are letters, merges cross words
        inner = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        inner.normalizer = normalizers.Replace(" ", "▁")
        inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
        special = ["<unk>", "</s>"]
        alphabet = [chr(c) for c in range(33, 127)]
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet
        )
    else:  # GPT-2's own splitting, with truncation switched on and an added token
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=[END], initial_alphabet=alphabet
        )
        inner.enable_truncation(7)
        inner.enable_padding(length=9)
    trainer.show_progress = False
    inner.train_from_iterator([PROBE], trainer)
    return inner


def test_a_gpt2_tokenizer_is_taken_without_its_truncation_and_padding() -> None:
    tokenizer = Tokenizer(foreign("gpt2"), END)
    assert not tokenizer.is_fast
    assert tokenizer._cuts
    assert tokenizer.decode(tokenizer.encode(CODE)) == CODE
    assert tokenizer.token_bytes is not None


def test_a_tokenizer_that_joins_words_gets_documents_whole() -> None:
    tokenizer = Tokenizer(foreign("sentencepiece"), "</s>")
    assert not tokenizer._cuts
    assert list(tokenizer.whole(["a ", "b"])) == ["a b"]
    text = "the words of a text " * 50
    assert tokenizer.encode(text).tolist() == tokenizer._inner.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_that_loses_text_does_not_count_its_bytes() -> None:
    tokenizer = Tokenizer(foreign("wordpiece"), "[SEP]")
    assert tokenizer.token_bytes is None
    assert tokenizer.token_lengths is None
    assert tokenizer.decode(tokenizer.encode("Hello")) == "hello"


def test_an_added_token_across_a_border_forbids_cutting() -> None:
    inner = train_bpe([PROBE], 400, [END])
    assert Tokenizer(inner, END)._cuts
    inner.add_tokens(["<tag>"])
    tokenizer = Tokenizer(inner, END)
    assert not tokenizer._cuts
    assert len(tokenizer.encode("<tag>")) == 1
    assert tokenizer.decode(tokenizer.encode("x<tag> y")) == "x<tag> y"


def test_a_fast_path_that_differs_is_given_up() -> None:
    tokenizer = Tokenizer(train_bpe([CODE], 600, [END]), END)
    wrong = np.zeros(3, np.uint32)
    tokenizer._fast = lambda text: wrong
    tokenizer.check("some words")
    assert not tokenizer.is_fast
    assert tokenizer.decode(tokenizer.encode("some words")) == "some words"


def test_words_are_split_as_described() -> None:
    split = pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated")
    text = "def f(x):\n    return x_1 + 12345  # it's\n\n\ny"
    parts = [part for part, _ in split.pre_tokenize_str(text)]
    assert parts == [
        "def", " f", "(", "x", "):", "\n   ", " return", " x", "_", "1", " +", " ", "123", "45",
        " ", " #", " it", "'", "s", "\n\n", "\n", "y",
    ]  # fmt: skip


def test_a_vocabulary_and_its_merges_make_the_tokenizer_again() -> None:
    again = Tokenizer.from_bpe(BPE.vocab, BPE.merges, [END, "<|pad|>"])
    assert again.fingerprint == BPE.fingerprint
    assert again.is_fast
    assert again.encode(CODE).tolist() == BPE.encode(CODE).tolist()
    assert (again.vocab, again.merges) == (BPE.vocab, BPE.merges)
    assert BPE.vocab[BPE.end_of_text] == END.encode()
    assert all(left + right in BPE.vocab.values() for left, right in BPE.merges)


def test_bytes_have_a_vocabulary_and_no_merges() -> None:
    assert BYTES.merges == []
    assert BYTES.vocab == {**{i: bytes([i]) for i in range(256)}, 256: END.encode()}
    made = Tokenizer.from_bpe({i: bytes([i]) for i in range(256)}, [])
    assert made.encode("é").tolist() == [195, 169]
    assert made.vocab == BYTES.vocab


def test_merges_are_done_in_their_order() -> None:
    vocab = dict(enumerate([*(bytes([b]) for b in range(256)), b"ab", b"bc", b"abc"]))
    first = Tokenizer.from_bpe(vocab, [(b"a", b"b"), (b"ab", b"c"), (b"b", b"c")])
    assert first.encode("abcbc").tolist() == [258, 257]
    assert first.end_of_text == 259
    other = Tokenizer.from_bpe(vocab, [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")])
    assert other.encode("abc").tolist() == [ord("a"), 257]
    assert (first.is_fast, other.is_fast) == (False, False)  # the fast way goes by ids
    unreachable = Tokenizer.from_bpe(vocab, [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")])
    assert unreachable.encode("abc").tolist() == [256, ord("c")]
    assert not unreachable.is_fast


@pytest.mark.parametrize(
    ("vocab", "merges", "special", "line"),
    [
        ({0: b"a"}, [], [END], "the vocabulary has no token for the byte 0x00"),
        ({i: bytes([i]) for i in range(256)}, [(b"a", b"b")], [END], "the vocabulary lacks b'ab'"),
        ({i: bytes([i]) for i in range(256)}, [], [], "found none; expected the token that ends"),
        ({i << 24: bytes([i]) for i in range(256)}, [], [END], "expected ids without wide gaps"),
    ],
)
def test_a_wrong_vocabulary_is_refused(
    vocab: dict[int, bytes], merges: list[tuple[bytes, bytes]], special: list[str], line: str
) -> None:
    with pytest.raises(UserError, match=line):
        Tokenizer.from_bpe(vocab, merges, special)


def test_foreign_tokenizers_have_no_vocabulary_of_bytes() -> None:
    tokenizer = Tokenizer(foreign("wordpiece"), "[SEP]")
    with pytest.raises(UserError, match="normalises its text"):
        _ = tokenizer.vocab
    with pytest.raises(UserError, match="no byte-level BPE"):
        _ = tokenizer.merges
    gpt2 = Tokenizer(foreign("gpt2"), END)
    assert len(gpt2.merges) == 400 - 257
    assert gpt2.vocab[0] == END.encode()


def test_special_tokens_in_text_are_encoded_when_allowed() -> None:
    text = f"a{END}b <|pad|>c"
    end, pad = BPE.end_of_text, 1
    a, b, c = ([*BPE.encode(part)] for part in ("a", "b ", "c"))
    assert BPE.encode(text, allowed_special="all").tolist() == [*a, end, *b, pad, *c]
    b = [*BPE.encode("b <|pad|>c")]
    assert BPE.encode(text, allowed_special={END}).tolist() == [*a, end, *b]
    assert BPE.encode(text, allowed_special=[]).tolist() == BPE.encode(text).tolist()
    assert BPE.decode(BPE.encode(text, allowed_special="all"), keep_special=True) == text
    with pytest.raises(UserError, match=r'"<pad>" is no special token\. Did you mean "<|pad|>"'):
        BPE.encode(text, allowed_special=["<pad>"])
    with pytest.raises(UserError, match='expected "all" or names'):
        BPE.encode(text, allowed_special=END)


def test_of_special_tokens_that_begin_alike_the_longest_counts() -> None:
    tokenizer = Tokenizer.from_bpe(BYTES.vocab, [], [END, "<a>", "<a><a>"])
    ids = [256, 257, 258]
    texts = {"<a>": [257], "<a><a>": [258], "<a><a><a>": [258, 257], f"<a>{END}<a": [257, 256]}
    for text, expected in texts.items():
        found = tokenizer.encode(text, allowed_special="all").tolist()
        assert [i for i in found if i in ids] == expected
        for cut in range(len(text)):
            parts = [text[:cut], text[cut:]]
            assert list(tokenizer.encode_iterable(parts, allowed_special="all")) == found


@pytest.mark.parametrize("tokenizer", [BPE, BYTES], ids=["bpe", "bytes"])
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.one_of(TEXT, st.sampled_from([END, END[:5], END[5:]])), max_size=6))
def test_texts_are_encoded_as_if_joined(tokenizer: Tokenizer, texts: list[str]) -> None:
    for allowed in ((), "all"):
        whole = tokenizer.encode("".join(texts), allowed_special=allowed).tolist()
        assert list(tokenizer.encode_iterable(texts, allowed_special=allowed)) == whole


@pytest.mark.slow
def test_a_stream_is_encoded_in_little_memory() -> None:
    lines = (f"line {i} of a text that has no end\n" for i in count())
    ids = BPE.encode_iterable(lines, allowed_special="all")
    tracemalloc.start()
    assert len(list(islice(ids, 1_000_000))) == 1_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 1_000_000 + 40_000_000  # the list above, and a few pieces


@pytest.mark.parametrize(
    ("around", "frame"),
    [
        (None, ((), (257,))),  # a file that says nothing: the end of a text behind it
        (["$A", "</s>"], ((), (257,))),
        (["<s>", "$A", "</s>"], ((256,), (257,))),
        (["<s>", "$A"], ((256,), (257,))),
        (["$A", "</s>", "<s>"], ((), (257, 256))),
    ],
)
def test_what_is_put_around_a_text(
    around: list[str] | None, frame: tuple[tuple[int, ...], tuple[int, ...]], tmp_path: Path
) -> None:
    inner = raw_bytes(["<s>", "</s>"])
    if around:
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=around, special_tokens=[("<s>", 256), ("</s>", 257)]
        )
    tokenizer = Tokenizer(inner, "</s>")
    assert tokenizer.frame == frame
    tokenizer.exported(258, 8, has_source=True).save(tmp_path)
    assert Tokenizer.load(tmp_path).frame == frame


@pytest.mark.parametrize(
    ("named", "start"),
    [
        ({}, (257, 256)),
        ({"decoder_start_token_id": 256}, (256, 256)),
        ({"decoder_start_token_id": 3, "forced_bos_token_id": 5}, (3, 5)),
    ],
)
def test_what_a_decoder_reads_first(named: dict[str, int], start: tuple[int, ...]) -> None:
    inner = raw_bytes(["<s>", "</s>"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=["<s>", "$A", "</s>"], special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    files = {"token_ids.json": json.dumps(named)}
    assert Tokenizer(inner, "</s>", files=files).decoder_start == start
