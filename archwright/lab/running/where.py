"""Place of a study's runs: this machine, Ray or SLURM."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from archwright.lab.running.jobs import Executor
from archwright.lab.running.local import LocalExecutor
from archwright.lab.running.workers import Workers
from archwright.spec.errors import UserError, nearest
from archwright.spec.study_spec import StudySpec

PLACES = ("ray", "slurm")

OURS = {
    "nodes": "a run is trained on one",
    "ntasks": "a run is one task",
    "ntasks_per_node": "a run is one task",
    "tasks_per_node": "a run is one task",
    "array": "--workers says how many go at once",
    "array_parallelism": "--workers says how many go at once",
    "job_name": "name=NAME is that",
    "output": "submitit writes into the study's folder",
    "error": "submitit writes into the study's folder",
}
"""Options of sbatch that archwright sets itself, with the reason."""

WHOLE = ("timeout_min", "cpus_per_task", "gpus_per_node", "signal_delay_s")

CLUSTERS = ("slurm", "local")
"""`local` runs processes of this machine through submitit, to test a study."""


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
            from archwright.lab.running.on_slurm import SlurmExecutor

            executor = SlurmExecutor(self.workers, self.slurm, log, parts)
        else:
            executor = LocalExecutor(log, parts)
        return Workers(executor, cores)

    def words(self) -> list[str]:
        """Return these options as words of a command line."""
        words = ["--on", self.on] if self.on else []
        words += ["--workers", str(self.workers)] if self.workers else []
        return words + (["--slurm", self.slurm] if self.slurm else [])


def parameters(text: str) -> dict[str, str]:
    """Parse options such as `partition=gpu,time=60`. A piece without `=` continues the previous value.

    Raises:
        UserError: A missing, repeated, or reserved name, or an invalid value.
    """
    found: dict[str, str] = {}
    name = ""
    for piece in filter(None, text.split(",")):
        key, equals, value = piece.partition("=")
        if not equals and not name:
            raise UserError(
                f'--slurm: found "{piece}"; expected NAME=VALUE,..., as sbatch names it: partition=gpu,time=60'
            )
        if not equals:
            found[name] += f",{piece}"
            continue
        name = key.strip().lstrip("-").replace("-", "_")
        if name in found:
            raise UserError(f"--slurm: {name} is given twice")
        if name in OURS:
            raise UserError(f"--slurm: {name} is not yours to say: {OURS[name]}")
        found[name] = value.strip()
    if (cluster := found.get("cluster", "slurm")) not in CLUSTERS:
        raise UserError(
            f'--slurm: cluster: found "{cluster}"; expected one of {", ".join(CLUSTERS)}'
        )
    if time_limit := found.pop("time", ""):
        found["timeout_min"] = time_limit
    for name in WHOLE:
        if name in found and not (found[name].isdecimal() and int(found[name]) > 0):
            said, unit = ("time", " of minutes") if name == "timeout_min" else (name, "")
            raise UserError(
                f'--slurm: {said}: found "{found[name]}"; expected a whole number{unit}, such as 60'
            )
    return found
