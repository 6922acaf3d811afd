"""An objective from outside the package trains, is listed, resumes, is compared, and is refused where it cannot be."""

import csv
import math
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from archwright.checkpoint import latest
from archwright.cli import main
from archwright.data.inputs import IGNORE, Batch, Inputs
from archwright.data.objectives import Examples, Vocabulary
from archwright.lab.compare import compare
from archwright.plugins import load_parts_file
from archwright.runs import RunFolder
from archwright.spec.errors import UserError
from archwright.spec.objectives import Objective
from archwright.spec.read import load_run
from archwright.spec.run_rules import enforce_run
from archwright.training.train import resume, train
from tests.lab.small import OPTIONS, words, working_in
from tests.tiny import tiny_run, tiny_words, write_text
from tests.training.whole import Died, at_step, die, timeless

FILE = Path(__file__).with_name("masked_token.py")
ASKED = (
    "objective.kind=masked_token",
    "model.attention.mask.kind=full",
    'data.tokenizer.special_tokens=["[MASK]"]',
)
MASK, END = 90, 91


@pytest.fixture
def examples(visitors: None) -> Examples:
    runpy.run_path(str(FILE))
    spec = Objective.kinds["masked_token"]()
    assert isinstance(spec, Objective)
    return Examples(spec, Vocabulary(92, END, {"[MASK]": MASK, "<|endoftext|>": END}))


class TestBatches:
    """Against section 3.1 of the paper, by counting."""

    def test_shares_are_those_of_the_paper(self, examples: Examples) -> None:
        text = np.random.default_rng(1).integers(80, size=(400, 500))
        batch = examples.batch(Inputs(text), 7)
        chosen = batch.targets != IGNORE
        assert (batch.targets[chosen] == text[chosen]).all()
        assert (batch.inputs.tokens[~chosen] == text[~chosen]).all()
        assert chosen.mean() == pytest.approx(0.15, abs=0.003)
        given = batch.inputs.tokens[chosen]
        masked, kept = given == MASK, given == text[chosen]
        assert masked.mean() == pytest.approx(0.8 + 0.1 / 92, abs=0.01)
        assert kept.mean() == pytest.approx(0.1 + 0.1 / 92, abs=0.01)
        assert len(set(given[~masked & ~kept].tolist())) == 91  # all ids but the mask's

    def test_it_is_a_function_of_the_seed(self, examples: Examples) -> None:
        text = Inputs(np.arange(80).reshape(2, 40))
        first, again, other = (examples.batch(text, 0, step) for step in (3, 3, 4))
        assert (first.targets == again.targets).all()
        assert (first.inputs.tokens == again.inputs.tokens).all()
        assert (first.targets != other.targets).any()

    def test_padding_and_special_tokens_are_no_targets(self, examples: Examples) -> None:
        tokens = np.full((50, 40), 5)
        tokens[:, 0] = END
        mask = np.arange(40) < np.arange(50)[:, None]
        segments = np.tile(np.arange(40) // 20, (50, 1))
        batch: Batch = examples.batch(Inputs(tokens, segment_ids=segments, padding_mask=mask), 0)
        assert (batch.targets[~mask] == IGNORE).all()
        assert (batch.targets[:, 0] == IGNORE).all()
        assert (batch.targets != IGNORE).any()
        assert batch.inputs.given().keys() == {"tokens", "segment_ids", "padding_mask"}
        assert (batch.inputs.segment_ids == segments).all()

    def test_its_mask_token_is_one_of_the_tokenizer(self, examples: Examples) -> None:
        with pytest.raises(
            UserError, match=r'objective\.mask_token: found "\[MASK\]", which is no'
        ):
            Examples(examples.objective, Vocabulary(92, END))


def test_a_model_that_sees_one_side_is_refused(examples: Examples) -> None:
    run = load_run("modern").override("objective.kind=masked_token")
    with pytest.raises(UserError) as caught:
        enforce_run(run)
    assert caught.value.lines == (
        'model.attention.mask.kind: found "causal", through which no token sees what follows it; '
        'objective.kind = "masked_token" expects a mask such as "full"',
    )
    enforce_run(run.override("model.attention.mask.kind=symmetric_window"))
    with pytest.raises(UserError, match=r"evaluate\.stride: found 8; .* reads a text once"):
        enforce_run(run.override("model.attention.mask.kind=full", "evaluate.stride=8"))


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
    assert not folder.samples()
    assert folder.report_file.exists()
    assert main(["list", "choices", "masked_token", *parts]) == 0
    listed = capsys.readouterr().out
    assert "objective: masked_token" in listed
    assert "objective.share=0.15" in listed
    few = ("dim=32", "num_layers=1", "--length", "32", "--seconds", "0.01")
    plain = ("--kernel", "eager", "--precision", "fp32")
    assert main(["profile", "modern", *ASKED, *few, *plain, *parts]) == 0
    assert "4 rows of 32 tokens" in capsys.readouterr().out
    assert main(["profile", "modern", ASKED[0], *parts]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'objective.kind = "masked_token" expects a mask such as "full"' in line
    assert main(["generate", "runs/modern", *parts]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "lets tokens see what follows them" in line


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
