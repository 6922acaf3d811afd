"""Weights & Biases log of a run, if the extra is installed."""

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
"""File with a run's W&B id, next to wandb's files. A resumed run keeps its id."""


class WandbLog:
    """Sends records to W&B, or to local files if WANDB_MODE=offline.

    The environment variables WANDB_PROJECT and WANDB_NAME default to archwright and the name of the run.

    Args:
        sent: Records that W&B already has; these are skipped.

    Raises:
        UserError: W&B refuses the run, for example without a login.
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
        # W&B's step counter rejects late records, such as the evaluation of a step, so steps are a metric.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Send remaining records and end the run."""
        self._run.finish(exit_code=0 if error is None else 1)

    def write(self, record: Record) -> None:
        """Send the numbers of a record, with its step, tokens and seconds; skip events."""
        if _place(record) in self._sent:
            return
        if values := scalars(record):
            place = {key: record[key] for key in ("step", "tokens", "seconds") if key in record}
            self._run.log(place | values)


def run_id(folder: RunFolder) -> str:
    """Return a run's W&B id, generated once and stored in its folder."""
    file = folder.path / "wandb" / ID_FILE
    check_replaceable(file)  # never send the content of a linked file
    if not file.exists():
        atomic_write(file, secrets.token_hex(4))
    return file.read_text("utf-8").strip()


def _place(record: Record) -> tuple[str, int, str]:
    return record["kind"], record["step"], record.get("name", "")
