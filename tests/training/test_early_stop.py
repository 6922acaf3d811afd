"""A run whose held-out loss falls no more ends there: where it ends, what it leaves, and that it can be interrupted."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.reporting.history import read_history
from archwright.reporting.result import notice, result_of
from archwright.runs import RunFolder
from archwright.runs.records import Record
from archwright.spec.run_spec import EarlyStopSpec, RunSpec
from archwright.training import finalize as finalize_room
from archwright.training.early_stop import EarlyStop
from tests.tiny import write_text
from tests.training.whole import (
    Died,
    apart,
    at_step,
    die,
    leave_out,
    run_of_twelve,
    timeless,
    train,
)

# No loss of a few nats falls by ten, so the second evaluation after the first is the last.
SOON = ("early_stop.patience=2", "early_stop.min_delta=10")
EVERY = ("evaluate.every=2", "checkpoint.every=1", "checkpoint.keep=20")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that goes on to its end."""
    return _trained(tmp_path_factory.mktemp("plain"), *EVERY)


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that ends early, uninterrupted."""
    return _trained(tmp_path_factory.mktemp("early"), *EVERY, *SOON)


def _trained(folder: Path, *changes: str) -> RunFolder:
    with apart(folder):
        run = run_of_twelve(write_text(folder / "text.txt", 200))
        return train(run.override(*changes), folder / "run")


def evaluations(*losses: float | None) -> list[dict[str, object]]:
    return [{"kind": "eval", "step": i, "nats_per_token": x} for i, x in enumerate(losses)]


@pytest.mark.parametrize(
    ("losses", "patience", "min_delta", "number"),
    [
        ((3.0, 2.0, 1.0), 1, 0.0, 0),
        ((3.0, 3.0), 1, 0.0, 1),  # as low is not lower
        ((3.0, 2.0, 2.1, 2.05), 2, 0.0, 2),
        ((3.0, 2.0, 2.1, 1.99), 2, 0.0, 0),
        ((3.0, 2.0, 1.95, 1.91), 2, 0.1, 2),  # each a little lower, together less than 0.1
        ((3.0, 2.0, 1.95, 1.89), 2, 0.1, 0),  # by which 2.0 was undercut in the end
        ((3.0, math.nan, None), 2, 0.0, 2),
        ((math.nan, math.nan), 2, 0.0, 2),
        ((3.0, 4.0, 5.0), 0, 0.0, 2),
    ],
)
def test_evaluations_without_a_new_lowest_loss_are_counted(
    losses: tuple[float | None, ...], patience: int, min_delta: float, number: int
) -> None:
    spec = EarlyStopSpec(patience=patience, min_delta=min_delta)
    stop = EarlyStop(spec, evaluations(*losses))
    assert stop.num_without == number
    assert stop.is_due == (patience > 0 and number >= patience)
    one_by_one = EarlyStop(spec)
    for record in evaluations(*losses):
        one_by_one.add(record)
    assert (one_by_one.num_without, one_by_one.lowest) == (stop.num_without, stop.lowest)


@pytest.mark.slow
def test_a_run_that_is_never_due_is_the_same_run(
    longer: RunSpec, plain: RunFolder, tmp_path: Path
) -> None:
    patient = longer.override(*EVERY, "early_stop.patience=100")
    assert patient.hash() != longer.override(*EVERY).hash()
    folder = train(patient, tmp_path / "run")
    assert timeless(folder) == timeless(plain)
    assert timeless(folder, "eval") == timeless(plain, "eval")
    assert folder.model_file.read_bytes() != b""
    assert _weights_equal(folder.model_file, plain.model_file)


@pytest.mark.slow
def test_it_ends_where_the_loss_has_not_fallen(plain: RunFolder, early: RunFolder) -> None:
    folder = early
    assert folder.finished
    assert timeless(folder) == timeless(plain)[:6]
    *on_the_way, last = timeless(folder, "eval")
    assert on_the_way == timeless(plain, "eval")[:3]
    assert last["step"] == 6  # and the whole text is read, as at the end of any run
    assert last["num_tokens"] > on_the_way[-1]["num_tokens"]
    assert _weights_equal(folder.model_file, plain.checkpoints()[2] / "model.safetensors")
    assert not folder.best_file.exists()
    assert folder.metrics()[-1]["text"] == "6 steps"
    history = read_history(folder)
    first = timeless(plain, "eval")[0]["nats_per_token"]
    assert notice(history, result_of(history)) == (
        f"This run ended early, at step 6 of 12: the held-out loss did not fall below {first:.4f} by 10 or more in 2 "
        "evaluations; weights are those of step 2."
    )


@pytest.mark.slow
def test_its_numbers_are_of_the_weights_that_it_has(
    longer: RunSpec, early: RunFolder, tmp_path: Path
) -> None:
    last = train(longer.override(*EVERY, *SOON, "early_stop.restore_best=false"), tmp_path / "run")
    assert _weights_equal(last.model_file, early.checkpoints()[6] / "model.safetensors")
    found = [timeless(folder, "eval")[-1]["nats_per_token"] for folder in (early, last)]
    assert found[0] != found[1]
    assert timeless(early) == timeless(last)
    history = read_history(last)
    assert "weights" not in (notice(history, result_of(history)) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-100])]
)
def test_where_the_best_weights_are_lost_the_last_ones_stay(
    longer: RunSpec, early: RunFolder, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    run = longer.override(*EVERY, *SOON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finalize_room, "final_evaluation", die)
        with pytest.raises(Died):
            train(run, tmp_path / "run")
    damage(RunFolder(tmp_path / "run").best_file)
    with pytest.warns(UserWarning, match="weights of the last step are kept"):
        folder = train(run, tmp_path / "run")
    assert _weights_equal(folder.model_file, folder.checkpoints()[6] / "model.safetensors")


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_run_that_is_killed_before_ends_at_the_same_step(
    longer: RunSpec, early: RunFolder, tmp_path: Path, step: int
) -> None:
    run = longer.override(*EVERY, *SOON)
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, step, die)
        with pytest.raises(Died):
            train(run, tmp_path / "run")
    _same(train(run, tmp_path / "run"), early)


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("function", ["final_evaluation", "compressors", "report"])
def test_a_run_that_is_killed_at_its_early_end_is_finished_there(
    longer: RunSpec, early: RunFolder, tmp_path: Path, function: str
) -> None:
    run = longer.override(*EVERY, *SOON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finalize_room, function, die)
        with pytest.raises(Died):
            train(run, tmp_path / "run")
    _same(train(run, tmp_path / "run"), early)


@pytest.mark.slow
def test_a_callback_that_fails_where_a_run_ends_early_changes_nothing_of_that(
    longer: RunSpec, early: RunFolder, tmp_path: Path
) -> None:
    def fail(record: Record) -> None:
        if record["step"] == 6:
            raise ZeroDivisionError

    run = longer.override(*EVERY, *SOON)
    with pytest.raises(ZeroDivisionError):
        archwright.train(run, out=tmp_path / "run", quiet=True, on_evaluation=fail)
    _same(train(run, tmp_path / "run"), early)


@pytest.mark.slow
def test_the_terminal_says_where_and_why(
    longer: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archwright.train(longer.override(*EVERY, *SOON), out=tmp_path / "run")
    assert "ended early, at step 6 of 12: the held-out loss did not" in capsys.readouterr().err


def _same(folder: RunFolder, whole: RunFolder) -> None:
    for kind in ("train", "eval", "baseline"):
        assert timeless(folder, kind) == timeless(whole, kind), kind
    assert folder.model_file.read_bytes() == whole.model_file.read_bytes()
    early = [r["step"] for r in folder.metrics() if r.get("name") == "early_stop"]
    assert early == [6]


def _weights_equal(one: Path, other: Path) -> bool:
    left, right = checkpoint.read_model(one), checkpoint.read_model(other)
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)
