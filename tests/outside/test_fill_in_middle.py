"""An objective from outside the package trains, is listed, resumes, is compared, and is refused where it cannot be."""

import csv
import math
import shutil
from pathlib import Path

import pytest

from archwright.checkpoint import latest
from archwright.cli import main
from archwright.lab.compare import compare
from archwright.plugins import load_parts_file
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.training.train import resume, train
from tests.lab.small import OPTIONS, words, working_in
from tests.tiny import tiny_run, tiny_words, write_text
from tests.training.whole import Died, at_step, die, timeless

FILE = Path(__file__).with_name("fill_in_middle.py")
ASKED = ("objective.kind=fill_in_middle",)
PRE, SUF, MID, END = 90, 91, 92, 93
SPECIAL = {"<PRE>": PRE, "<SUF>": SUF, "<MID>": MID, "<|endoftext|>": END}


class TestBatches:
    """Against section 3 of the paper, by putting texts back."""


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_it_trains_from_the_command_line_and_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(FILE, tmp_path)
    write_text(Path("text.txt"), 100)
    parts = ("--parts", FILE.name)
    few = ("budget=3steps", "data.separator=the", "data.packing=document_mask")
    assert main([*tiny_words("text.txt", *ASKED, *few), *parts]) == 0
    printed = capsys.readouterr().out
    assert "nats per predicted token" in printed
    assert "bits per byte" not in printed
    folder = RunFolder("runs/modern")
    assert {"train", "eval", "event"} == {record["kind"] for record in folder.metrics()}
    assert folder.samples()
    assert folder.report_file.exists()
    assert main(["list", "choices", "fill_in_middle", *parts]) == 0
    listed = capsys.readouterr().out
    assert "objective: fill_in_middle" in listed
    assert "objective.rate=0.5" in listed
    few = ("dim=32", "num_layers=1", "--length", "32", "--seconds", "0.01")
    plain = ("--kernel", "eager", "--precision", "fp32")
    assert main(["profile", "modern", *ASKED, *few, *plain, *parts]) == 0
    assert "4 sequences of 32 tokens" in capsys.readouterr().out
    assert main(["generate", "runs/modern", "--max-new-tokens", "3", *parts]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_it_learns_and_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_parts_file(FILE)
    text = write_text(tmp_path / "text.txt")
    few = ("budget=60steps", "checkpoint.every=5", "optimizer.lr=0.02", "evaluate.max_tokens=500")
    run = tiny_run(text, *ASKED, *few)
    whole = train(run, out=tmp_path / "whole", quiet=True).folder
    losses = [record["loss"] for record in timeless(whole)]
    assert max(losses[-10:]) < min(losses[:3])
    at_step(monkeypatch, 33, die)
    with pytest.raises(Died):
        train(run, out=tmp_path / "cut", quiet=True)
    cut = RunFolder(tmp_path / "cut")
    assert latest(cut.checkpoints_folder) is not None
    resume(cut, quiet=True)
    assert timeless(cut) == timeless(whole)
    assert timeless(cut, "eval") == timeless(whole, "eval")
    assert cut.model_file.read_bytes() == whole.model_file.read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("visitors")
def test_variants_that_share_it_are_compared(tmp_path: Path) -> None:
    with working_in(tmp_path):
        shutil.copy(FILE, tmp_path)
        found = compare(
            *words("text.txt", ":norm.kind=layer"),
            *ASKED,
            quiet=True,
            tune_lr=False,
            out="study",
            parts=[FILE.name],
            **OPTIONS,
        )
        with pytest.raises(
            UserError, match='bits per byte, by which they are judged, are defined for "next_token"'
        ):
            compare(
                *words("text.txt", ":data.tokenizer.kind=bpe"),
                *ASKED,
                quiet=True,
                out="tokenizers",
                parts=[FILE.name],
                **OPTIONS,
            )
        assert not Path("tokenizers").exists()
        with Path("study", "runs.csv").open(newline="", encoding="utf-8") as rows:
            commands = [row["command"] for row in csv.DictReader(rows)]
    assert len(found.runs) == 4
    assert len(commands) == 4 + len(found.shorter_runs)
    assert all(0 < run.loss < run.initial_loss and not run.failed for run in found.runs)
    assert all(math.isnan(run.bits_per_byte) for run in found.runs)
    assert "bits per byte" not in found.verdict
    assert all(f"--parts {FILE.name}" in command for command in commands)
