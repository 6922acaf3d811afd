"""What interruptions change of a run, which is nothing."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import archwright
from archwright import checkpoint
from archwright.machine import decide as machine_room
from archwright.runs import RunFolder
from archwright.runs.records import Record
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training import finalize as finalize_room
from archwright.training import program
from archwright.training import resolve as resolve_room
from archwright.training import train as train_room
from archwright.training.loop import Loop
from archwright.training.program import Program
from archwright.training.session import Session
from archwright.training.train import Stopped
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

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long and is not looked at."""
    if "nothing_left_out" not in request.fixturenames:
        leave_out(monkeypatch)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """What nothing interrupted."""
    folder = tmp_path_factory.mktemp("plain")
    with apart(folder):
        return train(run_of_twelve(write_text(folder / "text.txt", 200)), folder / "run")


@pytest.mark.parametrize("step", [0, 4, 6, 11])
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_as_if_nothing_was(
    longer: RunSpec,
    plain: RunFolder,
    tmp_path: Path,
    step: int,
    which: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(which)
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: signal.raise_signal(which))
        if step == 11:  # the last step ends the run anyway
            folder = train(longer, tmp_path / "run")
        else:
            with pytest.raises(Stopped) as caught:
                train(longer, tmp_path / "run")
            assert caught.value.signal == which
            assert f"step {step + 1} " in str(caught.value)
            folder = RunFolder.open(tmp_path / "run")
            assert folder.metrics()[-1]["name"] == "stopped"
            assert max(folder.checkpoints()) == step + 1
            assert not folder.finished
            assert folder.report_file.exists()
    assert signal.getsignal(which) == before
    if step != 11:
        folder = train(longer, tmp_path / "run")
        names = [r["name"] for r in folder.metrics() if r["kind"] == "event"]
        assert names == ["started", "stopped", "resumed", "finished"]
    assert timeless(folder) == timeless(plain)
    assert timeless(folder, "eval") == timeless(plain, "eval")
    assert timeless(folder, "baseline") == timeless(plain, "baseline")
    assert folder.samples() == plain.samples()
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()


def test_a_hybrid_goes_on_in_the_middle_of_a_document(longer: RunSpec, tmp_path: Path) -> None:
    hybrid = longer.override(
        *("data.packing=document_mask", "model.num_layers=2", "model.layers.cycle=['r','default']"),
        "model.layer_kinds={r={attention={kind='none'},position={kind='none'},recurrence={kind='linear'}}}",
    )
    plain = train(hybrid, tmp_path / "plain")
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 6, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Stopped):
            train(hybrid, tmp_path / "run")
    folder = train(hybrid, tmp_path / "run")
    assert timeless(folder) == timeless(plain)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()


def test_a_second_ctrl_c_ends_at_once(longer: RunSpec, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "start_saving", lambda self: signal.raise_signal(signal.SIGINT))
        at_step(patch, 1, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(longer, tmp_path / "run")
    folder = train(longer, tmp_path / "run")
    assert [record["step"] for record in timeless(folder)] == list(range(1, 13))


@pytest.mark.parametrize(
    ("room", "name"),
    [
        (train_room, "prepare_data"),
        (train_room, "resolve"),
        (RunFolder, "write_spec"),
        (RunFolder, "write_environment"),
        (Program, "_restore"),
        (checkpoint.steps, "write_begun"),
        (finalize_room, "final_evaluation"),
        (finalize_room, "compressors"),
        (finalize_room, "stream"),
        (RunFolder, "write_samples"),
        (checkpoint, "write_model"),
    ],
)
def test_dying_anywhere_changes_nothing(
    longer: RunSpec,
    plain: RunFolder,
    tmp_path: Path,
    room: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "_discard", lambda *_: None)  # as the process would be dead
        patch.setattr(room, name, die)
        with pytest.raises(Died):
            train(longer, tmp_path / "run")
    folder = train(longer, tmp_path / "run")
    assert folder.finished
    for kind in ("train", "eval", "baseline"):
        assert timeless(folder, kind) == timeless(plain, kind)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()


@pytest.mark.parametrize("died_after", [1, 2, 3])
def test_what_finishing_recorded_is_not_recorded_twice(
    longer: RunSpec, tmp_path: Path, died_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Loop.record
    left = [died_after]

    def record(self: Loop, kind: str, **values: Any) -> Record:
        written = plain(self, kind, **values)
        left[0] -= kind in ("eval", "baseline") and self.session.standing.step == 12
        if left[0] == 0:
            raise Died
        return written

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "record", record)
        with pytest.raises(Died):
            train(longer, tmp_path / "run")
    folder = train(longer, tmp_path / "run")
    assert [r["step"] for r in timeless(folder, "eval")] == [5, 10, 12]
    assert len(timeless(folder, "baseline")) == 2


def test_a_resumed_run_decides_nothing(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = longer.override("machine.precision=auto", "machine.threads=auto", "machine.kernel=auto")
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    with monkeypatch.context() as patch:
        at_step(patch, 4, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Stopped):
            train(free.override("budget=1h", "machine.num_steps=auto"), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    spec, environment = folder.spec_file.read_bytes(), folder.environment_file.read_bytes()
    for room, name in (
        *((machine_room, n) for n in ("peak_of", "decide", "decide_kernel")),
        *((resolve_room, n) for n in ("decide", "decide_kernel", "_take_weights")),
        (program, "time_end"),
        (Session, "time_step"),
    ):
        monkeypatch.setattr(room, name, die)
    at_step(monkeypatch, 8, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        archwright.resume(folder, quiet=True)
    assert [record["step"] for record in timeless(folder)] == list(range(1, 10))
    assert folder.spec_file.read_bytes() == spec
    assert folder.environment_file.read_bytes() == environment


def test_three_lines_before_the_first_step_and_one_more_where_it_goes_on(
    longer: RunSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at_step(monkeypatch, 4, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped):
        archwright.train(longer, out=tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[0].split("(")[0] for line in lines[:3]] == ["Decoder", "data:", "12"]
    assert lines[2].startswith(f"12 steps of {longer.tokens_per_step:,} tokens, on cpu in ")
    assert lines[3].startswith("step 1 of 12 ")
    archwright.resume(tmp_path / "run", verbose=True)
    lines = capsys.readouterr().err.splitlines()
    reasons = RunFolder(tmp_path / "run").environment()["decisions"]
    assert reasons
    for number, (key, made) in enumerate(reasons.items(), 3):
        assert lines[number] == f"{key} = {made['value']}: {made['reason']}"
    assert lines[3 + len(reasons)] == "resuming at step 5"
    assert lines[4 + len(reasons)].startswith("step 6 of 12 ")


def test_a_finished_run_is_returned_as_it_is(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(longer, tmp_path / "run")
    before = folder.metrics_file.read_bytes()
    monkeypatch.setattr(train_room, "train_in", die)
    folder.report_file.unlink()  # as if its process had died before it wrote the page
    again = archwright.train(longer, out=tmp_path / "run", quiet=True)
    assert folder.metrics_file.read_bytes() == before
    assert folder.report_file.exists()
    assert torch.equal(
        again.model.head.weight, checkpoint.read_model(folder.model_file)["head.weight"]
    )


def test_a_damaged_checkpoint_is_passed_over(
    longer: RunSpec, plain: RunFolder, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 7, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Stopped):
            train(longer, tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    assert sorted(folder.checkpoints()) == [6, 8]
    file = folder.checkpoints()[8] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.warns(UserWarning, match="step-8.*damaged.*step-6 is used instead"):
        train(longer, tmp_path / "run")
    assert timeless(folder) == timeless(plain)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()


def test_weights_to_start_from_are_read_once(longer: RunSpec, tmp_path: Path) -> None:
    """They may change, or go, before the first checkpoint of the run that began with them."""
    source = train(longer.override("seed=5", "budget=2steps"), tmp_path / "source")
    tuned = longer.override(f"init.from={source.path}", "checkpoint.every=100")
    plain = train(tuned, tmp_path / "plain")
    assert timeless(plain, "event")[0]["name"] == "started"
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 4, die)
        with pytest.raises(Died):
            train(tuned, tmp_path / "run")
    shutil.rmtree(source.path)
    folder = train(tuned, tmp_path / "run")
    assert timeless(folder) == timeless(plain)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()


def test_a_run_that_is_removed_stops_training(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a file was written anew while the folder was being removed."""

    def remove() -> None:
        while (tmp_path / "run").exists():  # a checkpoint may be on its way into it
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.jsonl").touch()

    at_step(monkeypatch, 4, remove)
    with pytest.raises(UserError, match="run was removed during training"):
        train(longer, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == ""
