"""Tokenizers of foreign folders: ids as in transformers, what begins a text, and what cannot be read."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from archwright import hf
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.generation.writing import stream
from archwright.hf.tokenizers import read_tokenizer
from archwright.model.build import build
from archwright.runs import RunFolder
from archwright.runs.load import OpenRun
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.text.corpus import open_texts
from archwright.text.selfcheck import PROBE
from archwright.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
TEXT = PROBE.replace("<|endoftext|>", "") + Path(transformers.__file__).read_text("utf-8")[:20_000]


def trained(special: list[str], *, begin: str = "", size: int = 400) -> tokenizers.Tokenizer:
    """Return a byte-level BPE as GPT-2 has it; `begin` is what it puts before a text."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TEXT], trainer)
    if begin:
        inner.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, inner.token_to_id(begin))]
        )
    return inner


def write(folder: Path, inner: tokenizers.Tokenizer, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path, vocab_size: int = 1000) -> Tokenizer:
    found = read_tokenizer(folder, vocab_size)
    assert found is not None
    return found


def names(tokenizer: Tokenizer) -> tuple[str, str]:
    return tokenizer.begin_of_text_name, tokenizer.end_of_text_name


LLAMA_3 = trained(["<|begin_of_text|>", "<|end_of_text|>"], begin="<|begin_of_text|>")
GEMMA = trained(["<pad>", "<eos>", "<bos>"])
GPT_2 = trained(["<|endoftext|>"])


def test_what_begins_a_text_is_what_the_tokenizer_puts_there(tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA_3, eos_token="<|end_of_text|>", bos_token="<|begin_of_text|>")
    tokenizer = read(folder)
    assert names(tokenizer) == ("<|begin_of_text|>", "<|end_of_text|>")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)("def f").input_ids
    assert theirs == [tokenizer.begin_of_text, *tokenizer.encode("def f")]


def test_the_config_says_whether_a_text_begins_with_a_token(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "<eos>"}, "bos_token": {"content": "<bos>"}}
    adds = read(write(tmp_path / "yes", GEMMA, **config, add_bos_token=True))
    assert names(adds) == ("<bos>", "<eos>")
    assert names(read(write(tmp_path / "silent", GEMMA, **config))) == ("<eos>", "<eos>")
    llama = {"eos_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>"}
    without = read(write(tmp_path / "no", LLAMA_3, **llama, add_bos_token=False))
    assert names(without) == ("<|end_of_text|>", "<|end_of_text|>")


def test_a_text_that_ends_with_a_token_does_not_begin_with_it(tmp_path: Path) -> None:
    inner = trained(["<eos>"])
    inner.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", inner.token_to_id("<eos>"))]
    )
    tokenizer = read(write(tmp_path, inner, eos_token="<eos>"))
    assert names(tokenizer) == ("<eos>", "<eos>")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_the_first_known_id_of_a_list_ends_a_text(file: str, tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA_3)
    (folder / file).write_text('{"eos_token_id": [999999, 1, 0]}')
    assert read(folder).end_of_text_name == "<|end_of_text|>"


def test_saved_and_loaded_it_begins_texts_alike(tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path / "a", LLAMA_3, eos_token="<|end_of_text|>"))
    tokenizer.save(tmp_path / "b")
    again = Tokenizer.load(tmp_path / "b")
    assert names(again) == names(tokenizer)
    assert again.fingerprint == tokenizer.fingerprint
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    assert theirs("a").input_ids == [again.begin_of_text, *again.encode("a")]
    plain = Tokenizer(LLAMA_3, "<|end_of_text|>")
    assert plain.fingerprint != tokenizer.fingerprint
    plain.save(tmp_path / "c")
    assert "bos_token" not in json.loads((tmp_path / "c" / "tokenizer_config.json").read_text())


def test_documents_begin_with_it_and_are_told_apart_by_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer(LLAMA_3, "<|end_of_text|>", "<|begin_of_text|>")
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text(f"text {i}")
    store = prepare_documents(open_texts((str(tmp_path),), DataSpec()), tokenizer, tmp_path / "s")
    assert isinstance(store, TokenStore)
    assert store.end_of_text == tokenizer.begin_of_text
    tokens = store.read(0, len(store))
    assert (tokens == tokenizer.begin_of_text).sum() == store.num_documents == 3
    assert tokenizer.decode(tokens, keep_special=False) == "text 0text 1text 2"


def test_writing_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(LLAMA_3, "<|end_of_text|>", "<|begin_of_text|>")
    from archwright.generation import writing
    from archwright.spec.read import load

    seen = {}

    def sample(model: object, prompt: torch.Tensor, **settings: Any) -> Any:
        seen.update(settings, prompt=prompt.tolist())
        return iter([])

    monkeypatch.setattr(writing, "sample", sample)
    model = build(load("modern").override("dim=16", "num_layers=1", "vocab_size=448"))
    list(stream(OpenRun(RunFolder("none"), RunSpec(model=model.spec), model, tokenizer), "a"))
    assert seen["prompt"] == [tokenizer.begin_of_text, *tokenizer.encode("a")]
    assert seen["stop"] == {tokenizer.begin_of_text, tokenizer.end_of_text}


def test_exported_ids_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    from archwright.spec.read import load

    tokenizer = Tokenizer(LLAMA_3, "<|end_of_text|>", "<|begin_of_text|>")
    model = build(load("modern").override("dim=16", "num_layers=1", "vocab_size=448"))
    hf.save(model, tmp_path / "out", tokenizer)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["bos_token_id"] == tokenizer.begin_of_text == 0
    assert config["eos_token_id"] == tokenizer.end_of_text == 1
    back = hf.load(tmp_path / "out").tokenizer
    assert back is not None
    assert names(back) == names(tokenizer)


def test_added_tokens_without_a_row_are_left_aside(tmp_path: Path) -> None:
    inner = trained(["<eos>"])
    size = inner.get_vocab_size()
    inner.add_special_tokens(["<image>"])
    folder = write(tmp_path, inner, eos_token="<eos>")
    assert read(folder, size).vocab_size == size
    assert read(folder, size + 1).vocab_size == size + 1
    with pytest.raises(UserError, match="found a tokenizer of 400 tokens; expected at most 399"):
        read(folder, size - 1)


def gpt_2_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    GPT_2.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_vocabulary_and_merges_alone_are_gpt_2s(tmp_path: Path) -> None:
    folder = gpt_2_folder(tmp_path)
    tokenizer = read(folder)
    theirs = transformers.GPT2Tokenizer.from_pretrained(folder)
    assert tokenizer.encode(TEXT).tolist() == theirs(TEXT).input_ids
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert names(tokenizer) == ("<|endoftext|>", "<|endoftext|>")
    assert tokenizer.end_of_text not in tokenizer.encode("a<|endoftext|>b")


def test_tokens_that_were_added_to_it_are_there(tmp_path: Path) -> None:
    folder = gpt_2_folder(tmp_path, tokenizer_class="CodeGenTokenizer", eos_token="<|endoftext|>")
    size = GPT_2.get_vocab_size()
    added = {"\t\t\t": size + 1, "    ": size}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    tokenizer = read(folder)
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.encode("a\t\t\tb    c").tolist().count(size + 1) == 1
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    (folder / "added_tokens.json").write_text(json.dumps({"x y": size + 5}))
    with pytest.raises(UserError, match=f"found id {size + 5}; expected the next id, {size}$"):
        read(folder)


def test_special_tokens_of_the_config_are_no_text(tmp_path: Path) -> None:
    size = GPT_2.get_vocab_size()
    listed = {str(size): {"content": "<|user|>", "special": True}}
    folder = gpt_2_folder(tmp_path, eos_token="<|endoftext|>", added_tokens_decoder=listed)
    tokenizer = read(folder)
    assert tokenizer.vocab_size == size + 1
    assert size not in tokenizer.encode("a <|user|> b")


@pytest.mark.parametrize("case", ["sentencepiece", "other splits", "no bytes"])
def test_others_are_named_in_one_line_and_the_model_is_read(case: str, tmp_path: Path) -> None:
    if case == "sentencepiece":
        (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    elif case == "other splits":
        gpt_2_folder(tmp_path, tokenizer_class="Qwen2Tokenizer")
    else:
        (tmp_path / "vocab.json").write_text('{"a": 0, "b</w>": 1, "ab</w>": 2}')
        (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    with pytest.warns(UserWarning, match=r"Write tokenizer\.json with transformers") as said:
        assert read_tokenizer(tmp_path, 1000) is None
    assert len(said) == 1
    assert "\n" not in str(said[0].message)


def test_a_folder_without_any_says_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_tokenizer(tmp_path, 1000) is None


def test_damaged_merges_are_one_line(tmp_path: Path) -> None:
    folder = gpt_2_folder(tmp_path)
    (folder / "merges.txt").write_text("no pair here at all\n")
    with pytest.raises(UserError, match=r"vocab\.json: found no BPE with merges\.txt") as refused:
        read(folder)
    assert len(refused.value.lines) == 1


def test_a_tokenizer_like_gemmas_begins_and_counts_as_transformers_does(tmp_path: Path) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t"), ("▁", "c"), ("▁c", "at")]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    whole = [*special, *bytes_, *"▁theacs", *("".join(pair) for pair in merges)]
    vocabulary = {token: i for i, token in enumerate(whole)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    inner.add_special_tokens(special)
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    folder = write(tmp_path, inner, eos_token="<eos>", bos_token="<bos>", add_bos_token=True)
    tokenizer = read(folder)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    text = "the cat sat; the dog did not"
    assert [tokenizer.begin_of_text, *tokenizer.encode(text)] == theirs(text).input_ids
