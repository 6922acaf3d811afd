"""What the user sees of a run while it goes: a live bar on a terminal, now and then a line elsewhere."""

import sys
import time
from types import TracebackType
from typing import Protocol, Self

LINE_EVERY = 15.0
"""Seconds between lines where there is no terminal."""


class Progress(Protocol):
    """Shows steps, loss and speed."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show a step that was done."""

    def say(self, text: str) -> None:
        """Print a line that stays."""


def progress(num_steps: int, start: int, quiet: bool) -> "Progress":
    """Return the progress display for this terminal."""
    if quiet:
        return Silent()
    if sys.stderr.isatty():
        return Bar(num_steps, start)
    return Lines(num_steps)


def speaker(quiet: bool) -> "Progress":
    """Return what prints the lines before and after training."""
    return Silent() if quiet else Lines(0)


class Silent:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class Bar(Silent):
    """A bar with loss, tokens per second and time left."""

    def __init__(self, num_steps: int, start: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True),
            refresh_per_second=2,  # each redraw takes time from the cores that train
        )
        self._task = self._bar.add_task(
            "training", total=num_steps, completed=start, loss=float("nan"), speed="-"
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        speed = f"{tokens_per_second:,.0f}"
        self._bar.update(self._task, completed=step, loss=loss, speed=speed)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)


class Lines(Silent):
    """A line every quarter of a minute, for logs."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps, self._last = num_steps, 0.0

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        if time.monotonic() - self._last >= LINE_EVERY or step == self.num_steps:
            self._last = time.monotonic()
            self.say(
                f"step {step}/{self.num_steps}  loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
            )

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
