"""Runs on other machines: what is refused, what an agent does there, and what becomes of workers that die."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.lab.compare import compare
from archwright.lab.running import remote, runner
from archwright.lab.running.jobs import Answer, Handle, Job, job
from archwright.lab.running.on_slurm import parameters
from archwright.lab.running.remote import RemoteExecutor, RemoteHandle, RemoteJob
from archwright.lab.running.where import Where
from archwright.lab.running.workers import TRIES, Workers
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


class Mute(RemoteHandle):
    """A job on another machine that says what a test has it say."""

    place, pause, over = "mars", 0.0, ""

    def ended(self) -> str:
        return self.over

    def cancel(self) -> None:
        self.cancelled = True


class Muted(RemoteExecutor):
    """Such jobs."""

    def submit(self, job: Job) -> Handle:
        self.last = Mute(self.remote(job))
        return self.last


CODE = "import os, time; time.sleep(float(os.environ.get('ARCHWRIGHT_SECONDS', '0')))"


def sent(folder: Path, **others: Any) -> RemoteJob:
    """Return a job of a study in a folder that this process has, as it is sent."""
    (folder / "lock.json").write_text("ours")
    return replace(Muted(folder / "log.txt").remote(job(sys.executable, "-c", CODE)), **others)


def answers(sent: RemoteJob) -> list[Answer]:
    sent()
    return [json.loads(line) for line in Path(sent.answers).read_text().splitlines()]


def test_a_machine_sees_whether_the_folder_is_the_same_one(tmp_path: Path) -> None:
    """It may have a folder of that name, and even a study in it."""
    host = socket.gethostname()
    unseen = f"{host} does not see {tmp_path} as it is here: studies need a file system that all machines share"
    ours = sent(tmp_path)
    assert answers(ours) == [{"host": host}, {"state": "done"}]
    assert answers(sent(tmp_path, holder="another's"))[-1]["why"] == unseen
    ours = sent(tmp_path)
    (tmp_path / "lock.json").unlink()
    assert answers(ours)[-1] == {"state": "refused", "why": unseen, "host": host}


def test_a_machine_needs_the_versions_of_the_study(tmp_path: Path) -> None:
    theirs = " and ".join(f"{name} {number}" for name, number in remote.versions().items())
    other = dict.fromkeys(remote.versions(), "0")
    assert answers(sent(tmp_path, versions=other))[-1]["why"] == (
        f"{socket.gethostname()} has {theirs}, and the study archwright 0 and torch 0: install the same there"
    )


def test_a_job_has_the_variables_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "/shared")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = "import json, os; json.dump(dict(os.environ), open('variables.json', 'w'))"
    monkeypatch.chdir(tmp_path)
    asked = job(sys.executable, "-c", code)
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "/elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # as Ray sets it
    assert answers(sent(tmp_path, job=asked))[-1] == {"state": "done"}
    variables = json.loads((tmp_path / "variables.json").read_text())
    assert variables["ARCHWRIGHT_CACHE"] == "/shared"
    assert "OMP_NUM_THREADS" not in variables


@pytest.mark.skipif(os.name == "nt", reason="needs SIGTERM")
def test_a_job_ends_when_the_study_is_let_go_or_taken_up_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PULSE", 0.1)
    monkeypatch.setenv("ARCHWRIGHT_SECONDS", "60")
    happens: list[Callable[[Path], Any]] = [Path.unlink, lambda f: f.write_text("another's")]
    for change in happens:
        ours = sent(tmp_path)
        timer = threading.Timer(1, change, (tmp_path / "lock.json",))
        timer.start()
        began = time.monotonic()
        assert answers(ours)[-1]["state"] in ("stopped", "died")
        assert time.monotonic() - began < 50


@pytest.fixture
def muted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Muted:
    monkeypatch.setattr(remote, "UNWRITTEN", 0.0)
    (tmp_path / "lock.json").write_text("ours")
    return Muted(tmp_path / "log.txt")


def test_a_job_whose_machine_died_or_stopped_it_is_tried_again_and_given_up(muted: Muted) -> None:
    workers, found, tried = Workers(muted, 1), list[Any](), list[Mute]()
    workers.give("a", job("x"))
    for end in range(TRIES):
        assert not found
        tried.append(muted.last)
        muted.last.sent.say({"host": "far"})
        if end == 0:
            muted.last.sent.say({"state": "stopped"})
        muted.last.over = "machine is gone"
        found = [*workers.wait(0.2)]
    assert len({*map(id, tried)}) == TRIES
    assert [(d.name, d.state, d.why) for d in found] == [
        ("a", "failed", f"its machine is gone, {TRIES} times")
    ]


def test_a_machine_that_cannot_take_part_ends_the_study(muted: Muted) -> None:
    workers = Workers(muted, 2)
    workers.give("a", job("x"))
    muted.last.sent.say({"state": "refused", "why": "far does not see /here"})
    with pytest.raises(UserError, match=r"^far does not see /here$"):
        workers.wait(0.2)
    workers = Workers(muted, 1)
    workers.give("a", job("x"))
    muted.last.over = "job 1 ended"
    with pytest.raises(UserError, match=r"^--on mars: job 1 ended before it began: it wrote"):
        workers.wait(0.2)


def test_at_the_end_what_waits_is_cancelled(muted: Muted, tmp_path: Path) -> None:
    with Workers(muted, 1) as workers:
        workers.give("a", job("x"))
        muted.last.over = "job was cancelled"
    assert muted.last.cancelled
    assert not (tmp_path / remote.FOLDER).exists()


def test_what_was_trained_must_be_seen_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)

    def write() -> None:
        event = {"kind": "event", "step": 1, "name": "finished"}
        run.metrics_file.write_text(json.dumps(event) + "\n")

    threading.Timer(0.5, write).start()  # network file systems take their time
    runner._wait_until_seen(run)
    run.metrics_file.unlink()
    monkeypatch.setattr(runner, "UNSEEN", 0)
    with pytest.raises(UserError, match="but nothing of it is seen here: runs need a file system"):
        runner._wait_until_seen(run)


def test_what_a_dead_job_of_another_machine_held_is_let_go_after_a_while(
    muted: Muted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 1.0)

    def held(name: str, host: str, pid: int = 7) -> RunFolder:
        run = RunFolder(tmp_path / name)
        run.path.mkdir(exist_ok=True)
        run.holder_file.write_text(
            json.dumps({"pid": pid, "host": host, "since": "", "started": float(pid)})
        )
        return run

    runs = [held("a", "far"), held("b", "elsewhere"), held("c", "far")]
    for run in runs:
        handle = Mute(muted.remote(job("x", run=str(run.path))))
        handle.sent.say({"host": "far"})
        handle.sent.say({"state": "died"})
        assert handle.poll() == {"state": "died"}
    assert all(run.holder() for run in runs)  # it may be saving
    held("c", "far", pid=8)  # it has been taken up since
    end = time.monotonic() + 10
    while runs[0].holder() and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    assert runs[0].holder() is None
    assert runs[1].holder() == Holder(7, "elsewhere", "", 7.0)
    assert runs[2].holder() == Holder(8, "far", "", 8.0)
