"""Jobs, and the interface of executors: local processes, Ray tasks and batch jobs of SLURM."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archwright.spec.run_spec import MachineSpec

Answer = dict[str, Any]
"""How a job ended: `state` is "done", "failed", "stopped", "died" or "refused"; `why` is the reason in a line."""

PASSED_ON = ("ARCHWRIGHT_", "OMP_", "MKL_", "PYTHONPATH")
"""Prefixes of variables that a job takes from the study's process; all others are those of its own machine."""

PATIENCE = 60.0
"""Seconds that cancelled jobs have to save what they train."""


@dataclass(frozen=True)
class Job:
    """A command, its working folder and its environment."""

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    """Variables that begin as `PASSED_ON` says."""
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
        """Return how the job ended, or None while it waits or runs."""

    @abstractmethod
    def cancel(self) -> None:
        """Have the job save its work and end; does not wait for that."""


class Executor(ABC):
    """Runs jobs."""

    def places(self, machine: "MachineSpec", gpus: int = 1) -> int | None:
        """Return how many jobs with such needs run at once; None: the plan decides that.

        Raises:
            UserError: there is no place for such a job.
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
