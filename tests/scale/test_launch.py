"""Processes that torchrun starts do not outlive it."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.tiny import ROOT, surroundings

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")

CHILD = """
import time
from archwright.scale.launch import end_with_torchrun
end_with_torchrun()
print(flush=True)
time.sleep(30)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "lives"), [({"TORCHELASTIC_RUN_ID": "1"}, False), ({}, True)]
)
def test_a_process_ends_when_torchrun_is_killed(variables: dict[str, str], lives: bool) -> None:
    """One that something else has started, such as a shell, goes on."""
    words = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=surroundings(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        assert parent.stderr
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        alive = psutil.wait_procs([child], timeout=3)[1]
        assert bool(alive) == lives
        for process in alive:
            process.kill()
        said = parent.stderr.read()
    assert ("torchrun has ended, so all end" in said) == (not lives)
