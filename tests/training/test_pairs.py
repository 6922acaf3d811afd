"""Runs on pairs: an encoder-decoder learns to translate, goes on where it stopped, and is judged on held-out pairs."""

from pathlib import Path

import pytest
import torch

from archwright.cli import main
from archwright.data.pair_text import PairText
from archwright.runs.load import open_run
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.spec.run_spec import RunSpec
from archwright.training.data import pair_material, reload_data
from archwright.training.evaluation import evaluate_held_out, evaluate_text
from tests.tiny import MACHINE, SHAPE
from tests.training.whole import Died, at_step, die, timeless, train

ENCODER = (
    "model.encoder.kind=stack",
    "model.encoder.num_layers=1",
    "model.cross_attention.kind=softmax",
)


@pytest.fixture
def run(tmp_path: Path) -> RunSpec:
    file = tmp_path / "pairs.tsv"
    words = ["the", "of", "and", "to", "in", "model", "attention", "layer", "norm"]
    lines = [f"{a} {b}\t{b} {a}\n" for a in words for b in words]
    file.write_text("".join(lines))
    return load_run("modern").override(
        f"data.pairs={file}", *ENCODER, *SHAPE, *MACHINE, "budget=4steps", "evaluate.every=2"
    )


def test_the_loss_is_that_of_the_held_out_targets(run: RunSpec, tmp_path: Path) -> None:
    folder = train(run, tmp_path / "run")
    last = [record for record in folder.metrics() if record["kind"] == "eval"][-1]
    opened = open_run(folder.path)
    held_out = pair_material(opened.spec, opened.tokenizer).held_out
    assert isinstance(held_out, PairText)
    nats, number, end = 0.0, 0, opened.tokenizer.end_of_text
    for one in held_out.examples:  # a pair by itself, one token after another
        source = torch.tensor([[*one.source.tolist(), end]])
        target = [*one.target.tolist(), end]
        logits = opened.model(source, decoder_tokens=torch.tensor([[end, *target[:-1]]])).logits[0]
        nats -= sum(logits[i].double().log_softmax(-1)[t].item() for i, t in enumerate(target))
        number += len(target)
    assert last["nats_per_token"] == pytest.approx(nats / number, rel=1e-4)
    assert evaluate_held_out(opened).nats_per_token == pytest.approx(nats / number, rel=1e-4)
    assert "bits_per_byte" not in last
    assert load_run(folder.path).objective == run.objective  # of one that goes on from it
    with pytest.raises(UserError, match="was trained on pairs"):
        evaluate_text(opened, "stdlib")


def test_a_run_goes_on_to_the_same_weights(
    run: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run.override("checkpoint.every=1")
    whole = train(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        at_step(patch, 2, die)
        with pytest.raises(Died):
            train(run, tmp_path / "broken")
    broken = train(run, tmp_path / "broken")
    assert whole.model_file.read_bytes() == broken.model_file.read_bytes()
    assert timeless(whole) == timeless(broken)


def test_other_pairs_are_refused(run: RunSpec, tmp_path: Path) -> None:
    folder = train(run, tmp_path / "run")
    assert reload_data(run, folder).record() == folder.environment()["data"]
    file = Path(run.data.pairs)
    file.write_text(file.read_text() + "more\tmore\n")
    with pytest.raises(UserError, match="the text has changed since this run began"):
        reload_data(run, folder)


def test_it_is_judged_and_it_translates_on_the_command_line(
    run: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(train(run, tmp_path / "run").path)
    capsys.readouterr()
    assert main(["eval", folder]) == 0
    assert "nats per predicted token" in capsys.readouterr().out
    assert main(["generate", folder, "--source", "the of", "--max-new-tokens", "3"]) == 0


def test_a_model_learns_to_translate(tmp_path: Path) -> None:
    """Two words change places: a rule that a layer can learn, and no table of held-out pairs."""
    words = [*"abcdefgh"]
    file = tmp_path / "pairs.tsv"
    lines = [f"{a}{b}{c}\t{c}{b}{a}\n" for a in words for b in words for c in words]
    file.write_text("".join(lines))
    run = load_run("modern").override(
        f"data.pairs={file}", *ENCODER, *SHAPE[:-1], *MACHINE, "budget=400steps", "batch_size=32"
    )
    last = train(run, tmp_path / "run").metrics()[-1]
    opened = open_run(tmp_path / "run")
    material = pair_material(opened.spec, opened.tokenizer)
    assert isinstance(material.held_out, PairText)
    assert evaluate_held_out(opened).nats_per_token < 0.2, last
