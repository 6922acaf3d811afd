"""Loggers of a run in addition to metrics.jsonl: CSV, TensorBoard, Weights & Biases."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import Protocol

from archwright.files import remove
from archwright.reporting.csv_log import CsvLog
from archwright.reporting.tensorboard import TensorBoardLog
from archwright.reporting.wandb_log import WandbLog
from archwright.runs import RunFolder
from archwright.runs.records import Record
from archwright.spec.errors import UserError


class Logger(Protocol):
    """Destination of the records of a run."""

    def write(self, record: Record, /) -> None:
        """Write a record."""


def _tensorboard(folder: RunFolder, sent: Sequence[Record]) -> TensorBoardLog:
    """Open a TensorBoard log and write all records again, because the metrics may have been truncated."""
    events = folder.path / "tensorboard"
    for file in events.glob("events.out.tfevents.*"):  # other files are the user's
        remove(file)
    log = TensorBoardLog(events)
    for record in folder.metrics():
        log.write(record)
    return log


Opened = AbstractContextManager[Logger]
LOGGERS: dict[str, Callable[[RunFolder, Sequence[Record]], Opened]] = {
    "csv": lambda folder, sent: nullcontext(CsvLog(folder.path / "csv", folder.metrics())),
    "tensorboard": _tensorboard,
    "wandb": WandbLog,
}
"""Loggers by name in a run spec."""

LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""Required library of each logger, by import name. Extras have the names of the loggers."""


def check_installed(names: Iterable[str]) -> None:
    """Raise UserError if the library of a logger is not installed."""
    lines = []
    for name in names:
        try:
            import_module(LIBRARIES.get(name, "csv"))
        except ImportError:
            lines.append(
                f"loggers: {name} is not installed; run: pip install 'archwright[{name}]', or leave it out: "
                "loggers=csv"
            )
    if lines:
        raise UserError(*lines)


@contextmanager
def loggers(folder: RunFolder, sent: Sequence[Record]) -> Iterator[Callable[[Record], None]]:
    """Open all loggers of a run and yield a function that writes a record to all of them.

    Args:
        sent: Records logged earlier, including steps that were truncated and will be logged again.
    """
    with ExitStack() as stack:
        open_logs = [stack.enter_context(LOGGERS[n](folder, sent)) for n in folder.spec.loggers]

        def write(record: Record) -> None:
            for log in open_logs:
                log.write(record)

        yield write
