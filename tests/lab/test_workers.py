"""Jobs of processes of this machine: one whose process dies is tried again."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from archwright.lab.running import run_job
from archwright.lab.running.jobs import job
from archwright.lab.running.local import LocalExecutor
from archwright.lab.running.run_cache import NUMERICS
from archwright.lab.running.workers import TRIES, Done, Workers
from archwright.runs import RunFolder
from tests.tiny import surroundings, tiny_run


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.chdir(tmp_path)
    with Workers(LocalExecutor(tmp_path / "log.txt"), 2) as workers:
        yield workers


def python(code: str, *words: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import os, sys, time; {code}", *words)


def all_done(workers: Workers) -> dict[object, Done]:
    found: list[Done] = []
    end = time.monotonic() + 120
    while workers.running:
        assert time.monotonic() < end
        found += workers.wait(0.2)
    return {done.name: done for done in found}


@pytest.mark.slow
def test_jobs_have_a_folder_and_an_environment_and_processes_are_used_again(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "here")
    parent = "open(sys.argv[1], 'w').write(f'{os.getppid()} {os.environ[\"ARCHWRIGHT_CACHE\"]}')"
    for name in "ab":
        workers.give(name, job(*python(f"time.sleep(0.5); {parent}", name)))
    assert (workers.free, workers.running) == (0, {"a", "b"})
    assert {done.state for done in all_done(workers).values()} == {"done"}
    workers.give("c", job(*python(parent, "c")))
    all_done(workers)
    a, b, c = ((tmp_path / name).read_text().split() for name in "abc")
    assert c in (a, b)
    assert a != b
    assert c[1] == "here"
    monkeypatch.setenv("ARCHWRIGHT_CACHE", "there")
    workers.give("d", job(*python(parent, "d")))
    all_done(workers)
    assert (tmp_path / "d").read_text().split()[1] == "there"


def test_a_job_that_fails_says_why(workers: Workers) -> None:
    workers.give("a", job(*python("sys.exit(3)")))
    workers.give("b", job(*run_job.COMMAND, "train", "none"))
    done = all_done(workers)
    assert [(done[n].state, done[n].why) for n in "ab"] == [
        ("failed", "exit code 3"),
        ("failed", "none: there is no such run."),
    ]


def test_a_run_of_other_numerics_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_run("text.txt"))
    folder.write_environment({"numerics": 0})
    words = run_job.training(folder.path).argv[len(run_job.COMMAND) :]
    answer = run_job.run(words)
    assert answer["state"] == "refused"
    assert answer["why"].startswith(
        f"{socket.gethostname()} has NUMERICS {NUMERICS}, and the study 0"
    )


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_job_whose_process_dies_is_tried_again_and_given_up(
    workers: Workers, tmp_path: Path
) -> None:
    """Its own process, or the worker."""
    die = "open(sys.argv[1], 'a').write('x'); os.kill(os.{}(), 9)"
    workers.give("a", job(*python(die.format("getpid"), "a")))
    workers.give(
        "b", job(*python(f"os.path.exists('b') or exec(\"{die.format('getppid')}\")", "b"))
    )
    done = all_done(workers)
    assert (done["b"].state, (tmp_path / "b").read_text()) == ("done", "x")
    assert (tmp_path / "a").read_text() == "x" * TRIES
    assert done["a"].state == "failed"
    assert done["a"].why == f"its process died by signal {signal.SIGKILL.value}, {TRIES} times"


@pytest.mark.skipif(os.name == "nt", reason="needs SIGTERM")
def test_at_the_end_all_jobs_are_asked_to_save_and_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path("saved").touch(), sys.exit(-15)))
Path("began").touch()
time.sleep(60)
"""
    began = time.monotonic()
    with Workers(LocalExecutor(tmp_path / "log.txt"), 1) as workers:
        workers.give("a", job(sys.executable, "-c", code))
        while not (tmp_path / "began").exists():
            workers.wait(0.1)
    assert (tmp_path / "saved").exists()
    assert time.monotonic() - began < 60


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGTERM")
def test_a_worker_leaves_when_who_gave_it_work_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "archwright.lab.running.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=surroundings(),
    ) as process:
        process.stdin and process.stdin.close()
        assert process.wait(60) in (0, -signal.SIGTERM)
