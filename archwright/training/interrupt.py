"""Ctrl-C and SIGTERM as a wish to leave in good order, not as death in the middle of a step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user asked to stop, and by which signal. A second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._is_caught = False
        """Whether this process has had a signal itself."""

    @property
    def name(self) -> str:
        """The reason why the run stopped, in a user's words."""
        assert self.signal is not None
        return "Ctrl-C" if self.signal == signal.SIGINT else self.signal.name

    def __bool__(self) -> bool:
        return self.signal is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_caught:
            raise KeyboardInterrupt
        self._is_caught = True
        self.ask(number)

    def ask(self, number: int) -> None:
        """Ask to stop as a signal to another process of the run does, which is no first one to this process."""
        if self.signal is None:
            self.signal = signal.Signals(number)


@contextmanager
def interruptions() -> Iterator[Interrupt]:
    """Collect SIGINT and SIGTERM while the block runs; outside the main thread, change nothing."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    caught = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interrupt) for number in caught}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
