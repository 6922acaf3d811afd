"""Progress on standard error: live on a terminal, plain lines elsewhere, or silent."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from archwright.format import printable

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds of work before a progress bar appears."""


@contextmanager
def reported_late(seconds: float, report: Callable[[], object]) -> Iterator[None]:
    """Call `report` in another thread if the block takes longer."""
    from threading import Timer

    timer = Timer(seconds, report)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Silent:
    """Progress without output; base class of all displays."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a permanent line, in subclasses with output."""


class Lines(Silent):
    """Progress as plain lines."""

    def say(self, text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)


class Live(Silent):
    """Progress as a live rich bar or table, below permanent lines."""

    def __init__(self, live: Any) -> None:
        self.live = live

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        self.live.console.print(printable(text), markup=False, highlight=False)


def is_watched() -> bool:
    """True if standard error is a terminal."""
    return sys.stderr.isatty()


def console() -> "Console":
    """Return a rich console for standard error."""
    from rich.console import Console

    return Console(stderr=True)


class Progress(Silent):
    """Transient progress bar, shown on a terminal after `PATIENCE` seconds.

    Args:
        description: Name of the work.
        total: Number of bytes (int), or 1.0 for progress as a fraction.
    """

    def __init__(self, description: str, total: float) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        amount = TaskProgressColumn() if isinstance(total, float) else DownloadColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
        self.bar = Bar(*columns, console=console(), transient=True, refresh_per_second=2)
        self.task = self.bar.add_task(description, total=total)
        self._shown_from = time.monotonic() + PATIENCE if is_watched() else math.inf
        self._shown = False

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self.bar.stop()

    def counted(self, result: T, size: Callable[[T], int]) -> T:
        """Advance by the size of a result, and return the result."""
        self._show()
        self.bar.advance(self.task, size(result))
        return result

    def reached(self, amount: float) -> None:
        """Set the completed amount."""
        self._show()
        self.bar.update(self.task, completed=amount)

    def _show(self) -> None:
        if not self._shown and time.monotonic() > self._shown_from:
            self.bar.start()
            self._shown = True
