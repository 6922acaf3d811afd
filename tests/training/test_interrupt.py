import signal
import threading

import pytest

from archwright.training.interrupt import Interrupt, interruptions


@pytest.mark.parametrize(
    ("which", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_signal_is_a_wish(which: signal.Signals, name: str) -> None:
    before = signal.getsignal(which)
    with interruptions() as interrupt:
        assert not interrupt
        signal.raise_signal(which)
        assert interrupt
        assert interrupt.signal == which
        assert interrupt.name == name
        with pytest.raises(KeyboardInterrupt):  # the second one ends
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(which) == before


def test_handlers_come_back_after_a_failure() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), interruptions():
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_are_left_alone() -> None:
    """Python lets only the main thread handle signals; a notebook may train in another."""
    found: list[Interrupt] = []

    def work() -> None:
        with interruptions() as interrupt:
            found.append(interrupt)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not found[0]
    assert signal.getsignal(signal.SIGINT) == before
