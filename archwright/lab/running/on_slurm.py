"""Jobs as batch jobs of SLURM, by submitit."""

import contextlib
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from archwright.lab.running.jobs import Handle, Job
from archwright.lab.running.remote import RemoteExecutor, RemoteHandle, RemoteJob
from archwright.spec.errors import UserError
from archwright.spec.machine import MachineSpec

AT_ONCE = 16
"""Default limit on queued and running jobs."""

MINUTES = 60
"""Default time limit of a batch job. Longer runs continue in the next job."""


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


class SlurmExecutor(RemoteExecutor):
    """Batch jobs of a study.

    Raises:
        UserError: submitit or sbatch is missing, or SLURM refuses an option.
    """

    def __init__(self, workers: int, asked: str, log: Path, parts: Sequence[Path] = ()) -> None:
        self._given = parameters(asked)
        cluster = self._given.pop("cluster", "slurm")
        self._submitit = _submitit(cluster)
        super().__init__(log, parts)
        self._most = workers or AT_ONCE
        # Jobs start in the user's folder, which may have a numpy.py: -P imports nothing from it.
        python = f"{shlex.quote(sys.executable)} -P"
        self._executor = self._submitit.AutoExecutor(self.folder, cluster, slurm_python=python)
        self._update({})

    def places(self, machine: MachineSpec, gpus: int = 1) -> int:
        needs = {"cpus_per_task": str(machine.threads)} if machine.threads != "auto" else {}
        if machine.device == "cuda" and not {"gres", "gpus_per_task"} & {*self._given}:
            needs["gpus_per_node"] = str(gpus)
        self._update(needs)
        return self._most

    def submit(self, job: Job) -> Handle:
        sent = self.remote(job)
        try:
            return _SlurmHandle(sent, self._executor.submit(BatchJob(sent)))
        except Exception as error:  # submitit has classes of its own for it, and hands on others
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"--on slurm: sbatch does not take the job: {'; '.join(lines[:3])}"
            ) from error

    def close(self) -> None:
        for copy in self.folder.glob(".submission_file_*.sh"):  # of what jobs have, too
            copy.unlink()
        super().close()

    def _update(self, needs: dict[str, str]) -> None:
        """Set the resources of batch jobs. Options unknown to submitit are passed to sbatch."""
        given = needs | self._given
        settings: dict[str, Any] = {"name": "archwright", "timeout_min": MINUTES}
        for name in [name for name in WHOLE if name in given]:
            slurm = "slurm_" * (name == "signal_delay_s")
            settings[f"{slurm}{name}"] = int(given.pop(name))
        for name in [name for name in ("setup", "teardown") if name in given]:
            settings[f"slurm_{name}"] = [given.pop(name)]
        more = {name: True if text == "true" else text for name, text in given.items()}
        self._executor.update_parameters(**settings, slurm_additional_parameters=more)


@dataclass(frozen=True)
class BatchJob:
    """A job as submitit runs it on the other machine."""

    sent: RemoteJob

    def __call__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        self.sent()

    def checkpoint(self) -> Any:
        """Save a checkpoint at the time limit or on preemption, and queue the job again."""
        from submitit.helpers import DelayedSubmission

        self.sent.end()
        return DelayedSubmission(self)


class _SlurmHandle(RemoteHandle):
    """A batch job."""

    place = "slurm"

    def __init__(self, sent: RemoteJob, batch: Any) -> None:
        super().__init__(sent)
        self._batch = batch

    def ended(self) -> str:
        if not self._batch.done(force_check=self.cancelled):
            return ""
        return f"batch job {self._batch.job_id} ended as {self._batch.state}"

    def errors(self) -> str:
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = self._batch.paths.stderr.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def cancel(self) -> None:
        self.cancelled = True
        self._batch.cancel(check=False)

    def tidy(self) -> None:
        super().tidy()
        for path in self._batch.paths.folder.glob(f"{self._batch.job_id}_*"):
            with contextlib.suppress(OSError):
                path.unlink()


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


def _submitit(cluster: str) -> ModuleType:
    try:
        import submitit
    except ImportError:
        raise UserError(
            "--on slurm: submitit is not installed; run: pip install 'archwright[slurm]'"
        ) from None
    if cluster == "slurm":
        for program in ("sbatch", "srun"):
            if shutil.which(program) is None:
                raise UserError(
                    f"--on slurm: there is no {program} on the PATH: start the study on a machine of the cluster "
                    "from which jobs are sent"
                )
    module: ModuleType = submitit
    return module
