"""Jobs of other machines, which share the study's file system; `on_ray` and `on_slurm` send them."""

import contextlib
import functools
import json
import os
import socket
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from archwright.files import sync
from archwright.lab.running.jobs import PATIENCE, Answer, Executor, Handle, Job
from archwright.lab.running.local import LocalExecutor
from archwright.runs import RunFolder

FOLDER = "jobs"
"""Answers of jobs and the files of submitit, in the study's folder; jobs that ended well leave nothing there."""

GLANCE = 0.2
"""Seconds between looks at a job on its machine."""

PULSE = 5.0
"""Seconds between costly looks: whether the study goes on, and for the state of a batch job."""

UNWRITTEN = 15.0
"""Seconds within which the answer of a job that has ended is seen here."""


@dataclass(frozen=True)
class RemoteJob:
    """A job, and the facts of its study that another machine needs; plain values, which travel."""

    job: Job
    lock: str
    """The file that says which process has the study."""
    holder: str
    """Contents of that file."""
    log: str
    parts: tuple[str, ...]
    answers: str
    """The file that the job writes its machine's name and its end to, a line of JSON each."""
    versions: dict[str, str] = field(default_factory=lambda: versions())

    def __call__(self) -> None:
        """Run the job; a KeyboardInterrupt has it save and end."""
        host = socket.gethostname()
        if not self._goes_on():
            folder = Path(self.lock).parent
            why = f"{host} does not see {folder} as it is here: studies need a file system that all machines share"
            self.say({"state": "refused", "why": why, "host": host})
            return
        self.say({"host": host})
        if self.versions != (there := versions()):
            ours, theirs = (
                " and ".join(f"{name} {number}" for name, number in found.items())
                for found in (self.versions, there)
            )
            why = f"{host} has {theirs}, and the study {ours}: install the same there"
            self.say({"state": "refused", "why": why})
            return
        handle = _executor(self.log, self.parts).submit(self.job)
        pulse = time.monotonic()
        try:
            while (answer := handle.poll()) is None:
                time.sleep(GLANCE)
                if time.monotonic() > pulse + PULSE:
                    pulse = time.monotonic()
                    if not self._goes_on():
                        break
        except KeyboardInterrupt:
            answer = None
        self.say(answer or _stopped(handle))
        if os.environ.get("CUDA_VISIBLE_DEVICES"):  # its GPU goes to another task
            self.end()
            _executor.cache_clear()

    def end(self) -> None:
        """Have the job save its work, and wait for that."""
        _executor(self.log, self.parts).close()

    def say(self, answer: Answer) -> None:
        """Append a line to the file of answers."""
        with contextlib.suppress(OSError):
            with Path(self.answers).open("a", encoding="utf-8") as file:
                file.write(json.dumps(answer) + "\n")
            sync(Path(self.answers))

    def _goes_on(self) -> bool:
        """Return whether the study's own process still has the study, as far as its folder says."""
        try:
            return Path(self.lock).read_text("utf-8") == self.holder
        except OSError:
            return False


@functools.cache
def _executor(log: str, parts: tuple[str, ...]) -> LocalExecutor:
    """Return the process of this machine that takes job after job of a study."""
    return LocalExecutor(Path(log), [Path(part) for part in parts])


def run_remote(sent: RemoteJob) -> None:
    """Run a job that was sent to this machine."""
    sent()


def _stopped(handle: Handle) -> Answer:
    """Cancel a job, wait until it has saved, and return how it ended."""
    handle.cancel()
    end = time.monotonic() + PATIENCE
    while (answer := handle.poll()) is None and time.monotonic() < end:
        time.sleep(GLANCE)
    return answer or {"state": "stopped"}


def _last_host(lines: Sequence[Answer]) -> str:
    """Return the machine that a job ran on last: a batch job may be queued again elsewhere."""
    return next(str(line["host"]) for line in reversed(lines) if "host" in line)


def versions() -> dict[str, str]:
    """Return the versions of which all machines must have one, for numbers to be the same."""
    return {name: version(name) for name in ("archwright", "torch")}


class RemoteExecutor(Executor):
    """Sends jobs of the study whose folder has the log; for the holder of its lock."""

    def __init__(self, log: Path, parts: Sequence[Path] = ()) -> None:
        self._log, self._parts = log.resolve(), tuple(map(str, parts))
        self.folder = self._log.parent / FOLDER
        self.lock = RunFolder(self._log.parent).holder_file.resolve()
        self.holder = self.lock.read_text("utf-8")

    def remote(self, job: Job) -> RemoteJob:
        """Return a job as it is sent."""
        self.folder.mkdir(exist_ok=True)
        answers = str(self.folder / f"{uuid.uuid4().hex}.jsonl")
        return RemoteJob(job, str(self.lock), self.holder, str(self._log), self._parts, answers)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class RemoteHandle(Handle):
    """A job of another machine, whose file of answers is read from time to time."""

    place = ""
    """Kind of cluster, as the user says it."""
    pause = 0.5
    """Seconds between looks."""

    def __init__(self, sent: RemoteJob) -> None:
        self.sent = sent
        self._answer: Answer | None = None
        self._looked = self._asked = time.monotonic()
        self._ended_at: float | None = None
        self.cancelled = False

    @abstractmethod
    def ended(self) -> str:
        """Return how the job ended as far as its cluster knows, or nothing while it goes on."""

    def errors(self) -> str:
        """Return the last line that a job wrote which could not begin."""
        return ""

    def tidy(self) -> None:
        """Remove the files of a job that ended well."""
        Path(self.sent.answers).unlink(missing_ok=True)

    def poll(self) -> Answer | None:
        now = time.monotonic()
        if self._answer is None and now >= self._looked + self.pause:
            self._looked = now
            self._answer = self._look(now)
        return self._answer

    def _look(self, now: float) -> Answer | None:
        lines = self._heard()
        answer: Answer | None = next((line for line in lines if "state" in line), None)
        if answer is not None:
            self.tidy()
            if answer["state"] == "died":
                self._let_go(_last_host(lines))
            return answer
        if self._ended_at is None and now >= self._asked + 10 * self.pause:
            self._asked = now
            self._ended_at = now if self.ended() else None
        if self._ended_at is not None and self.cancelled and not lines:
            self.tidy()
            return {"state": "stopped"}
        if self._ended_at is None or now < self._ended_at + UNWRITTEN:
            return None
        if not lines:
            why = self.errors() or "it wrote nothing; do its machines see the study's folder?"
            how = f"--on {self.place}: {self.ended()} before it began: {why}"
            return {"state": "refused", "why": how}
        self._let_go(_last_host(lines))
        return {"state": "died", "why": f"its {self.ended()}"}

    def _heard(self) -> list[Answer]:
        """Return the whole lines of the file of answers."""
        try:
            text = Path(self.sent.answers).read_text("utf-8")
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _let_go(self, host: str) -> None:
        """Let go the run of a dead process after the time that it had to save, as no other machine can tell that it is
        dead."""
        folder = RunFolder(Path(self.sent.job.run))
        holder = folder.holder() if self.sent.job.run else None
        if holder and holder.host == host:
            timer = threading.Timer(PATIENCE, folder.let_go, (holder,))
            timer.daemon = True
            timer.start()
