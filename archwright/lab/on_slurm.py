"""Workers under SLURM, by submitit: each job of a study is a batch job of its own."""

import contextlib
import json
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from archwright.lab.agent import Answer, Order
from archwright.lab.batch_job import BatchJob
from archwright.lab.remote_workers import RemoteWorker, RemoteWorkers
from archwright.lab.sbatch import parameters
from archwright.lab.workers import PATIENCE, Events, Worker
from archwright.spec.errors import UserError
from archwright.spec.run_spec import MachineSpec

FOLDER = "slurm"
"""What submitit writes, in the study's folder; jobs that ended well leave nothing there."""

AT_ONCE = 16
"""Jobs that are waiting or under way, at most, where the user does not say."""

MINUTES = 60
"""Time limit of a batch job where the user does not say. A run that takes longer goes on in the next."""

UNWRITTEN = 15.0
"""Seconds within which the answer of a batch job that has ended is seen here."""


PULSE = 5.0
"""Seconds between questions for the state of a batch job, which cost its file system and SLURM something."""


class SlurmWorkers(RemoteWorkers):
    """Batch jobs of a study.

    Raises:
        UserError: submitit is not installed, there is no sbatch, or SLURM refuses what was asked for.
    """

    def __init__(self, workers: int, asked: str, log: Path, parts: Sequence[Path] = ()) -> None:
        self._given = parameters(asked)
        cluster = self._given.pop("cluster", "slurm")
        self._submitit = _submitit(cluster)
        super().__init__(log, parts)
        self._most = workers or AT_ONCE
        self._executor = self._submitit.AutoExecutor(self.folder / FOLDER, cluster)
        self._update({})

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for copy in (self.folder / FOLDER).glob(".submission_file_*.sh"):  # of what jobs have, too
            copy.unlink()
        with contextlib.suppress(OSError):
            (self.folder / FOLDER).rmdir()

    def prepare(self, machine: MachineSpec) -> int:
        needs = {"cpus_per_task": str(machine.threads)} if machine.threads != "auto" else {}
        if machine.device == "cuda" and not {"gres", "gpus_per_task"} & {*self._given}:
            needs["gpus_per_node"] = "1"
        self._update(needs)
        return self._most

    def _start(self) -> Worker:
        return _SlurmWorker(self._executor, self.order, self.folder / FOLDER, self._events)

    def _update(self, needs: Mapping[str, str]) -> None:
        """Tell submitit what each batch job is asked for; what it has no name for is handed on to sbatch."""
        general = self._executor._typed_parameters()
        known = self._submitit.SlurmExecutor._valid_parameters()
        settings: dict[str, Any] = {"name": "archwright", "timeout_min": MINUTES}
        more: dict[str, Any] = {}
        try:
            for name, text in {**needs, **self._given}.items():
                value = True if text == "true" else int(text) if text.isdecimal() else text
                if name in general:
                    settings[name] = general[name](text)
                elif name in known:
                    settings[f"slurm_{name}"] = [text] if name in ("setup", "teardown") else value
                else:
                    more[name] = value
            if more:
                settings["slurm_additional_parameters"] = more
            self._executor.update_parameters(**settings)
        except (NameError, ValueError, AssertionError) as error:
            raise UserError(f"--slurm: {str(error).splitlines()[0]}") from error


class _SlurmWorker(RemoteWorker):
    """A place in SLURM's queue, for one batch job after another."""

    def __init__(self, executor: Any, order: Order, folder: Path, events: Events) -> None:
        super().__init__(events)
        self._executor, self._order, self._folder = executor, order, folder
        self._batch: Any = None
        self._over: float | None = None
        self._answered: list[tuple[Any, Path]] = []

    def give(self, job: dict[str, Any]) -> None:
        self.job, self.started, self._over = job, False, None
        self._asked = time.monotonic()
        self._answers = self._folder / f"{uuid.uuid4().hex}.jsonl"
        try:
            self._batch = self._executor.submit(BatchJob(self._order, str(self._answers)), job)
        except Exception as error:  # submitit has classes of its own for it, and hands on others
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._refuse(f"--on slurm: sbatch does not take the job: {'; '.join(lines[:3])}")

    def look(self) -> None:
        if self._batch is None:
            return
        heard = self._heard()
        if not self.started and heard:
            self._said_hello(heard[0])
        answers = [answer for answer in heard if "state" in answer]
        if answers:
            if self._answer(answers[-1]):
                self._answered.append((self._batch, self._answers))
                self._batch = None
        elif time.monotonic() > self._asked + PULSE:
            self._asked = time.monotonic()
            if self._batch.done():
                self._over = self._over or time.monotonic()
                if time.monotonic() >= self._over + UNWRITTEN:
                    self._ended_silently()

    def release(self) -> None:
        if not self._released and self._batch is not None:
            self._batch.cancel(check=False)
        self._released = True

    def end(self) -> str:
        self.release()
        how = "its batch job died"
        if self._batch is not None:
            how = f"its batch job {self._batch.job_id} ended as {self._batch.state}"
            end = time.monotonic() + PATIENCE
            while not self._batch.done(force_check=True) and time.monotonic() < end:
                time.sleep(0.5)
            if self._heard_stop():
                self._answered.append((self._batch, self._answers))
        for batch, answers in self._answered:
            _tidy(batch, answers)
        return how

    def _heard_stop(self) -> bool:
        return self._released and any(answer.get("state") for answer in self._heard())

    def _heard(self) -> list[Answer]:
        """Return what the batch job has answered, whole lines only."""
        try:
            text = self._answers.read_text("utf-8")
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def _ended_silently(self) -> None:
        if self.started:
            self._events.put((self, ""))
            return
        errors = self._batch.paths.stderr
        lines: list[str] = []
        with contextlib.suppress(OSError):
            lines = errors.read_text("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else "it wrote nothing; do its machines see the study's folder?"
        state = self._batch.state
        self._refuse(
            f"--on slurm: batch job {self._batch.job_id} ended as {state} before it began: {why}"
        )


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


def _tidy(batch: Any, answers: Path) -> None:
    """Remove the files of a batch job that ended well."""
    for path in (answers, *batch.paths.folder.glob(f"{batch.job_id}_*")):
        with contextlib.suppress(OSError):
            path.unlink()
