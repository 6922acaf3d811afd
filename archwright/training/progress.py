"""Progress of a run: a live bar on a terminal or in a notebook, lines elsewhere."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from archwright import progress as shown
from archwright.format import duration
from archwright.notebook import Cell, in_notebook

LINE_EVERY = 15.0
"""Seconds between lines without a terminal."""
CELL_EVERY = 0.5
"""Seconds between updates of a notebook's bar, which are sent to a browser."""


class Progress(shown.Silent):
    """Shows steps, loss and speed; the base class shows nothing."""

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Show a completed step."""

    def expect(self, num_steps: float) -> None:
        """Update the estimated number of steps."""

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show an activity between two steps during the block."""
        yield


Silent = Progress


def progress(num_steps: int, start: int, quiet: bool, *, estimated: bool = False) -> "Progress":
    """Return the progress display for this terminal or notebook.

    Args:
        estimated: Whether the number of steps is an estimate.
    """
    if quiet:
        return Silent()
    if in_notebook():
        return CellBar(num_steps, start, estimated=estimated)
    if shown.is_watched():
        return Bar(num_steps, start)
    return Lines(num_steps, start, estimated=estimated)


def speaker(quiet: bool) -> "Progress":
    """Return the printer of lines before and after training."""
    return Silent() if quiet else Lines()


class Bar(shown.Live, Progress):
    """A bar with loss, tokens per second and time left."""

    def __init__(self, num_steps: int, start: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        bar = RichProgress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=shown.console(),
            refresh_per_second=2,  # each redraw takes time from the cores that train
        )
        super().__init__(bar)
        self._task = bar.add_task("training", total=num_steps, completed=start, loss="-", speed="-")

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        speed = f"{tokens_per_second:,.0f}"
        self.live.update(self._task, completed=step, loss=f"{loss:.3f}", speed=speed)

    def expect(self, num_steps: float) -> None:
        self.live.update(self._task, total=round(num_steps))

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        self.live.update(self._task, description=what, refresh=True)
        yield
        self.live.update(self._task, description="training")


class _Counted(shown.Lines, Progress):
    """Progress with an exact or estimated number of steps, and the time left."""

    def __init__(self, num_steps: int = 0, start: int = 0, *, estimated: bool = False) -> None:
        self.num_steps, self._first, self._about = num_steps, start, "about " * estimated
        self._started = time.monotonic()

    def expect(self, num_steps: float) -> None:
        self.num_steps = round(num_steps)

    def _step_text(self, step: int) -> str:
        return f"step {step:,} of {self._about * (step < self.num_steps)}{self.num_steps:,}"

    def _left(self, step: int) -> float:
        """Return the estimated seconds left."""
        passed = time.monotonic() - self._started
        return passed * (self.num_steps - step) / max(1, step - self._first)


class CellBar(_Counted):
    """A bar below a notebook's cell, with loss, tokens per second and time left."""

    def __init__(self, num_steps: int, start: int, *, estimated: bool = False) -> None:
        super().__init__(num_steps, start, estimated=estimated)
        self._step, self._shown = start, -math.inf
        self._cell, self._figures = Cell(), ""

    def __enter__(self) -> Self:
        self._show("training")
        return self

    def __exit__(self, *_: object) -> None:
        self._show("trained" if self._step >= self.num_steps else "stopped")

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        self._step = step
        self._figures = f", loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s"
        if time.monotonic() - self._shown >= CELL_EVERY:
            self._show("training")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        self._show(what)
        yield

    def _show(self, what: str) -> None:
        self._shown, left = time.monotonic(), self._left(self._step)
        is_shown = self._step > self._first and left and what != "stopped"
        remaining = f", {duration(left)} left" if is_shown else ""
        bar = f'<progress value="{self._step}" max="{self.num_steps}"></progress>'
        self._cell.show(f"{bar} {what}, {self._step_text(self._step)}{self._figures}{remaining}")


class Lines(_Counted):
    """A line every 15 seconds, for logs."""

    _shown = -LINE_EVERY

    def update(self, step: int, loss: float, tokens_per_second: float) -> None:
        passed = time.monotonic() - self._started
        if passed - self._shown < LINE_EVERY and step < self.num_steps:
            return
        self._shown, left = passed, self._left(step)
        self.say(
            f"{self._step_text(step)}  loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
            + (f"  {duration(left)} left" if left else "")
        )
