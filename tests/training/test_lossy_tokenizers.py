"""Bits per byte are of a text that its tokens give back; others have nats per token, and a line that says why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, normalizers

import archwright as aw
from archwright.data import prepare as module
from archwright.data.prepare import prepare_documents
from archwright.data.store import TokenStore
from archwright.machine.precision import Precision
from archwright.model import build
from archwright.reporting.history import read_history
from archwright.reporting.overlay import overlay_page
from archwright.runs import RunFolder
from archwright.runs.summaries import summaries
from archwright.spec.data import DataSpec
from archwright.spec.errors import UserError
from archwright.spec.model_spec import ModelSpec
from archwright.spec.objectives import NextToken
from archwright.text.bpe import raw_bytes
from archwright.text.corpus import open_texts
from archwright.text.tokenizer import Tokenizer
from archwright.training.evaluation import evaluate, held_out_windows
from tests.text.families import FAMILIES
from tests.tiny import tiny_run

pytestmark = pytest.mark.filterwarnings("ignore:no bits per byte, as the tokenizer changes")

END = "<|endoftext|>"
TEXT = "The ﬁrst sat.\n  It sat ▁ there: " * 5
FP32 = Precision("fp32", torch.device("cpu"))


def changed(change: Callable[[Inner], object]) -> Tokenizer:
    """Return the tokenizer of bytes with a change, which also keeps it from the fast path."""
    inner = raw_bytes([END])
    change(inner)
    inner.add_tokens(["never spelled"])
    return Tokenizer(inner, END)


def normalised(normalizer: normalizers.Normalizer) -> Tokenizer:
    return changed(lambda inner: setattr(inner, "normalizer", normalizer))


def joined(inner: Inner) -> Inner:
    inner.decoder = decoders.Replace("▁", "")
    return inner


LOSSY: dict[str, Callable[[], Tokenizer]] = {
    "lower": lambda: normalised(normalizers.Lowercase()),
    "blanks": lambda: normalised(normalizers.Replace(" ", "")),
    "nfkc": lambda: normalised(normalizers.NFKC()),
    "strip": lambda: normalised(normalizers.Strip()),
    "one word": lambda: normalised(normalizers.Replace("there", "here")),
    "decoder": lambda: Tokenizer(joined(FAMILIES["llama-2"]().inner), "</s>"),
    "unknown": lambda: Tokenizer(FAMILIES["mt5"]().inner, "</s>"),
    "words": lambda: Tokenizer(FAMILIES["bert"]().inner, "[SEP]"),
    "blank's sign": lambda: Tokenizer(FAMILIES["llama-2"]().inner, "</s>"),
}


def stored(tokenizer: Tokenizer, text: str, tmp_path: Path) -> TokenStore:
    (tmp_path / "text.txt").write_text(text, "utf-8")
    documents = open_texts((str(tmp_path / "text.txt"),), DataSpec())
    return prepare_documents(documents, tokenizer, tmp_path / "store")


@pytest.mark.parametrize("name", [*LOSSY, "bytes"])
def test_a_tokenizer_that_changes_the_text_has_no_bits_per_byte(name: str, tmp_path: Path) -> None:
    tokenizer = LOSSY.get(name, lambda: changed(lambda inner: None))()
    store = stored(tokenizer, TEXT, tmp_path)
    change = store.text_change(tokenizer)
    windows = held_out_windows(store, tokenizer, NextToken(), 16)
    spec = ModelSpec(dim=16, num_layers=1, context_length=16).override("attention.num_heads=2")
    found = evaluate(build(spec, vocab_size=tokenizer.vocab_size), windows, FP32)
    assert (found.bits_per_byte is None) == (name in LOSSY)
    assert (change == "") == (name not in LOSSY)
    assert found.nats_per_token > 0
    # A text that it gives back has them, with the same tokenizer.
    if name in ("lower", "nfkc", "one word", "blank's sign"):
        store = stored(tokenizer, "the cat sat. " * 9, tmp_path)
        assert store.text_change(tokenizer) == ""
        with_bits = held_out_windows(store, tokenizer, NextToken(), 16)
        assert with_bits.defines_bits_per_byte


def test_parts_of_a_text_are_tested_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 40)
    for i, text in enumerate(("plain text " * 4, "", "but An upper case " * 3, "plain " * 7)):
        (tmp_path / f"{i}.txt").write_text(text)
    tokenizer = LOSSY["lower"]()
    documents = open_texts((str(tmp_path),), DataSpec())
    assert len(documents.parts(40)) > 2
    store = prepare_documents(documents, tokenizer, tmp_path / "store")
    assert store.text_change(tokenizer) == '"but An upper case bu" becomes "but an upper case bu"'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Two runs, of which one lowers its text."""
    place = tmp_path_factory.mktemp("lossy")
    lines = [f"Line {i} of A text with letters.\n\n" for i in range(80)]
    (place / "text.txt").write_text("".join(lines))
    made = {}
    for name, tokenizer in {
        "plain": changed(lambda inner: None),
        "lower": LOSSY["lower"](),
    }.items():
        tokenizer.save(place / f"{name}-tokenizer")
        words = ("data.tokenizer.kind=file", f"data.tokenizer.path={place}/{name}-tokenizer")
        run = tiny_run(place / "text.txt", *words, "budget=2steps")
        made[name] = aw.train(run, out=place / name, quiet=True).folder
    return made


def test_a_run_says_why_it_has_none(runs: dict[str, RunFolder]) -> None:
    plain, lower = (read_history(runs[name]) for name in ("plain", "lower"))
    assert "bits_per_byte" in plain.evals[-1]
    assert plain.compressors
    assert "bits_per_byte" not in lower.evals[-1]
    assert not lower.compressors
    page = runs["lower"].report_file.read_text()
    assert "There are no bits per byte, as the tokenizer changes the text: " in page
    assert "xz -9e" not in page
    with pytest.raises(UserError, match=r"no bits per byte, as the tokenizer changes .*compared"):
        overlay_page([plain, lower])


def test_a_run_without_a_record_may_change_its_text(
    runs: dict[str, RunFolder], tmp_path: Path
) -> None:
    run = RunFolder(shutil.copytree(runs["plain"].path, tmp_path / "plain"))
    environment = json.loads(run.environment_file.read_text())
    del environment["data"]["text_change"]
    run.environment_file.write_text(json.dumps(environment))
    history = read_history(run)
    assert history.text_change is None
    assert "bits_per_byte" not in history.evals[-1]
    (summary,) = summaries(tmp_path)
    assert summary.bits_per_byte is None
