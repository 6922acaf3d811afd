"""Tokenizers in exports: transformers reads a text as training read it, or a line says what differs."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from archwright import hf
from archwright.generation.writing import generate
from archwright.hf.tokenizers import read_tokenizer
from archwright.hf.verifying import _text
from archwright.model.build import build
from archwright.model.model import Decoder
from archwright.runs.folder import RunFolder
from archwright.runs.load import OpenRun
from archwright.spec.data import DataSpec, TokenizerSpec
from archwright.spec.read import load
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.corpus import open_texts
from archwright.text.open_tokenizer import open_tokenizer
from archwright.text.tokenizer import PAD, Tokenizer
from tests.text.families import FAMILIES

transformers = pytest.importorskip("transformers")
END, BEGIN = "<|endoftext|>", "<|begin_of_text|>"
BYTES = Tokenizer(raw_bytes([END]), END)


def model(rows: int) -> Decoder:
    shape = ("dim=16", "num_layers=1", "context_length=32", "attention.num_heads=2")
    spec = load("modern").override(*shape, "attention.num_kv_heads=1", f"vocab_size={rows}")
    made = build(spec, seed=3)
    with torch.no_grad():
        made.head.weight.mul_(30)  # so that greedy choices are clear
    return made.eval()


def loaded(tokenizer: Tokenizer | None, *, has_source: bool = False) -> Any:
    """Return what `_text` asks of a loaded folder."""
    spec = type("Spec", (), {"encoder_model": object() if has_source else None})
    return type("Loaded", (), {"tokenizer": tokenizer, "spec": spec})


def test_an_export_reads_what_training_read(tmp_path: Path) -> None:
    own = model(258)  # with one row to spare: an untrained model writes any
    assert hf.save(own, tmp_path / "out", BYTES) == hf.save(own, tmp_path / "out", BYTES)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    there = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    given = theirs("def ", return_tensors="pt")
    assert given.input_ids.tolist() == [[256, *b"def "]]
    found = there.generate(**given, do_sample=False, max_new_tokens=9)[0]
    run = OpenRun(RunFolder(tmp_path), RunSpec(model=own.spec), own, BYTES)
    text = str(generate(run, "def ", max_new_tokens=9, temperature=0))
    assert theirs.decode(found, skip_special_tokens=True) == text
    assert (theirs.bos_token, theirs.pad_token, theirs.model_max_length) == (END, PAD, 32)
    padded = theirs(["a", "bb"], padding=True)
    assert padded.input_ids == [[256, 97, 257], [256, 98, 98]]
    assert theirs("a", "b").input_ids == [256, 97, 256, 98]
    assert _text(tmp_path / "out", hf.load(tmp_path / "out")) == (True, "the same ids")


def test_an_import_of_an_export_puts_one_token_before_a_text(tmp_path: Path) -> None:
    hf.save(model(320), tmp_path / "out", BYTES)
    run, imported = hf.import_run(tmp_path / "out", tmp_path / "run")
    again = Tokenizer.load(run.tokenizer_folder)
    assert (again.begin_of_text, again.end_of_text) == (256, 256)
    assert again.encode("a").tolist() == [97]
    hf.save(imported, tmp_path / "again", again)
    for file in (tmp_path / "out").glob("token*"):
        assert json.loads(file.read_text()) == json.loads(
            (tmp_path / "again" / file.name).read_text()
        )
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")("a").input_ids
    assert ids == [256, 97]


def test_training_begins_a_text_as_the_file_does(tmp_path: Path) -> None:
    """Else an export with weights that never read the file's token would be imported with it."""
    inner = raw_bytes([END, BEGIN])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=[BEGIN, "$A"], special_tokens=[(BEGIN, 257)]
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerSpec(kind="file", path=str(tmp_path), end_of_text=END)
    trained = open_tokenizer(spec, open_texts((__file__,), DataSpec()))
    assert (trained.begin_of_text, trained.end_of_text) == (257, 256)
    hf.save(model(320), tmp_path / "out", trained)
    run, _ = hf.import_run(tmp_path / "out", tmp_path / "run")
    again = Tokenizer.load(run.tokenizer_folder)
    assert (again.begin_of_text, again.end_of_text) == (257, 256)


def test_without_a_spare_row_end_of_text_is_the_padding(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"pad_token is <\|endoftext\|>, .* collators mask it"):
        hf.save(model(257), tmp_path, BYTES)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).pad_token == END
    special = Tokenizer(raw_bytes([END, PAD]), END)
    assert special.exported(258, 8, has_source=False).special_ids == {END: 256, PAD: 257}


def test_padding_takes_the_id_of_no_token() -> None:
    words = tokenizers.models.WordLevel({END: 0, "a": 1, "?": 2, "b": 4}, unk_token="?")
    inner = tokenizers.Tokenizer(words)
    inner.add_special_tokens([END])
    exported = Tokenizer(inner, END).exported(8, 16, has_source=False)
    assert PAD not in exported.special_ids  # the library would give it 4
    assert json.loads(exported.files["tokenizer_config.json"])["pad_token"] == END


def test_an_id_that_another_library_added_is_named_by_its_number() -> None:
    line = BYTES.otherwise(((300,), ()), has_source=False)
    assert line == f"transformers reads id 300 TEXT, training read {END} TEXT"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_text_has_the_ids_of_the_library(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]()
    family.inner.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": family.end}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = read_tokenizer(tmp_path, 1000)
    assert tokenizer is not None
    has_source = name in ("t5", "mt5", "pegasus")
    same, line = _text(tmp_path, loaded(tokenizer, has_source=has_source))
    assert same, line
    # What some put behind a text, training does not.
    expected = {"xlm-roberta": "<s> TEXT </s>", "albert": "[CLS] TEXT [SEP]"}
    expected |= dict.fromkeys(("bert", "deberta-v3"), "[CLS] TEXT [SEP]")
    around = expected.get(name)
    first = (around or "").split(" ")[0]
    differs = f"transformers reads {around}, training read {first} TEXT"
    if name == "gpt2":
        differs, around = f"transformers reads TEXT, training read {END} TEXT", END
    assert line == (differs if around else "the same ids")


def test_an_imported_tokenizer_is_never_changed(tmp_path: Path) -> None:
    inner = raw_bytes([END])
    imported = Tokenizer(inner, END, files={"tokenizer_config.json": '{"model_max_length": 7}'})
    with pytest.warns(UserWarning, match=r"reads TEXT, training read <\|endoftext\|> TEXT"):
        hf.save(model(320), tmp_path, imported)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert content == json.loads(imported._inner.to_str())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 7
    assert "pad_token" not in config


def test_other_ids_and_unreadable_tokenizers_are_no_agreement(tmp_path: Path) -> None:
    hf.save(model(320), tmp_path, BYTES)
    changed = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    changed.normalizer = tokenizers.normalizers.Lowercase()
    same, line = _text(tmp_path, loaded(Tokenizer(changed, END)))
    assert not same
    assert line.startswith("other ids: ")
    (tmp_path / "tokenizer.json").write_text("{}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same, line = _text(tmp_path, loaded(BYTES))
    assert not same
    assert line.startswith("transformers cannot read the tokenizer: ")
    assert _text(tmp_path, loaded(None)) == (True, "no supported tokenizer")
