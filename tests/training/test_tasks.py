"""Runs on synthetic tasks: only answers are scored, and they are counted."""

import math
from pathlib import Path

import pytest
import torch

from archwright.cli import main
from archwright.data.inputs import IGNORE
from archwright.data.task_text import TaskText
from archwright.lab.design.ngrams import answer_entropy
from archwright.reporting.history import read_history
from archwright.runs import RunFolder
from archwright.runs.load import open_run
from archwright.spec.errors import UserError
from archwright.spec.read import load_run
from archwright.spec.run_rules import enforce_run
from archwright.spec.run_spec import RunSpec
from archwright.spec.tasks import MQAR
from archwright.training.data import reload_data, task_material
from archwright.training.evaluation import evaluate_held_out, evaluate_text
from archwright.training.resolve import make_batches, make_model
from archwright.training.step import to_device
from tests.tiny import MACHINE, SHAPE
from tests.training.whole import Died, at_step, die, timeless, train

TINY = (*(word for word in SHAPE if "tokenizer" not in word), *MACHINE, "model.vocab_size=auto")


def task_run(task: str, *assignments: str) -> RunSpec:
    return load_run("modern").override(f"data.text={task}", *TINY, *assignments)


FEW = ("budget=4steps", "evaluate.every=2", "evaluate.final_max_tokens=640")


@pytest.fixture
def run() -> RunSpec:
    return task_run("mqar", "data.task.keys=12", "data.task.values=9", *FEW)


class TestWhole:
    def test_accuracy_and_loss_are_those_of_the_answers_alone(
        self, run: RunSpec, tmp_path: Path
    ) -> None:
        folder = train(run, tmp_path / "run")
        last = [record for record in folder.metrics() if record["kind"] == "eval"][-1]
        opened = open_run(folder.path)
        assert isinstance(opened.spec.data.task, MQAR)
        assert (opened.spec.data.task.pairs, opened.spec.data.task.fewest_pairs) == (8, 4)
        held_out = task_material(opened.spec).held_out
        assert isinstance(held_out, TaskText)
        right, nats, number = 0, 0.0, 0
        for i in range(20):  # one example by itself, one answer after another
            batch = to_device(held_out.batch(0, [i]), torch.device("cpu"))
            logits = opened.model(**batch.inputs.given()).logits[0].double()
            for at, answer in enumerate(batch.targets[0].tolist()):
                if answer != IGNORE:
                    right += int(logits[at].argmax() == answer)
                    nats -= logits[at].log_softmax(-1)[answer].item()
                    number += 1
        assert number == 20 * 8 == last["num_answers"]
        assert last["num_tokens"] == 20 * 32
        assert last["accuracy"] == pytest.approx(right / number)
        assert last["nats_per_token"] == pytest.approx(nats / number, rel=1e-4)
        assert "bits_per_byte" not in last

    def test_the_loss_of_a_step_is_that_of_its_answers(self, run: RunSpec, tmp_path: Path) -> None:
        """The first loss, of fresh weights, by hand."""
        folder = train(run, tmp_path / "run")
        first = next(r for r in folder.metrics() if r["kind"] == "train")
        spec = folder.spec
        material = task_material(spec)
        batch = to_device(make_batches(spec, material).at(0), torch.device("cpu"))
        logits = make_model(spec, material, spec.machine)(**batch.inputs.given()).logits
        asked = batch.targets != IGNORE
        assert 0 < asked.sum() < asked.numel()
        loss = torch.nn.functional.cross_entropy(logits[asked].float(), batch.targets[asked])
        assert first["loss"] == pytest.approx(loss.item(), rel=1e-4)

    def test_a_run_that_died_goes_on_with_the_same_examples(
        self, run: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = run.override("checkpoint.every=1")
        whole = train(run, tmp_path / "whole")
        at_step(monkeypatch, 2, die)
        with pytest.raises(Died):
            train(run, tmp_path / "died")
        died = train(run, tmp_path / "died")
        assert timeless(died) == timeless(whole)
        assert timeless(died, "eval") == timeless(whole, "eval")

    def test_a_chain_comes_near_its_floor(self, tmp_path: Path) -> None:
        chain = ("data.task.order=1", "data.task.symbols=4", "optimizer.lr=0.02")
        run = task_run("markov", *chain, "budget=120steps", "evaluate.final_max_tokens=20000")
        folder = train(run, tmp_path / "run")
        history = read_history(folder)
        assert history.task
        reached, floor = history.evals[-1]["nats_per_token"], history.task["floor"]
        assert 0 < floor - 0.02 < reached < 1.1 * floor < math.log(4)
        assert history.evals[-1]["accuracy"] > 1.2 * history.task["chance"]

    def test_verbs_take_such_a_run(
        self, run: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = train(run, tmp_path / "run")
        path = str(folder.path)
        assert main(["eval", path]) == 0
        found = evaluate_held_out(open_run(path))
        assert found.accuracy
        share = f"{100 * found.accuracy:.1f} %"
        assert f"accuracy         {share}   of 16,384 answers" in capsys.readouterr().out
        assert main(["generate", path, "--prompt", "k1 v3 k1", "--max-new-tokens", "1"]) == 0
        assert capsys.readouterr().out.split()[:3] == ["k1", "v3", "k1"]
        assert main(["eval", path, "--text", "notes.txt"]) == 2
        assert 'was trained on the task "mqar"' in capsys.readouterr().err
        with pytest.raises(UserError, match="leave it out to judge on held-out examples"):
            evaluate_text(open_run(path), "stdlib")
        assert main(["train", path + "/spec.toml", "--dry-run"]) == 0
        assert "examples of mqar, drawn for each step" in capsys.readouterr().out


class TestSpecs:
    def test_a_task_is_named_as_the_text_or_as_the_task(self) -> None:
        one = RunSpec().override("data.text=mqar")
        other = RunSpec().override("data.task.kind=mqar")
        assert one == other
        assert one.hash() == other.hash() != RunSpec().override("data.text=k-hop").hash()
        assert one.data.text == ("mqar",)
        assert RunSpec.model_validate(one.model_dump(by_alias=True)) == one
        both = RunSpec().override("data.task.pairs=3", "data.text=mqar")
        assert both.data.task == MQAR(pairs=3)

    @pytest.mark.parametrize("text", ["{ a = 1 }", "[{ a = 1 }]", '[["mqar"]]'])
    def test_what_is_no_text_names_no_task(self, text: str, tmp_path: Path) -> None:
        file = tmp_path / "run.toml"
        file.write_text(f"[data]\ntext = {text}\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"run\.toml: data\.text.*: found .*; expected"):
            load_run(str(file))

    def test_another_text_takes_the_place_of_a_task(self) -> None:
        recipe = load_run("mqar").override("data.task.pairs=32")
        assert recipe.override("data.task.keys=64").data.task == MQAR(pairs=32, keys=64)
        for words, text, kind in (
            (["data.text=stdlib"], "stdlib", "none"),
            (["data.text=notes.txt"], "notes.txt", "none"),
            (["data.text=k-hop", "data.task.k=3"], "k-hop", "k-hop"),
            (["data.task.kind=k-hop"], "k-hop", "k-hop"),
            (["data.task.kind=none"], "stdlib", "none"),
            (["data.text=mqar"], "mqar", "mqar"),
        ):
            found = recipe.override(*words)
            assert (found.data.text, found.data.task.kind) == ((text,), kind)
            enforce_run(found)
        assert recipe.override("data.text=mqar").data.task == MQAR(pairs=32)

    def test_a_text_and_a_task_are_not_both_taken(self) -> None:
        for words in (["data.text=notes.txt", "data.task.kind=mqar"], ['data.text=["mqar","a"]']):
            with pytest.raises(UserError, match=r"data\.(text|task\.kind): found"):
                enforce_run(RunSpec().override(*words))

    def test_folders_know_their_task(self, run: RunSpec, tmp_path: Path) -> None:
        folder = train(run, tmp_path / "run")
        changed = folder.spec.override("data.task.keys=13")
        folder.write_spec(changed)
        folder.model_file.unlink()
        with pytest.raises(UserError, match="has changed since this run began"):
            reload_data(changed, RunFolder(folder.path))


def test_guessing_is_as_good_as_the_answers_are_even(run: RunSpec) -> None:
    held_out = task_material(run).held_out
    assert isinstance(held_out, TaskText)
    assert answer_entropy(held_out) == pytest.approx(math.log(9), abs=1e-3)
