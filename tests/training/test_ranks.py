"""What processes of a run say to each other before its first step, what the first does alone, and what it hears."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archwright.scale.group import LEAVE, Group
from archwright.scale.launch import VARIABLES, LostError
from archwright.spec.errors import UserError
from archwright.training import ranks
from archwright.training.train import _for_scripts
from tests.scale.together import SHORT, left_of, played
from tests.tiny import tiny_words

SECONDS = 30.0
"""What a test may take, far more than it needs."""


class Two:
    """Stands for the group of two processes, threads here: the first orders, the other one hears."""

    def __init__(self) -> None:
        self.orders = queue.Queue[dict[str, Any]]()
        self.heard: list[str] = []
        self.readers = 0

    def order(self, order: dict[str, Any]) -> None:
        self.orders.put(order)

    def next_order(self) -> dict[str, Any]:
        order = self.orders.get(timeout=SECONDS)
        self.heard.append(order["do"])
        assert len(self.heard) < 200, "it has heard enough"
        return order

    def tell(self, what: str, value: object) -> None:
        self.readers += 1

    def reports(self, what: str) -> list[object] | None:
        return [True] * 2 if self.readers == 2 else None


@pytest.fixture
def group() -> Two:
    return Two()


@contextlib.contextmanager
def processes(group: Any) -> Iterator[tuple[Future[Any], Future[Any]]]:
    """Yield what becomes of both: of the first one's waiting, and of the other's reading."""
    folder: Any = SimpleNamespace(spec=None)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ranks._wait_for_readers, group)
        try:
            yield first, pool.submit(ranks._read_beside, folder, group)
        finally:
            group.readers = 2  # in place of the error that the end of another process is


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
        order, reading = other.result(SECONDS)
        assert reading.result() is True
    *waits, last = group.heard
    assert {*waits} == {"wait"}
    assert last == order["do"] not in ("wait", LEAVE)


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
    order, _ = ranks._read_beside(folder, group)  # type: ignore[arg-type]
    assert order == {"do": LEAVE}
    has_read.set()


@pytest.mark.release
def test_others_wait_while_the_first_works_alone(text: Path, tmp_path: Path) -> None:
    """In a callback, in compressors, and until the file of the weights is on the disk, longer than in a step."""
    done = played("slow", tmp_path, 2, *tiny_words(text, "budget=3steps", *SHORT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "True"]


@pytest.mark.slow
def test_a_report_of_a_checkpoint_that_is_lost_ends_the_run(text: Path, tmp_path: Path) -> None:
    """At once: the first process would wait for it, and save no more, to the end."""
    words = tiny_words(text, "budget=100000steps", *SHORT)
    done = played("unheard", tmp_path, 2, *words, "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "LookupError: mine" in done.stderr
    assert left_of(tmp_path / "run") == []


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    """A notebook, or a server, may train in another one, where Python allows no handlers."""
    entered = []

    def follow() -> None:
        with ranks._undisturbed(Group.__new__(Group)):
            entered.append(True)

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join()
    assert entered


def test_a_script_ends_where_its_processes_cannot_train_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on GPUs, where nobody hears of a failure: the one that has met it says so, before the next run begins."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "1" if name == "RANK" else "2")
    with pytest.raises(UserError), _for_scripts():
        raise UserError("disk: full")
    monkeypatch.setattr(Group, "is_stuck", True)
    with pytest.raises(SystemExit, match=r"archwright: disk: full; .* so all end"), _for_scripts():
        raise UserError("disk: full")
    with pytest.raises(SystemExit, match=r"^1$"), _for_scripts():
        raise LostError("has ended", is_first=False)
