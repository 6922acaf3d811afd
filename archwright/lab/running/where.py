"""Place of a study's runs: this machine, Ray or SLURM."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archwright.lab.running.jobs import Executor
from archwright.lab.running.local import LocalExecutor
from archwright.lab.running.on_slurm import SlurmExecutor, parameters
from archwright.lab.running.workers import Workers
from archwright.spec.errors import UserError, nearest
from archwright.spec.study_spec import StudySpec

PLACES = ("ray", "slurm")


@dataclass(frozen=True)
class Where:
    """Options for the place of runs; the default is local processes.

    Raises:
        UserError: An unknown place, or options of another place.
    """

    on: str = ""
    workers: int = 0
    """Concurrent runs; 0: the most that fit."""
    slurm: str = ""
    """Options of sbatch, such as `partition=gpu,time=60`."""

    def __post_init__(self) -> None:
        if self.on and self.on not in PLACES:
            hint = nearest(self.on, PLACES)
            raise UserError(f'--on: found "{self.on}"; expected one of {", ".join(PLACES)}.{hint}')
        if self.slurm and self.on != "slurm":
            raise UserError("--slurm: expected --on slurm beside it")
        parameters(self.slurm)
        if self.workers and not self.on:
            raise UserError(
                "--workers: expected --on ray or --on slurm beside it; here, as many runs go at once as there are cores"
            )
        if self.workers < 0:
            raise UserError(f"--workers: found {self.workers}; expected 1 or more")

    def check(self, study: StudySpec) -> None:
        """Refuse a study that cannot be trained there."""
        if self.on and study.parallelism == "none":
            raise UserError(
                f"--on {self.on}: found --parallelism none beside it, one run at a time on all cores of this machine; "
                "expected processes"
            )

    def start(self, cores: int, log: Path, parts: Sequence[Path]) -> Workers:
        """Return the workers of a study, which log into a file; requires the study's lock."""
        if self.on == "ray":
            from archwright.lab.running.on_ray import RayExecutor

            executor: Executor = RayExecutor(self.workers, cores, log, parts)
        elif self.on == "slurm":
            executor = SlurmExecutor(self.workers, self.slurm, log, parts)
        else:
            executor = LocalExecutor(log, parts)
        return Workers(executor, cores)

    def words(self) -> list[str]:
        """Return these options as words of a command line."""
        words = ["--on", self.on] if self.on else []
        words += ["--workers", str(self.workers)] if self.workers else []
        return words + (["--slurm", self.slurm] if self.slurm else [])
