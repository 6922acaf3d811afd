"""Where the metrics of a run go beside its metrics.jsonl: CSV, TensorBoard, Weights & Biases."""

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
    """Takes the records of a run, one by one."""

    def write(self, record: Record, /) -> None:
        """Take a record."""


def _tensorboard(folder: RunFolder, sent: Sequence[Record]) -> TensorBoardLog:
    """Write all records again, as the metrics may have been cut back."""
    events = folder.path / "tensorboard"
    for file in events.glob("events.out.tfevents.*"):  # all else is the user's
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
"""By their names in `loggers` of a run."""

LIBRARIES = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""The library that each needs, by the name under which it is imported; the extras have the names of the loggers."""


def check_installed(names: Iterable[str]) -> None:
    """Raise a UserError with a line for each logger whose library is not here."""
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
    """Yield what hands a record on to all loggers that a run names.

    Args:
        sent: what they have been given before, also of steps that the run was then cut back behind, whose numbers come
            again.
    """
    with ExitStack() as stack:
        open_logs = [stack.enter_context(LOGGERS[n](folder, sent)) for n in folder.spec.loggers]

        def write(record: Record) -> None:
            for log in open_logs:
                log.write(record)

        yield write
