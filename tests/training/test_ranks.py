"""What processes of a run say to each other before its first step; tests/scale starts such processes."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.scale.group import LEAVE
from archwright.spec.errors import UserError
from archwright.training import ranks

SECONDS = 30.0
"""What a test may take, far more than it needs."""


class Two:
    """Stands for the group of two processes, threads here: the first orders, the other one hears."""

    def __init__(self) -> None:
        self.orders = queue.Queue[dict[str, Any]]()
        self.heard: list[str] = []
        self.told = 0

    def order(self, order: dict[str, Any]) -> None:
        self.orders.put(order)

    def next_order(self) -> dict[str, Any]:
        order = self.orders.get(timeout=SECONDS)
        self.heard.append(order["do"])
        assert len(self.heard) < 200, "it has heard enough"
        return order

    def tell(self, what: str, value: object) -> None:
        self.told += 1

    def reports(self, what: str) -> list[object] | None:
        return [True] * 2 if self.told == 2 else None


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Two:
    session = SimpleNamespace(execute=lambda order: None, settle=lambda: None)
    monkeypatch.setattr(ranks.Rank, "of", lambda group, folder, material: session)
    return Two()


@contextlib.contextmanager
def processes(group: Any) -> Iterator[tuple[Future[Any], Future[Any]]]:
    """Yield what becomes of both: of the first one's waiting, and of following it."""
    folder: Any = SimpleNamespace(spec=None)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ranks._wait_for_readers, group)
        try:
            yield first, pool.submit(ranks._follow_in, folder, group)
        finally:
            group.told = 2  # in place of the error that the end of another process is


def test_the_first_one_says_wait_while_another_reads(
    group: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_read = threading.Event()
    monkeypatch.setattr(ranks, "reload_data", lambda *_: has_read.wait(SECONDS))
    with processes(group) as (first, other):
        with contextlib.suppress(TimeoutError):
            first.result(timeout=0.5)
        assert not first.done()
        assert len(group.heard) > 2
        has_read.set()
        first.result(SECONDS)
        group.order({"do": "step"})
        group.order({"do": LEAVE})
        assert other.result(SECONDS) == {"do": LEAVE}
    *waits, last, step, end = group.heard
    assert {*waits} == {"wait"}
    assert last not in ("wait", LEAVE)
    assert (step, end) == ("step", LEAVE)


def test_what_reading_raises_is_raised_at_once(group: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(*_: object) -> None:
        raise UserError("the text has changed")

    monkeypatch.setattr(ranks, "reload_data", changed)
    with processes(group) as (first, other):
        with pytest.raises(UserError, match="the text has changed"):
            other.result(SECONDS)
        assert not first.done()


def test_an_end_is_heard_while_a_process_reads(group: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    has_read = threading.Event()
    monkeypatch.setattr(ranks, "reload_data", lambda *_: has_read.wait(SECONDS))
    group.order({"do": "wait"})
    group.order({"do": LEAVE})
    folder: Any = SimpleNamespace(spec=None)
    assert ranks._follow_in(folder, group) == {"do": LEAVE}  # type: ignore[arg-type]
    has_read.set()
