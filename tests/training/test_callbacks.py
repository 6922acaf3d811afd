"""Functions of the user see every record, change no number, and may end a run."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.runs import RunFolder
from archwright.runs.records import Record
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training.callbacks import Callbacks, StopTraining
from tests.tiny import write_text
from tests.training.whole import apart, leave_out, run_of_twelve, timeless, train

KEPT = ("checkpoint.every=1", "checkpoint.keep=20")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that nobody looks at, with a checkpoint of each step."""
    folder = tmp_path_factory.mktemp("plain")
    with apart(folder):
        run = run_of_twelve(write_text(folder / "text.txt", 200))
        return train(run.override(*KEPT), folder / "run")


def test_they_get_copies() -> None:
    record: Record = {"step": 1}
    Callbacks(lambda given: given.clear()).call("on_step", record)
    assert record == {"step": 1}


def same_as(plain: RunFolder, folder: RunFolder) -> None:
    """Assert that two runs came to the same, bit for bit."""
    for kind in ("train", "eval", "baseline"):
        assert timeless(folder, kind) == timeless(plain, kind), kind
    assert folder.samples() == plain.samples()
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()


@pytest.mark.slow
def test_they_see_each_record_and_change_no_number(
    longer: RunSpec, plain: RunFolder, tmp_path: Path
) -> None:
    steps: list[Record] = []
    evaluations: list[Record] = []

    def look(into: list[Record]) -> Callable[[Record], object]:
        def seen(record: Record) -> None:
            into.append(dict(record))
            record.clear()  # a copy is given
            torch.rand(3), np.random.rand(3), random.random()  # dropout must not draw others now

        return seen

    run = archwright.train(
        longer,
        out=tmp_path / "run",
        quiet=True,
        on_step=look(steps),
        on_evaluation=look(evaluations),
    )
    records = run.folder.metrics()
    assert steps == [r for r in records if r["kind"] == "train"]
    assert evaluations == [r for r in records if r["kind"] == "eval"]
    assert [r["step"] for r in evaluations] == [5, 10, 12]
    same_as(plain, run.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"), [("on_step", 4), ("on_step", 5), ("on_evaluation", 5), ("on_evaluation", 12)]
)
def test_an_error_in_one_ends_the_run_which_then_goes_on(
    longer: RunSpec, plain: RunFolder, tmp_path: Path, name: str, step: int
) -> None:
    def fail(record: Record) -> None:
        if record["step"] == step:
            raise ZeroDivisionError("mine")

    watching: Any = {name: fail}
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        archwright.train(longer, out=tmp_path / "run", quiet=True, **watching)
    folder = RunFolder.open(tmp_path / "run")
    assert caught.value.__notes__ == [
        f"{name} raised this at step {step}, which is saved; go on with: archwright train --resume {folder.path}"
    ]
    assert not folder.finished
    assert folder.metrics()[-1]["text"] == f"by ZeroDivisionError in {name}"
    assert max(folder.checkpoints()) == step
    assert folder.report_file.exists()
    seen: list[int] = []
    resumed = archwright.resume(folder, quiet=True, on_step=lambda r: seen.append(r["step"]))
    assert seen == list(range(step + 1, 13))
    same_as(plain, resumed.folder)


@pytest.mark.slow
def test_one_that_stops_the_training_ends_the_run_as_a_whole_one(
    longer: RunSpec, plain: RunFolder, tmp_path: Path
) -> None:
    def stop(record: Record) -> None:
        if record["step"] == 10:
            raise StopTraining("good enough")

    run = archwright.train(longer, out=tmp_path / "run", quiet=True, on_step=stop)
    folder = run.folder
    assert folder.finished
    assert timeless(folder) == timeless(plain)[:10]
    on_the_way, last = timeless(folder, "eval")[1:]
    assert on_the_way == timeless(plain, "eval")[1]
    assert (last["step"], last["num_tokens"] > on_the_way["num_tokens"]) == (10, True)
    (event,) = [r for r in folder.metrics() if r.get("name") == "early_stop"]
    assert event["text"] == "on_step asked for it: good enough"
    assert event["num_steps"] == 12
    saved = plain.checkpoints()[10] / "model.safetensors"
    weights = run.model.state_dict()
    assert all(torch.equal(weights[n], t) for n, t in checkpoint.read_model(saved).items())
    assert (
        archwright.train(longer, out=tmp_path / "run", quiet=True).folder.metrics()[-1]
        == (folder.metrics()[-1])
    )


def test_what_is_no_function_is_refused_before_anything_is_made(
    longer: RunSpec, tmp_path: Path
) -> None:
    wrong: Any = "print"
    with pytest.raises(UserError, match=r"on_step: found str; expected a function"):
        archwright.train(longer, out=tmp_path / "run", on_step=wrong)
    assert not (tmp_path / "run").exists()


def test_random_numbers_are_as_if_none_was_drawn() -> None:
    def draws(record: Record) -> None:
        torch.rand(1), np.random.rand(1), random.random()

    def numbers() -> tuple[float, float, float]:
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    found = []
    for callbacks in (Callbacks(), Callbacks(on_step=draws)):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        callbacks.call("on_step", {"kind": "train", "step": 1})
        found.append(numbers())
    assert found[0] == found[1]
