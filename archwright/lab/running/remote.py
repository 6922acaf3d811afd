"""Jobs on other machines that share the study's file system; see `on_ray` and `on_slurm`."""

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
"""Folder in the study's folder for answers of jobs and files of submitit. Successful jobs remove their files."""

GLANCE = 0.2
"""Seconds between looks at a job on its machine."""

PULSE = 5.0
"""Seconds between expensive checks: the study's lock, and the state of a batch job."""

UNWRITTEN = 15.0
"""Seconds to wait for the answer of an ended job on a network file system."""


@dataclass(frozen=True)
class RemoteJob:
    """A job with the facts of its study, as plain values for pickling."""

    job: Job
    lock: str
    """Lock file of the study, with its process."""
    holder: str
    """Contents of that file."""
    log: str
    parts: tuple[str, ...]
    answers: str
    """File for the job's host and result, in JSON lines."""
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
        """True if the study's own process still holds the lock."""
        try:
            return Path(self.lock).read_text("utf-8") == self.holder
        except OSError:
            return False


@functools.cache
def _executor(log: str, parts: tuple[str, ...]) -> LocalExecutor:
    """Return the worker process of a study on this machine."""
    return LocalExecutor(Path(log), [Path(part) for part in parts])


def run_remote(sent: RemoteJob) -> None:
    """Run a job that was sent to this machine."""
    sent()


def _stopped(handle: Handle) -> Answer:
    """Cancel a job, wait for its checkpoint, and return its result."""
    handle.cancel()
    end = time.monotonic() + PATIENCE
    while (answer := handle.poll()) is None and time.monotonic() < end:
        time.sleep(GLANCE)
    return answer or {"state": "stopped"}


def _last_host(lines: Sequence[Answer]) -> str:
    """Return the last host of a job; a batch job may restart on another machine."""
    return next(str(line["host"]) for line in reversed(lines) if "host" in line)


def versions() -> dict[str, str]:
    """Return the versions that must agree on all machines for equal numbers."""
    return {name: version(name) for name in ("archwright", "torch")}


class RemoteExecutor(Executor):
    """Sends jobs of a study to other machines; requires the study's lock."""

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
    """A job on another machine, polled through its file of answers."""

    place = ""
    """Kind of cluster, as in `--on`."""
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
        """Return the end of the job as reported by its cluster, "" while it runs."""

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
        """Release the lock of a dead process after its grace period. Other machines cannot detect that
        it is dead."""
        folder = RunFolder(Path(self.sent.job.run))
        holder = folder.holder() if self.sent.job.run else None
        if holder and holder.host == host:
            timer = threading.Timer(PATIENCE, folder.let_go, (holder,))
            timer.daemon = True
            timer.start()
