"""A progress bar that appears only when somebody watches and the work takes long."""

import sys
import time
from collections.abc import Callable
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds of work before the bar appears."""


class Progress:
    """A bar on standard error, in bytes, that vanishes at the end; silent when that is no terminal.

    It is drawn once work has taken longer than PATIENCE.
    """

    def __init__(self, what: str, total: int) -> None:
        self.begun = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        console = Console(stderr=True)
        self.bar = Bar(*columns, TimeRemainingColumn(), console=console, transient=True)
        self.task = self.bar.add_task(what, total=total)
        self.watched = sys.stderr.isatty()
        self.shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.shown:
            self.bar.stop()

    def counted(self, result: T, size: Callable[[T], int]) -> T:
        """Advance by the size of a result, and hand it on."""
        if self.watched and not self.shown and time.monotonic() - self.begun > PATIENCE:
            self.bar.start()
            self.shown = True
        self.bar.advance(self.task, size(result))
        return result
