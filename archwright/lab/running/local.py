"""Jobs as processes of this machine."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import archwright
from archwright.files import open_to_append
from archwright.lab.running.jobs import PATIENCE, Answer, Executor, Handle, Job, surroundings

PACKAGE = str(Path(archwright.__file__).parent)
START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
folder = sys.argv.pop(1)
spec = spec_from_file_location("archwright", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["archwright"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["archwright"])
from archwright.lab.running.worker import main
main()
"""
"""Start of a worker: imports this copy of archwright, and no module from the current folder (-P)."""


class LocalExecutor(Executor):
    """Local worker processes, reused for several jobs.

    A new process needs 2.7 s of a core to import torch.

    Args:
        parts: Files with the user's choices.
    """

    def __init__(self, log: Path, parts: Sequence[Path] = ()) -> None:
        self._command = [sys.executable, "-P", "-c", START, PACKAGE, *map(str, parts)]
        self._log = open_to_append(log, encoding="utf-8")
        self._processes: list[tuple[subprocess.Popen[str], dict[str, str]]] = []
        self._idle: set[int] = set()
        """Numbers of processes that wait for a job."""

    def submit(self, job: Job) -> Handle:
        """Send the job to an idle process of the same environment, or to a new one."""
        variables = surroundings(job.environment) | {"PYTHONSAFEPATH": "1"}
        for process, environment in self._processes:
            if process.pid not in self._idle:
                continue
            self._idle.remove(process.pid)
            if environment == variables and process.poll() is None:
                return _LocalHandle(process, job, self._idle)
            _release(process)  # it keeps memory, perhaps that of another GPU
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables,
            start_new_session=True,  # Ctrl-C is for us; we then ask them to save
        )
        self._processes.append((process, variables))
        return _LocalHandle(process, job, self._idle)

    def close(self) -> None:
        for process, _ in self._processes:  # all of them first: they save at the same time
            _release(process)
        end = time.monotonic() + PATIENCE
        for process, _ in self._processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._log.close()


class _LocalHandle(Handle):
    """A job of a process of this machine, which is then idle."""

    def __init__(self, process: "subprocess.Popen[str]", job: Job, idle: set[int]) -> None:
        self._process, self._idle = process, idle
        self._answer: Answer | None = None
        threading.Thread(target=self._follow, args=(job,), daemon=True).start()

    def poll(self) -> Answer | None:
        return self._answer

    def cancel(self) -> None:
        _release(self._process)

    def _follow(self, job: Job) -> None:
        """Hand over the job and wait for its answer."""
        process, line = self._process, ""
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(OSError, ValueError):  # it died, or was let go
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
        with contextlib.suppress(OSError, ValueError):
            line = process.stdout.readline()
        if line.endswith("\n"):
            answer: Answer = json.loads(line)
            if answer["state"] != "stopped":
                self._idle.add(process.pid)
        else:
            code = process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            answer = {"state": "died", "why": f"its process died by {how}"}
        self._answer = answer


def _release(process: "subprocess.Popen[str]") -> None:
    """End a process's input, at which it saves and leaves."""
    assert process.stdin
    with contextlib.suppress(OSError):
        process.stdin.close()
