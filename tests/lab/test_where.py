"""Runs on other machines: what is refused, what an agent does there, and what becomes of workers that die."""

import json
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.lab import remote_workers
from archwright.lab.agent import Agent, Order
from archwright.lab.compare import compare
from archwright.lab.remote_workers import RemoteWorker, RemoteWorkers
from archwright.lab.sbatch import parameters
from archwright.lab.where import Where
from archwright.lab.workers import Workers
from archwright.runs import Holder, RunFolder
from archwright.spec.errors import UserError
from tests.lab.small import OPTIONS, words, working_in


def test_what_sbatch_is_asked_for_is_said_in_its_names() -> None:
    asked = "partition=gpu,--time=90,exclude=a1,a2,mem-per-cpu=2G"
    assert parameters(asked) == {
        "partition": "gpu",
        "timeout_min": "90",
        "exclude": "a1,a2",
        "mem_per_cpu": "2G",
    }
    assert parameters("") == {}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"on": "slrum"}, '--on: found "slrum"; expected one of ray, slurm. Did you mean "slurm"?'),
        ({"slurm": "time=60"}, "--slurm: expected --on slurm beside it"),
        (
            {"workers": 4},
            "--workers: expected --on ray or --on slurm beside it; here, as many runs go at once as there are cores",
        ),
        ({"on": "ray", "workers": -1}, "--workers: found -1; expected 1 or more"),
        (
            {"on": "slurm", "slurm": "gpu"},
            '--slurm: found "gpu"; expected NAME=VALUE,..., as sbatch names it: partition=gpu,time=60',
        ),
        (
            {"on": "slurm", "slurm": "time=1:00:00"},
            '--slurm: time: found "1:00:00"; expected a whole number of minutes, such as 60',
        ),
        (
            {"on": "slurm", "slurm": "nodes=2"},
            "--slurm: nodes is not yours to say: a run is trained on one",
        ),
        ({"on": "slurm", "slurm": "qos=a,qos=b"}, "--slurm: qos is given twice"),
        (
            {"on": "slurm", "slurm": "cluster=here"},
            '--slurm: cluster: found "here"; expected one of slurm, local',
        ),
    ],
)
def test_options_of_places(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        Where(**given)
    assert error.value.lines == (line,)


def refused(place: Path, **options: Any) -> str:
    """Return the line by which a study is refused, of which nothing may be left."""
    before = {*place.rglob("*")}
    with pytest.raises(UserError) as error:
        compare(*words("text.txt", ":norm.kind=layer"), quiet=True, **OPTIONS | options)
    assert {*place.rglob("*")} == before
    [line] = error.value.lines
    return line


def test_what_is_missing_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with working_in(tmp_path):
        for package in ("ray", "submitit"):
            monkeypatch.setitem(sys.modules, package, None)
        assert refused(tmp_path, on="ray") == (
            "--on ray: Ray is not installed; run: pip install 'archwright[ray]'"
        )
        assert refused(tmp_path, on="slurm") == (
            "--on slurm: submitit is not installed; run: pip install 'archwright[slurm]'"
        )
        line = refused(tmp_path, on="ray", parallelism="none")
        assert line.startswith("--on ray: found --parallelism none beside it")


def order(folder: Path, **others: Any) -> Order:
    """Return the order of a study in a folder that this process has."""
    lock = folder / "lock.json"
    lock.write_text("ours")
    return replace(Order.of(lock, folder / "log.txt", ()), **others)


def test_an_agent_sees_whether_the_folder_is_the_same_one(tmp_path: Path) -> None:
    """A machine may have a folder of that name, and even a study in it."""
    host = socket.gethostname()
    unseen = f"{host} does not see {tmp_path} as it is here: studies need a file system that all machines share"
    ours = order(tmp_path)
    assert Agent(ours).hello() == {"host": host, "why": ""}
    assert Agent(replace(ours, holder="another's")).hello()["why"] == unseen
    (tmp_path / "lock.json").unlink()
    assert Agent(ours).hello()["why"] == unseen


def test_an_agent_has_the_versions_of_the_study(tmp_path: Path) -> None:
    ours = order(tmp_path)
    other = dict.fromkeys(ours.versions, "0.0")
    [host, why] = Agent(replace(ours, versions=other)).hello().values()
    theirs = " and ".join(f"{name} {number}" for name, number in ours.versions.items())
    assert why == (
        f"{host} has {theirs}, and the study archwright 0.0 and torch 0.0: install the same there"
    )


def test_an_agent_has_the_threads_and_the_cache_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "/shared")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ours = order(tmp_path)
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "/elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray sets it
    monkeypatch.chdir(tmp_path)
    Agent(ours).hello()
    assert os.environ["ARCHWRIGHT_CACHE"] == "/shared"
    assert "OMP_NUM_THREADS" not in os.environ


SLOW = """
import json, sys, time
for line in sys.stdin:
    time.sleep(json.loads(line)["seconds"])
    print(json.dumps({"state": "done"}), flush=True)
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let worker processes be a script that sleeps; return a study's folder."""
    script = tmp_path / "worker.py"
    script.write_text(SLOW)
    start = Workers.__init__

    def scripted(self: Workers, *args: Any) -> None:
        start(self, *args)
        self._command = [sys.executable, str(script)]

    monkeypatch.setattr(Workers, "__init__", scripted)
    monkeypatch.setattr("archwright.lab.agent.PULSE", 0.1)
    return tmp_path


def test_an_agent_leaves_when_the_study_is_let_go_or_taken_up_by_another(scripted: Path) -> None:
    for happens in (lambda f: f.unlink(), lambda f: f.write_text("another's")):
        agent = Agent(order(scripted))
        assert agent.hello()["why"] == ""
        assert agent.do({"seconds": 0}) == {"state": "done", "why": ""}
        happens(scripted / "lock.json")
        began = time.monotonic()
        assert agent.do({"seconds": 2}) == {"state": "stopped"}
        assert time.monotonic() - began < 10


class Mute(RemoteWorker):
    """A worker on another machine that says what a test lets it say."""

    def give(self, job: dict[str, Any]) -> None:
        self.job = job

    def look(self) -> None:
        pass

    def release(self) -> None:
        self._released = True

    def end(self) -> str:
        return "its machine is gone"


class Muted(RemoteWorkers):
    """Such workers."""

    pause = 0.01

    def _start(self) -> Mute:
        return Mute(self._events)


@pytest.fixture
def muted(tmp_path: Path) -> Muted:
    (tmp_path / "lock.json").write_text("ours")
    workers = Muted(tmp_path / "log.txt")
    workers.size = 3
    return workers


def busy(workers: Muted) -> RemoteWorker:
    [worker] = workers._busy.values()
    assert isinstance(worker, RemoteWorker)
    return worker


def test_time_in_a_queue_is_counted_apart_until_the_first_begins(muted: Muted) -> None:
    muted.wait(0.05)
    assert muted.queued == 0  # nobody waits
    muted.give("a", {})
    muted.wait(0.25)  # by a clock that may have started a little later than this one
    assert 0.2 <= muted.queued < 1
    before = muted.queued
    busy(muted)._said_hello({"host": "far", "why": ""})
    muted.give("b", {})  # which waits alone
    muted.wait(0.2)
    assert muted.queued == before


def test_a_job_whose_worker_died_is_tried_again_and_given_up(muted: Muted) -> None:
    muted.give("a", {})
    found = []
    for _ in range(3):
        assert not found
        muted._events.put((busy(muted), ""))
        found = [*muted.wait(0.05)]
    assert [(d.name, d.state, d.why) for d in found] == [
        ("a", "failed", "its machine is gone, 3 times")
    ]


def test_a_machine_that_cannot_take_part_ends_the_study(muted: Muted) -> None:
    muted.give("a", {})
    busy(muted)._said_hello({"host": "far", "why": "far does not see /here"})
    with pytest.raises(UserError, match=r"^far does not see /here$"):
        muted.wait(0.05)


def test_a_worker_that_was_stopped_by_its_machine_has_not_done_its_job(muted: Muted) -> None:
    muted.give("a", {})
    first = busy(muted)
    first._answer({"state": "stopped"})
    assert muted.wait(0.05) == ()
    assert busy(muted) is not first


def test_what_was_trained_must_be_seen_here(
    muted: Muted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    muted.give("a", {"do": "train", "folder": str(run)})
    worker = busy(muted)
    worker._said_hello({"host": "far", "why": ""})
    assert not worker._answer({"state": "done"})  # network file systems take their time
    monkeypatch.setattr(remote_workers, "UNSEEN", 0)
    assert worker._answer({"state": "done"})
    with pytest.raises(UserError, match=f"^far trained {run}, of which nothing is seen here"):
        muted.wait(0.05)
    monkeypatch.setattr(remote_workers, "UNSEEN", 60)
    event = {"kind": "event", "step": 1, "name": "finished"}
    (run / "metrics.jsonl").write_text(json.dumps(event) + "\n")
    worker._unseen = None
    assert worker._answer({"state": "done"})


def test_what_a_dead_worker_of_another_machine_held_is_let_go_after_a_while(
    muted: Muted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(name: str, host: str) -> RunFolder:
        run = RunFolder(tmp_path / name)
        run.path.mkdir()
        run.holder_file.write_text(
            json.dumps({"pid": 7, "host": host, "since": "", "started": 1.0})
        )
        return run

    runs = [held("a", "far"), held("b", "elsewhere"), held("c", "far")]
    for run in runs:
        muted.give(run.path.name, {"do": "train", "folder": str(run.path)})
        worker = muted._busy[run.path.name]
        assert isinstance(worker, RemoteWorker)
        worker._said_hello({"host": "far", "why": ""})
        muted._events.put((worker, ""))
        muted.wait(0.05)
    assert all(run.holder() for run in runs)  # it may be saving
    # The third has been taken up since.
    runs[2].holder_file.write_text(
        json.dumps({"pid": 8, "host": "far", "since": "", "started": 2.0})
    )
    later = time.monotonic() + remote_workers.PATIENCE + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    muted._let_go()
    assert runs[0].holder() is None
    assert runs[1].holder() == Holder(7, "elsewhere", "", 1.0)
    assert runs[2].holder() == Holder(8, "far", "", 2.0)
