"""Checkpoints that are written while training goes on: what is in them, and what becomes of those that are cut off."""

import errno
import os
import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import archwright
from archwright import checkpoint
from archwright.checkpoint import steps, weights
from archwright.model import build
from archwright.runs import RunFolder
from archwright.scale.layout import Layout
from archwright.spec.errors import UserError
from archwright.spec.run_spec import RunSpec
from archwright.training import finalize, loop
from archwright.training.data import Material
from archwright.training.progress import Silent
from archwright.training.resolve import resolve
from tests.training.test_session import assert_same, state_of, trained_for

SECONDS = 30.0
"""Time after which a test that waits has failed."""


class Disk:
    """A disk on which nothing is written until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.reached = threading.Event(), threading.Event()
        self.plain = weights.write_tensors
        monkeypatch.setattr(weights, "write_tensors", self.write)

    def write(self, path: Path, *rest: Any) -> None:
        self.reached.set()
        assert self.free.wait(SECONDS), "nobody lets it go on"
        self.plain(path, *rest)


def test_it_is_that_of_its_step_though_training_went_on(
    run: RunSpec, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run.override("model.embedding.dropout=0.2", "optimizer.kind=muon")
    session, _ = resolve(run, material, Silent())
    trained_for(2, session)
    disk = Disk(monkeypatch)
    session.start_saving(tmp_path)
    saved, later = state_of(session), trained_for(2, session)
    assert session.is_saving
    assert checkpoint.complete(tmp_path) == {}
    disk.free.set()
    session.settle()
    other, _ = resolve(run, material, Silent())
    other.restore(tmp_path / "step-2")
    assert_same(state_of(other), saved)
    assert_same(trained_for(2, other), later)


def test_the_next_one_waits(
    run: RunSpec, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = resolve(run, material, Silent())
    disk, order = Disk(monkeypatch), list[int]()
    plain = steps._publish

    def publish(new: Path, target: Path) -> None:
        order.append(session.standing.step)
        plain(new, target)

    monkeypatch.setattr(steps, "_publish", publish)
    session.start_saving(tmp_path)
    session.standing.step += 1
    threading.Timer(0.1, disk.free.set).start()
    session.start_saving(tmp_path)
    session.settle()
    assert order == [1, 1]
    assert [*checkpoint.complete(tmp_path)] == [0, 1]


def test_the_end_waits_and_a_run_is_what_it_was(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose checkpoints take their time equals, bit for bit, one that is cut off and goes on."""
    saving = longer.override("checkpoint.every=4", "checkpoint.keep=9")
    whole = archwright.train(saving, out=tmp_path / "whole", quiet=True).folder
    assert [*whole.checkpoints()] == [4, 8, 12]

    def slow(path: Path, *rest: Any, plain: Callable[..., None]) -> None:
        threading.Event().wait(0.02)
        plain(path, *rest)

    monkeypatch.setattr(weights, "write_tensors", partial(slow, plain=weights.write_tensors))

    class StopHere(Exception):  # noqa: N818
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 6:
            raise StopHere

    with pytest.raises(StopHere):
        archwright.train(saving, out=tmp_path / "cut", quiet=True, on_step=stop)
    assert [*RunFolder(tmp_path / "cut").checkpoints()] == [4, 6]
    cut = archwright.resume(tmp_path / "cut", quiet=True).folder
    assert cut.model_file.read_bytes() == whole.model_file.read_bytes()
    for step, path in whole.checkpoints().items():
        for name in ("model.safetensors", "optimizers.safetensors"):
            assert (cut.checkpoints()[step] / name).read_bytes() == (path / name).read_bytes()


def test_a_full_disk_ends_the_run_in_one_line_and_costs_nothing(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = longer.override("checkpoint.every=3")
    whole = archwright.train(saving, out=tmp_path / "whole", quiet=True).folder
    with monkeypatch.context() as patch:
        plain = weights.write_tensors

        def full(path: Path, *rest: Any) -> None:
            if path.parent.name == ".tmp-6" and path.name == "optimizers.safetensors":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            plain(path, *rest)

        patch.setattr(weights, "write_tensors", full)
        with pytest.raises(UserError, match=r"step-6 cannot be written: No space left") as error:
            archwright.train(saving, out=tmp_path / "cut", quiet=True)
        assert len(error.value.lines) == 1
    cut = RunFolder(tmp_path / "cut")
    assert [*cut.checkpoints()] == [3]
    assert [p.name for p in cut.checkpoints_folder.iterdir()] == ["step-3"]
    assert archwright.resume(cut, quiet=True).folder.finished
    assert cut.model_file.read_bytes() == whole.model_file.read_bytes()


@pytest.mark.release
@pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")
def test_a_run_killed_while_one_is_written_goes_on_from_the_one_before(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = longer.override("checkpoint.every=4")
    whole = archwright.train(saving, out=tmp_path / "whole", quiet=True).folder
    if (child := os.fork()) == 0:
        disk = Disk(monkeypatch)

        def kill(record: dict[str, Any]) -> None:
            if record["step"] == 4:
                disk.free.set()
            elif record["step"] == 8:
                disk.free.clear()
                disk.reached.clear()
            elif record["step"] == 10 and disk.reached.is_set():
                os.kill(os.getpid(), signal.SIGKILL)

        archwright.train(saving, out=tmp_path / "cut", quiet=True, on_step=kill)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    cut = RunFolder(tmp_path / "cut")
    assert [*cut.checkpoints()] == [4]
    assert (cut.checkpoints_folder / ".tmp-8").is_dir(), "it was being written"
    assert archwright.resume(cut, quiet=True).folder.finished
    assert [p.name for p in cut.checkpoints_folder.iterdir() if "tmp" in p.name] == []
    assert cut.model_file.read_bytes() == whole.model_file.read_bytes()


def test_checkpoints_follow_each_other_by_what_they_cost(
    longer: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a first one, there is no second one until training has taken long enough."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    steps, events = {}, {}
    for name, share in (("cheap", 1e9), ("dear", 1e-9)):
        monkeypatch.setattr(loop, "CHECKPOINT_SHARE", share)
        run = longer.override("checkpoint.keep=99", "checkpoint.every=0")
        folder = archwright.train(run, out=tmp_path / name, quiet=True).folder
        steps[name] = [*folder.checkpoints()]
        events[name] = [r["text"] for r in folder.metrics() if r.get("name") == "checkpoints"]
    assert len(steps["cheap"]) > 2
    assert steps["dear"] == [1, 12]
    (text,) = events["dear"]
    assert re.fullmatch("every .*, as each stops training for .*", text)


@pytest.mark.parametrize(("layout", "samples"), [(Layout(), True), (Layout(1, 2), False)])
def test_several_processes_sample_from_weights_that_one_can_read(
    layout: Layout, samples: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("textbook", device="meta", vocab_size=50)
    session: Any = SimpleNamespace(whole=model, processes=SimpleNamespace(layout=layout))
    assert finalize.can_sample(session)
    monkeypatch.setattr(finalize, "LARGEST_SAMPLED", 1000)
    assert finalize.can_sample(session) == samples
