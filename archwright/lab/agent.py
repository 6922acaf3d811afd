"""What stands for a study on another machine: it has a worker process there, and hands on jobs and answers."""

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archwright.lab.workers import Workers

Answer = dict[str, Any]

PASSED_ON = ("ARCHWRIGHT_", "OMP_", "MKL_", "PYTHONPATH")
"""How the variables begin that a worker process has as the study's own process has them; others are its machine's."""

GLANCE = 0.2
"""Seconds between looks at a job."""

PULSE = 5.0
"""Seconds between looks at whether the study still goes on."""

PACKAGES = ("archwright", "torch")
"""Packages of which all machines must have one version, for numbers to be the same."""


@dataclass(frozen=True)
class Order:
    """What an agent has to know of a study; plain values, which travel."""

    lock: str
    """The file that says which process has the study."""
    holder: str
    """What it says."""
    log: str
    here: str
    """The folder that paths are relative to."""
    parts: tuple[str, ...]
    versions: dict[str, str]
    environ: dict[str, str]

    @classmethod
    def of(cls, lock: Path, log: Path, parts: tuple[Path, ...]) -> "Order":
        """Return what an agent of the study has to know whose lock this process holds."""
        return cls(
            lock=str(lock.resolve()),
            holder=lock.read_text("utf-8"),
            log=str(log.resolve()),
            here=str(Path.cwd()),
            parts=tuple(map(str, parts)),
            versions=_versions(),
            environ=_passed_on(),
        )


class Agent:
    """Does the jobs of a study, one at a time, in a worker process that is the same as on the study's own machine.

    It leaves, and lets the process save what it trains, when it is told to, or when the study is let go or taken up by
    another process.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._workers: Workers | None = None
        self._leaves = threading.Event()

    def hello(self) -> Answer:
        """Settle in; return the machine's name, and in a line why it can take no part, where it cannot."""
        host, order = socket.gethostname(), self._order
        for name in [*_passed_on()]:
            del os.environ[name]
        os.environ.update(order.environ)
        why = ""
        if order.versions != (found := _versions()):
            ours, theirs = (_listed(versions) for versions in (order.versions, found))
            why = f"{host} has {theirs}, and the study {ours}: install the same there"
        elif not self._goes_on():
            folder = Path(order.lock).parent
            why = f"{host} does not see {folder} as it is here: studies need a file system that all machines share"
        else:
            with contextlib.suppress(OSError):
                os.chdir(order.here)
        return {"host": host, "why": why}

    def do(self, job: dict[str, Any]) -> Answer:
        """Do a job, and tell how it ended; "stopped" where this leaves."""
        if self._workers is None:
            parts = [Path(part) for part in self._order.parts]
            self._workers = Workers(1, Path(self._order.log), parts)
        self._workers.give("", job)
        pulse = time.monotonic()
        while not self._leaves.is_set():
            for done in self._workers.wait(GLANCE):
                return done.answer | {"state": done.state, "why": done.why}
            if time.monotonic() > pulse + PULSE:
                pulse = time.monotonic()
                if not self._goes_on():
                    break
        self.end()
        return {"state": "stopped"}

    def leave(self) -> None:
        """Have what is being trained saved, and do no more; waits where nothing is."""
        self._leaves.set()
        if self._workers is not None and not self._workers.running:
            self.end()

    def end(self) -> None:
        """Have what is being trained saved, and wait for that."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.__exit__()

    def _goes_on(self) -> bool:
        """Tell whether the study's own process still has the study, as far as its folder says."""
        try:
            return Path(self._order.lock).read_text("utf-8") == self._order.holder
        except OSError:
            return False


def _versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def _listed(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {number}" for name, number in versions.items())


def _passed_on() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
