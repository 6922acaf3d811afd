"""Workers: started, given jobs, replaced when they die, asked to save when the user stops. These are processes of this
machine; `remote_workers` has those of others."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import archwright
from archwright.spec.errors import UserError
from archwright.spec.run_spec import MachineSpec

TRIES = 3
"""How often a job is given out when the process that does it dies."""

PACKAGE = str(Path(archwright.__file__).parent)
START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
folder = sys.argv.pop(1)
spec = spec_from_file_location("archwright", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["archwright"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["archwright"])
from archwright.lab.worker import main
main()
"""
"""How a worker begins: with this very package, wherever it lies, and nothing of the current folder (-P)."""

PATIENCE = 60.0
"""Seconds that workers have to save what they train."""


@dataclass(frozen=True)
class Done:
    """How a job ended: its state is "done", "failed" or "stopped"."""

    name: Hashable
    state: str
    answer: dict[str, Any]
    why: str = ""


class Worker(ABC):
    """Does one job at a time; tells `events` of itself with its answer, or with nothing when it died."""

    job: dict[str, Any]
    started = True
    """Whether it is there: one of a cluster may have to wait for its turn."""

    @abstractmethod
    def give(self, job: dict[str, Any]) -> None:
        """Begin a job."""

    @abstractmethod
    def release(self) -> None:
        """Give no more; what is being trained is saved."""

    @abstractmethod
    def end(self) -> str:
        """Wait for its end, force it if need be, and say how it ended."""


Events = queue.SimpleQueue[tuple[Worker, str]]


class Workers:
    """Up to `size` workers that do one job each at a time; `parts` are files of choices from outside."""

    queued = 0.0
    """Seconds in which jobs were given and none had started, as a cluster was busy with others."""

    def __init__(self, size: int, log: Path, parts: Sequence[Path] = ()) -> None:
        self.size = size
        self._command = [sys.executable, "-P", "-c", START, PACKAGE, *map(str, parts)]
        self._log = log.open("a", encoding="utf-8")
        self._idle: list[Worker] = []
        self._busy: dict[Hashable, Worker] = {}
        self._tries: dict[Hashable, int] = {}
        self._events: Events = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let all workers save what they do, and wait for them."""
        workers = [*self._idle, *self._busy.values()]
        for worker in workers:
            worker.release()  # all of them first: they save at the same time
        for worker in workers:
            worker.end()
        self._log.close()

    @property
    def running(self) -> set[Hashable]:
        """Names of the jobs that are being done."""
        return set(self._busy)

    @property
    def free(self) -> int:
        """How many more jobs may be given."""
        return max(0, self.size - len(self._busy))

    def prepare(self, machine: MachineSpec) -> int | None:
        """Learn what each run needs; return how many can go at once, or None where the plan decides that."""
        return None

    def give(self, name: Hashable, job: dict[str, Any]) -> None:
        """Give a job to a worker."""
        assert self.free > 0
        worker = self._idle.pop() if self._idle else self._start()
        self._tries[name] = self._tries.get(name, 0) + 1
        self._busy[name] = worker
        worker.give(job)

    def wait(self, timeout: float) -> Sequence[Done]:
        """Return the jobs that ended, after at most `timeout` seconds; one whose worker died is tried again.

        Raises:
            UserError: another machine cannot take part in the study.
        """
        with contextlib.suppress(queue.Empty):
            worker, line = self._events.get(timeout=timeout)
            name = next((n for n, busy in self._busy.items() if busy is worker), None)
            if name is None:  # an idle one died; another will take its place
                worker.end()
                self._idle = [idle for idle in self._idle if idle is not worker]
                return ()
            del self._busy[name]
            if line:
                self._idle.append(worker)
                answer = json.loads(line)
                if answer["state"] == "refused":
                    raise UserError(answer["why"])
                return (Done(name, answer["state"], answer, answer.get("why", "")),)
            return self._died(name, worker)
        return ()

    def _start(self) -> Worker:
        return _Process(self._command, self._events, self._log)

    def _died(self, name: Hashable, worker: Worker) -> Sequence[Done]:
        how = worker.end()
        if self._tries[name] < TRIES:
            self.give(name, worker.job)
            return ()
        return (Done(name, "failed", {}, f"{how}, {TRIES} times"),)


class _Process(Worker):
    """A process of this machine."""

    def __init__(self, command: list[str], events: Events, log: IO[str]) -> None:
        self.job: dict[str, Any] = {}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"PYDANTIC_DISABLE_PLUGINS": "__all__", "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is for us; we then ask them to save
        )
        self._events = events
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, job: dict[str, Any]) -> None:
        self.job = job
        assert self._process.stdin
        with contextlib.suppress(OSError):  # it died; its listener says so
            self._process.stdin.write(as_line(job))
            self._process.stdin.flush()

    def release(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self) -> str:
        self.release()
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"its process died by {f'signal {-code}' if code < 0 else f'exit code {code}'}"

    def _listen(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                self._events.put((self, line))
        self._events.put((self, ""))


def as_line(answer: dict[str, Any]) -> str:
    """Return a job or an answer as it is sent."""
    return json.dumps(answer) + "\n"
