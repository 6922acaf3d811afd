"""The metrics of a run for Weights & Biases, where the extra is installed."""

import os
import secrets
from collections.abc import Sequence
from typing import Any, Self

from archwright.files import atomic_write, check_replaceable
from archwright.reporting.tensorboard import scalars
from archwright.runs import RunFolder
from archwright.runs.records import Record
from archwright.spec.errors import UserError
from archwright.spec.overrides import dump, flatten

ID_FILE = "archwright-run-id.txt"
"""Beside the files that wandb writes: the run's id there, by which it goes on after an interruption."""


class WandbLog:
    """Sends records to W&B, or to its files where WANDB_MODE=offline says so.

    Project and name are those of WANDB_PROJECT and WANDB_NAME, by default archwright and the run's.

    Args:
        sent: what W&B has of this run already, and is not sent again.

    Raises:
        UserError: W&B refuses, as where nobody is logged in.
    """

    def __init__(self, folder: RunFolder, sent: Sequence[Record]) -> None:
        import wandb

        spec = folder.spec
        self._sent = {_place(record) for record in sent}
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or "archwright",
                name=os.environ.get("WANDB_NAME") or spec.name or folder.path.name,
                id=run_id(folder),
                resume="allow",
                dir=str(folder.path),
                config=flatten(dump(spec)),
            )
        except wandb.Error as error:
            reason = str(error).rstrip(".")
            raise UserError(
                f"loggers: wandb: {reason}. Log in with: wandb login, or keep the metrics here: WANDB_MODE=offline"
            ) from error
        # Steps are an axis of ours: W&B's own would refuse what comes late, such as the evaluation of a step.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Send what is still held back."""
        self._run.finish(exit_code=0 if error is None else 1)

    def write(self, record: Record) -> None:
        """Send the numbers of a record with its step, tokens and seconds; events have none."""
        if _place(record) in self._sent:
            return
        if found := scalars(record):
            place = {key: record[key] for key in ("step", "tokens", "seconds") if key in record}
            self._run.log(place | found)


def run_id(folder: RunFolder) -> str:
    """Return the id of a run at W&B: drawn once, and kept in its folder."""
    file = folder.path / "wandb" / ID_FILE
    check_replaceable(file)  # nothing that a link leads to is sent
    if not file.exists():
        atomic_write(file, secrets.token_hex(4))
    return file.read_text("utf-8").strip()


def _place(record: Record) -> tuple[str, int, str]:
    return record["kind"], record["step"], record.get("name", "")
