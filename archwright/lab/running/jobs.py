"""Jobs, and the interface of executors: local processes, Ray tasks, SLURM batch jobs."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archwright.spec.machine import MachineSpec

Answer = dict[str, Any]
"""Result of a job: `state` ("done", "failed", "stopped", "died" or "refused") and `why`, a short reason."""

PASSED_ON = ("ARCHWRIGHT_", "OMP_", "MKL_", "PYTHONPATH")
"""Prefixes of the environment variables that a job inherits from the study. Others come from the job's machine."""

PATIENCE = 60.0
"""Grace period in seconds for cancelled jobs to save a checkpoint."""


@dataclass(frozen=True)
class Job:
    """A command, its working folder and its environment."""

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    """Variables with a prefix in `PASSED_ON`."""
    run: str = ""
    """Run folder that the job trains."""


def job(*argv: str, run: str = "") -> Job:
    """Return a job of the current folder and environment."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    return Job(argv, str(Path.cwd()), passed, run)


def surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a job's process on this machine."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(PASSED_ON)}
    return own | dict(environment)


class Handle(ABC):
    """A job that was submitted."""

    @abstractmethod
    def poll(self) -> Answer | None:
        """Return the result of the job, or None if it is queued or running."""

    @abstractmethod
    def cancel(self) -> None:
        """Request a checkpoint and the end of the job, without waiting."""


class Executor(ABC):
    """Runs jobs."""

    def places(self, machine: "MachineSpec", gpus: int = 1) -> int | None:
        """Return the number of concurrent jobs for a machine spec. None: the plan decides.

        Raises:
            UserError: No node fits the job.
        """
        return None

    @abstractmethod
    def submit(self, job: Job) -> Handle:
        """Start a job, or queue it.

        Raises:
            UserError: the job is refused.
        """

    @abstractmethod
    def close(self) -> None:
        """End all processes, by force if need be, and remove temporary files."""
