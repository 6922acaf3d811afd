"""Workers on other machines, which share the study's file system."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archwright.lab import run_cache
from archwright.lab.agent import Answer, Order
from archwright.lab.workers import PATIENCE, Done, Events, Worker, Workers, as_line
from archwright.runs import Holder, RunFolder

UNSEEN = 60.0
"""Seconds within which files that another machine wrote are seen here: network file systems look again so often."""


class RemoteWorkers(Workers, ABC):
    """Workers of other machines; a subclass knows how one is reached."""

    pause = 0.5
    """Seconds between looks at what they do."""

    def __init__(self, log: Path, parts: Sequence[Path] = ()) -> None:
        super().__init__(0, log, parts)
        self.folder = log.resolve().parent
        self.order = Order.of(RunFolder(self.folder).holder_file, log, tuple(parts))
        self._left: list[tuple[float, RunFolder, Holder]] = []

    def wait(self, timeout: float) -> Sequence[Done]:
        started = time.monotonic()
        found: Sequence[Done] = ()
        while not found and time.monotonic() < started + timeout:
            waits = self._busy and not any(worker.started for worker in self._busy.values())
            before = time.monotonic()
            for worker in [*self._busy.values()]:
                assert isinstance(worker, RemoteWorker)
                worker.look()
            found = super().wait(self.pause)
            self.queued += (time.monotonic() - before) * bool(waits)
        self._let_go()
        return found

    def _died(self, name: Any, worker: Worker) -> Sequence[Done]:
        assert isinstance(worker, RemoteWorker)
        late = time.monotonic() + PATIENCE
        held = worker.folder and worker.folder.holder()
        if worker.folder and held and held.host == worker.host:
            self._left.append((late, worker.folder, held))
        return super()._died(name, worker)

    def _let_go(self) -> None:
        """Let go what dead workers still hold after the time that they had to save, as no other machine can tell that
        they are dead."""
        now = time.monotonic()
        for late, folder, holder in self._left:
            if late < now:
                folder.let_go(holder)
        self._left = [left for left in self._left if left[0] >= now]


class RemoteWorker(Worker):
    """A worker on another machine, which is looked at from time to time."""

    started = False
    host = ""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._unseen: float | None = None
        self._released = False

    @property
    def folder(self) -> RunFolder | None:
        """The run that it trains or did last."""
        return RunFolder(self.job["folder"]) if self.job.get("do") == "train" else None

    @abstractmethod
    def look(self) -> None:
        """Tell what became of the job, where something did."""

    def _said_hello(self, hello: Answer) -> None:
        self.started, self.host = True, hello["host"]
        if hello["why"]:
            self._refuse(hello["why"])

    def _answer(self, answer: Answer) -> bool:
        """Tell an answer once what it speaks of is seen here; return whether that is so, or never will be."""
        if answer["state"] == "stopped" and not self._released:
            self._events.put((self, ""))  # its machine wanted it to stop
            return True
        if answer["state"] == "done" and self.folder and not run_cache.outcome(self.folder):
            now = time.monotonic()
            self._unseen = self._unseen or now
            if now < self._unseen + UNSEEN:
                return False
            self._refuse(
                f"{self.host} trained {self.folder.path}, of which nothing is seen here: runs need a file "
                "system that all machines share"
            )
            return True
        self._unseen = None
        self._events.put((self, as_line(answer)))
        return True

    def _refuse(self, why: str) -> None:
        """End the study with a line, as this would fail again and again."""
        self._events.put((self, as_line({"state": "refused", "why": why})))
