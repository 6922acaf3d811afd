"""Jobs in progress: submitted, retried if they die, cancelled on interrupt."""

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from archwright.lab.running.jobs import PATIENCE, Executor, Handle, Job
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec

TRIES = 3
"""Attempts at a job if its process dies."""

PAUSE = 0.02
"""Seconds between looks at the jobs."""


@dataclass(frozen=True)
class Done:
    """How a job ended: its state is "done", "failed" or "stopped"."""

    name: Hashable
    state: str
    answer: dict[str, Any]
    why: str = ""


@dataclass
class _Running:
    job: Job
    handle: Handle
    tries: int = 1


class Workers:
    """Up to `size` jobs at a time, each by a name."""

    def __init__(self, executor: Executor, size: int = 0) -> None:
        self.executor, self.size = executor, size
        self._running: dict[Hashable, _Running] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Have all jobs save their work, and wait for them."""
        handles = [running.handle for running in self._running.values()]
        for handle in handles:
            handle.cancel()
        end = time.monotonic() + PATIENCE
        while any(handle.poll() is None for handle in handles) and time.monotonic() < end:
            time.sleep(PAUSE)
        self.executor.close()

    @property
    def running(self) -> set[Hashable]:
        """Names of the jobs that are being done."""
        return set(self._running)

    @property
    def free(self) -> int:
        """Number of free places for jobs."""
        return max(0, self.size - len(self._running))

    def prepare(self, machine: MachineSpec) -> int | None:
        """Return the number of concurrent runs, None if the plan decides it."""
        return self.executor.places(machine)

    def give(self, name: Hashable, job: Job) -> None:
        """Submit a job."""
        assert self.free > 0
        self._running[name] = _Running(job, self.executor.submit(job))

    def wait(self, timeout: float) -> Sequence[Done]:
        """Return ended jobs after at most `timeout` seconds. A job that died is submitted again.

        Raises:
            UserError: A machine cannot run the study's jobs.
        """
        end = time.monotonic() + timeout
        while not (found := self._ended()) and time.monotonic() < end:
            time.sleep(PAUSE)
        return found

    def _ended(self) -> list[Done]:
        found = []
        for name, running in [*self._running.items()]:
            if (answer := running.handle.poll()) is None:
                continue
            state, why = answer["state"], answer.get("why", "")
            if state == "refused":
                raise UserError(why)
            # A machine that stops a job on its own has not done it.
            if state in ("died", "stopped") and running.tries < TRIES:
                running.handle = self.executor.submit(running.job)
                running.tries += 1
                continue
            del self._running[name]
            if state == "died":
                state, why = "failed", f"{why}, {TRIES} times"
            found.append(Done(name, state, answer, why))
        return found
