"""Processes that do jobs: one that dies is replaced, and its job done by another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.lab.workers import TRIES, Done, Workers
from tests.tiny import surroundings

SCRIPT = """
import json, os, signal, sys, time
for line in sys.stdin:
    job = json.loads(line)
    if job["do"] == "die" and not os.path.exists(job["unless"]):
        open(job["then"], "a").write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    if job["do"] == "fail":
        print(json.dumps({"state": "failed", "why": "no memory"}), flush=True)
        continue
    time.sleep(job.get("seconds", 0))
    print(json.dumps({"state": "done", "pid": os.getpid()}), flush=True)
open(sys.argv[1], "a").write("left ")
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    with Workers(2, tmp_path / "log.txt") as workers:
        workers._command = [sys.executable, str(script), str(tmp_path / "left")]
        yield workers


def all_done(workers: Workers) -> list[Done]:
    found: list[Done] = []
    end = time.monotonic() + 60
    while workers.running:
        assert time.monotonic() < end
        found += workers.wait(0.2)
    return found


@pytest.mark.slow
def test_jobs_go_on_side_by_side_and_processes_are_used_again(workers: Workers) -> None:
    workers.give("a", {"do": "x", "seconds": 0.5})
    workers.give("b", {"do": "x", "seconds": 0.5})
    assert workers.free == 0
    assert workers.running == {"a", "b"}
    first = all_done(workers)
    assert {done.name for done in first} == {"a", "b"}
    workers.give("c", {"do": "x"})
    (third,) = all_done(workers)
    assert third.answer["pid"] in {done.answer["pid"] for done in first}


def test_a_job_that_fails_says_why(workers: Workers) -> None:
    workers.give("a", {"do": "fail"})
    (done,) = all_done(workers)
    assert (done.state, done.why) == ("failed", "no memory")


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_job_whose_process_dies_is_done_by_another(workers: Workers, tmp_path: Path) -> None:
    log = str(tmp_path / "died")
    workers.give("a", {"do": "die", "unless": log, "then": log})
    (done,) = all_done(workers)
    assert done.state == "done"
    assert Path(log).read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_job_that_kills_every_process_is_given_up(workers: Workers, tmp_path: Path) -> None:
    log = tmp_path / "died"
    workers.give("a", {"do": "die", "unless": str(tmp_path / "never"), "then": str(log)})
    workers.give("b", {"do": "x"})
    by_name = {done.name: done for done in all_done(workers)}
    assert by_name["b"].state == "done"
    assert by_name["a"].state == "failed"
    assert by_name["a"].why == f"its process died by signal {signal.SIGKILL.value}, {TRIES} times"
    assert log.read_text() == "x" * TRIES


def test_at_the_end_all_processes_leave(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    with Workers(2, tmp_path / "log.txt") as workers:
        workers._command = [sys.executable, str(script), str(tmp_path / "left")]
        for name in ("a", "b"):
            workers.give(name, {"do": "x"})
        all_done(workers)
    assert (tmp_path / "left").read_text() == "left left "


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGTERM")
def test_a_worker_leaves_when_who_gave_it_work_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "archwright.lab.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=surroundings(),
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write('{"do": "train", "folder": "none"}\n')
        process.stdin.flush()
        assert "none: there is no such run" in process.stdout.readline()
        process.stdin.close()
        assert process.wait(30) in (0, -signal.SIGTERM)
