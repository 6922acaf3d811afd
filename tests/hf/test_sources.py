"""What stands around a source and a target is what a checkpoint says, and what one of ours says to transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

import archwright as aw
from archwright import hf
from archwright.data.inputs import Inputs
from archwright.data.objectives import Examples, Vocabulary
from archwright.generation.writing import generate, source_tokens
from archwright.runs.load import open_run
from archwright.spec.objectives import SequenceToSequence, SpanCorruption
from archwright.spec.run_spec import RunSpec
from archwright.text.bpe import raw_bytes
from archwright.text.tokenizer import Tokenizer
from tests.hf.library import build, randomise, save, transformers
from tests.tiny import MACHINE

SPECIAL = {
    "t5": (["<pad>", "</s>", "<extra_id_0>"], ["$A", "</s>"]),
    "bart": (["<s>", "<pad>", "</s>"], ["<s>", "$A", "</s>"]),
}
"""Special tokens, of which bytes leave 256 and on, and what is put around a text."""
IDS = {
    "t5": {"pad_token_id": 256, "eos_token_id": 257, "decoder_start_token_id": 256},
    "bart": {"bos_token_id": 256, "pad_token_id": 257, "eos_token_id": 258}
    | {"decoder_start_token_id": 258, "forced_eos_token_id": None},
}
TEXT = "the of and to"


def published(name: str, folder: Path) -> Any:
    """Write a folder as it is published, with a tokenizer; return its model."""
    model = randomise(build(name, vocab_size=300, **IDS[name]))
    save(model, folder)
    names, around = SPECIAL[name]
    inner = raw_bytes(names)
    ids = [(token, inner.token_to_id(token)) for token in {*around} - {"$A"}]
    inner.post_processor = TemplateProcessing(single=around, special_tokens=ids)
    inner.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize(("name", "start"), [("t5", (256,)), ("bart", (258, 256))])
def test_a_source_is_read_as_the_library_reads_it(
    name: str, start: tuple[int, ...], tmp_path: Path
) -> None:
    theirs = published(name, tmp_path / "in")
    hf.import_run(tmp_path / "in", tmp_path / "run")
    run = open_run(tmp_path / "run")
    given = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")(TEXT, return_tensors="pt")
    assert source_tokens(run.tokenizer, TEXT) == given["input_ids"][0].tolist()
    assert run.tokenizer.decoder_start == start
    found = theirs.generate(
        input_ids=given["input_ids"],
        decoder_input_ids=torch.tensor([start]),
        max_new_tokens=6,
        do_sample=False,
    )[0, len(start) :].tolist()
    ends = [i for i, token in enumerate(found) if token in run.tokenizer.stop_ids]
    expected = run.tokenizer.decode(found[: ends[0]] if ends else found, keep_special=True)
    assert str(generate(run, source=TEXT, max_new_tokens=6)) == expected
    assert str(generate(run, source=[TEXT, "a", TEXT], max_new_tokens=6)[2]) == expected
    hf.export_run(tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["decoder_start_token_id"] == start[0]


def test_what_a_decoder_forces_comes_first(tmp_path: Path) -> None:
    published("bart", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"forced_bos_token_id": 257}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = hf.load(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.decoder_start == (258, 257)
    text = Inputs(np.array([[5, 6]]), decoder_tokens=np.array([[7]]))
    batch = Examples(SequenceToSequence(), Vocabulary.of(tokenizer)).batch(text)
    assert batch.inputs.tokens.tolist() == [[256, 5, 6, 258]]
    assert batch.inputs.decoder_tokens.tolist() == [[258, 257, 7]]
    assert batch.targets.tolist() == [[257, 7, 258]]


def test_spans_end_as_the_checkpoint_has_it(tmp_path: Path) -> None:
    published("t5", tmp_path)
    tokenizer = hf.load(tmp_path).tokenizer
    assert tokenizer is not None
    examples = Examples(SpanCorruption(num_sentinels=1), Vocabulary.of(tokenizer))
    batch = examples.batch(Inputs(np.arange(20, 40)[None]), 0)
    assert batch.inputs.tokens[0, -1] == batch.targets[0, -1] == 257
    assert batch.inputs.decoder_tokens[0, 0] == 256


@pytest.mark.slow
def test_the_library_reads_a_source_as_a_run_of_ours_does(tmp_path: Path) -> None:
    """Trained here, exported, and asked there, without a word of how."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefg" for b in "hijklmn"))
    spec = hf.families.FAMILIES["t5"].spec(
        {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 64, "num_layers": 1, "vocab_size": 320}
    )
    run = aw.train(
        RunSpec(model=spec).override(f"data.pairs={file}", *MACHINE),
        *("data.tokenizer.kind=bytes", "budget=30steps", "model.context_length=16"),
        *("model.encoder.context_length=16", "batch_size=8", "model.residual.dropout=0"),
        out=tmp_path / "run",
        quiet=True,
    )
    hf.save(run.model, tmp_path / "out", run.tokenizer)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    given = tokenizer("ah", return_tensors="pt")
    assert given["input_ids"][0].tolist() == source_tokens(run.tokenizer, "ah")
    found = theirs.generate(**given, max_new_tokens=5, do_sample=False)[0].tolist()
    assert found[0] == run.tokenizer.end_of_text
    assert tokenizer.decode(found, skip_special_tokens=True) == str(
        generate(run, source="ah", max_new_tokens=5)
    )
    again = hf.load(tmp_path / "out").tokenizer
    assert isinstance(again, Tokenizer)
    assert (again.frame, again.decoder_start) == (run.tokenizer.frame, run.tokenizer.decoder_start)
