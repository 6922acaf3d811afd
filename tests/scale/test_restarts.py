"""Processes of two torchruns, as of two machines, find each other again after one of them was killed."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.scale import environment
from tests.tiny import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.release,
    pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL"),
]

SECONDS = 240
"""Time that both torchruns may take, far more than they need on a machine at work."""


@pytest.mark.parametrize("victim", [0, 1])
def test_all_meet_again_after_a_kill_that_one_torchrun_counts(victim: int, tmp_path: Path) -> None:
    """Only the torchrun of the killed process counts a restart, and no process needs a third life."""
    with agents(tmp_path, victim) as started:
        until = time.monotonic() + SECONDS
        for agent in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(until - time.monotonic(), 0))
    codes = [agent.returncode for agent in started]
    output = (tmp_path / "output-0").read_text() + (tmp_path / "output-1").read_text()
    assert codes == [0, 0], output
    for rank in range(2):
        counts = ["0", "1" if rank == victim else "0", "left"]
        assert (tmp_path / f"starts-{rank}").read_text().split() == counts, output


@contextlib.contextmanager
def agents(folder: Path, victim: int) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Yield two torchruns of one process each, that meet at a port of this machine; none is left."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=restarts"),
        *("--local-addr=localhost", "--max-restarts=1"),
        *("-m", "tests.scale.restarted", str(folder), str(victim)),
    ]
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(2):
            output = stack.enter_context((folder / f"output-{number}").open("wb"))
            agent = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=output, stderr=output
            )
            stack.callback(end, agent)
            found.append(agent)
        yield found


def end(agent: "subprocess.Popen[bytes]") -> None:
    """Kill a torchrun that is still there, and what it has started."""
    if agent.poll() is None:
        started = psutil.Process(agent.pid).children(recursive=True)
        for process in (agent, *started):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    agent.wait()
