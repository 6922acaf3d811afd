"""Ctrl-C and SIGTERM end a run after the current step."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from signal import SIGINT, SIGTERM, Signals, signal
from types import FrameType
from typing import Any


class Interrupt:
    """Signal that interrupted a run, if any. A second Ctrl-C ends the process at once."""

    def __init__(self) -> None:
        self.signal: Signals | None = None
        self._is_caught = False
        """True if this process received a signal."""

    @property
    def name(self) -> str:
        """Name of the signal for users."""
        assert self.signal is not None
        return "Ctrl-C" if self.signal == SIGINT else self.signal.name

    def __bool__(self) -> bool:
        return self.signal is not None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_caught:
            raise KeyboardInterrupt
        self._is_caught = True
        self.ask(number)

    def ask(self, number: int) -> None:
        """Interrupt as if this process had received a signal; it does not count as the first Ctrl-C."""
        if self.signal is None:
            self.signal = Signals(number)


@contextmanager
def interruptions() -> Iterator[Interrupt]:
    """Collect SIGINT and SIGTERM during the block."""
    interrupt = Interrupt()
    with handling({SIGINT: interrupt, SIGTERM: interrupt}):
        yield interrupt


@contextmanager
def handling(handlers: Mapping[Signals, Any]) -> Iterator[None]:
    """Install signal handlers during the block; no effect outside the main thread, where Python forbids it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal(number, handler)
