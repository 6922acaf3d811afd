"""A run with a budget in time, cut off anywhere, comes to what it comes to undisturbed in the same time."""

import signal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from archwright.reporting.history import read_history
from archwright.runs import RunFolder
from archwright.runs.records import Record
from archwright.spec.run_spec import RunSpec
from archwright.training import program
from archwright.training.budget import Clock, recorded_progress
from archwright.training.loop import Loop
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


class Steps:
    """A clock that only steps move: from step 10 on they take twice as long."""

    def __init__(self, patch: pytest.MonkeyPatch, slower: float = 2.0) -> None:
        self.now = 0.0
        plain = Session.step

        def step(session: Session) -> Any:
            self.now += 0.1137 * (slower if session.standing.step >= 10 else 1.0)
            return plain(session)

        patch.setattr(Session, "step", step)
        patch.setattr(Session, "time_step", lambda self, seconds: 0.2)
        patch.setattr(program, "Clock", partial(Clock, clock=lambda: self.now))
        # The start took real time: let no time be left but the half that is always for training.
        patch.setattr(program, "time_end", lambda *_: (1e-9, 1e6))


def run_of_five_seconds(text: Path) -> RunSpec:
    """Of ten, half are for training."""
    return run_of_twelve(text).override("budget=10s", "evaluate.every=5", "schedule.warmup=2")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> Steps:
    leave_out(monkeypatch)
    return Steps(monkeypatch)


@pytest.fixture
def timed(text: Path) -> RunSpec:
    return run_of_five_seconds(text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """What nothing interrupted."""
    folder = tmp_path_factory.mktemp("plain")
    with apart(folder) as patch:
        Steps(patch)
        return train(run_of_five_seconds(write_text(folder / "text.txt", 200)), folder / "run")


def assert_same(folder: RunFolder, plain: RunFolder) -> None:
    assert folder.finished
    for kind in ("train", "eval", "baseline"):
        assert timeless(folder, kind) == timeless(plain, kind)
    assert folder.model_file.read_bytes() == plain.model_file.read_bytes()
    assert folder.spec == plain.spec.override(f"data.text={folder.spec.data.text[0]}")


def test_progress_is_recorded_at_every_step(plain: RunFolder) -> None:
    """Ten quick steps and seventeen slow ones take half of the budget, as the end has no time to give back."""
    records = timeless(plain)
    assert plain.spec.machine.num_steps == len(records) == 27
    progress = [record["progress"] for record in records]
    assert progress[:2] == pytest.approx([0.1137 / 5, 2 * 0.1137 / 5])
    assert progress[-2] == pytest.approx((10 + 2 * 16) * 0.1137 / 5)
    assert progress[-1] == 1
    assert all(b < a for a, b in pairwise(record["lr"] for record in records[3:]))
    assert [record["step"] for record in timeless(plain, "eval")] == [5, 10, 15, 20, 25, 27]
    assert read_history(plain).planned_steps == 27


def test_a_stopped_run_has_an_estimate_of_its_steps(
    timed: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve steps in the time of fourteen quick ones, of 44 in all."""
    at_step(monkeypatch, 11, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Stopped):
        train(timed, tmp_path / "run")
    assert read_history(RunFolder(tmp_path / "run")).planned_steps == round(12 * 44 / 14)


@pytest.mark.parametrize("step", [1, 11, 25])
def test_an_interrupted_run_goes_on_with_the_time_that_is_left(
    timed: RunSpec, plain: RunFolder, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Stopped):
            train(timed, tmp_path / "run")
    assert_same(train(timed, tmp_path / "run"), plain)


def test_time_is_reserved_for_the_end(
    timed: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: Steps
) -> None:
    """300 s of 1000; the run ends after its second step."""
    monkeypatch.setattr(program, "time_end", lambda *_: (0.25, 250.0))
    at_step(monkeypatch, 1, lambda: setattr(simulated, "now", 1e4))
    run = timed.override("budget=1000s", "evaluate.every=0", "schedule.warmup=auto")
    folder = train(run, tmp_path / "run")
    budget = folder.environment()["time_budget"]
    assert budget["ending"] == pytest.approx(300)
    assert budget["training"] == pytest.approx(700 - budget["spent"])
    assert len(timeless(folder)) == folder.spec.machine.num_steps == 2
    # Ten evaluations take half of the time: 100 tokens at 0.25 s.
    num_steps = folder.environment()["decisions"]["num_steps"]["value"]
    assert num_steps == pytest.approx((budget["training"] - 250) / 0.2, abs=1)
    assert folder.spec.evaluate.every == num_steps // 10


def test_what_cannot_be_read_in_time_is_read_in_part(
    timed: RunSpec, plain: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second for each token: no less than the least is read, and the same after an interruption."""
    monkeypatch.setattr(program, "LEAST_READ", 50)
    monkeypatch.setattr(program, "time_end", lambda *_: (1.0, 1e6))
    whole = train(timed, tmp_path / "whole")
    assert whole.spec.evaluate.final_max_tokens == 50
    *_, last = timeless(whole, "eval")
    *_, all_of_it = timeless(plain, "eval")
    assert last["num_tokens"] < all_of_it["num_tokens"]
    with monkeypatch.context() as patch:
        at_step(patch, 11, lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(Stopped):
            train(timed, tmp_path / "run")
    assert timeless(train(timed, tmp_path / "run"), "eval")[-1]["num_tokens"] == last["num_tokens"]


@pytest.mark.parametrize("number", [1, 11, 27])
@pytest.mark.parametrize("place", ["before", "after", "followed"])
def test_dying_around_a_record_changes_nothing(
    timed: RunSpec,
    plain: RunFolder,
    tmp_path: Path,
    place: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, left = Loop.record, [number]

    def recorded(self: Loop, kind: str, **values: Any) -> Record:
        left[0] -= kind == "train"
        if place == "before" and left[0] == 0:
            raise Died
        written = record(self, kind, **values)
        if place == "after" and left[0] == 0:
            raise Died
        return written

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "record", recorded)
        if place == "followed":
            patch.setattr(Loop, "start_saving", lambda self: die() if left[0] <= 0 else None)
        with pytest.raises(Died):
            train(timed, tmp_path / "run")
    assert_same(train(timed, tmp_path / "run"), plain)


def test_steps_that_are_trained_again_have_the_progress_they_had(
    timed: RunSpec, plain: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes die, at step 17 and at 16, after the checkpoint of 15; the third finds a busier machine."""
    for step in (17, 16):
        with monkeypatch.context() as patch:
            at_step(patch, step, die)
            with pytest.raises(Died):
                train(timed, tmp_path / "run")
    with monkeypatch.context() as patch:
        Steps(patch, slower=4.0)
        folder = train(timed, tmp_path / "run")
    found, expected = timeless(folder), timeless(plain)
    assert found[:17] == expected[:17]
    assert found[17:] != expected[17:]
    assert len(found) < len(expected)
    progress = recorded_progress(folder.metrics())
    assert progress[18] - progress[17] == pytest.approx(4 * 0.1137 / 5)
