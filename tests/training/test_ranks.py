"""How ranks join a run, wait for rank 0, and end."""

import contextlib
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import archwright
from archwright.scale.group import Group
from archwright.scale.launch import VARIABLES, EndedError, LostError
from archwright.spec.errors import UserError
from archwright.training import ranks
from archwright.training import train as train_room
from archwright.training.callbacks import Callbacks
from tests.scale.together import SHORT, left_of, played
from tests.tiny import tiny_words

SECONDS = 30.0


class Two:
    """A group of two ranks, which are threads: the store, and the result of rank 0's `first`."""

    def __init__(self) -> None:
        self.readers, self.looks, self.problems = 0, 0, list[str]()
        self.results = queue.Queue[object]()

    def report(self, what: str, value: object = None, problems: Sequence[str] = ()) -> None:
        self.readers += not problems
        self.problems += problems

    def reports(self, what: str) -> list[object] | None:
        self.looks += 1
        assert self.looks < 1000, "it has looked long enough"
        if self.problems:
            raise UserError(*self.problems)
        return [None] * 2 if self.readers == 2 else None

    def wait_for_first(self) -> object:
        return self.results.get(timeout=SECONDS)


@pytest.fixture
def group() -> Any:
    return Two()


FOLDER: Any = SimpleNamespace(spec=None)


def test_all_wait_for_a_rank_that_reads(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    has_read = threading.Event()
    monkeypatch.setattr(ranks, "reload_data", lambda *_: has_read.wait(SECONDS))
    group.report("read")  # rank 0
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ranks._wait_for_readers, group)
        other = pool.submit(ranks._read_meanwhile, FOLDER, group)
        with contextlib.suppress(TimeoutError):
            first.result(timeout=0.3)
        assert not first.done()
        has_read.set()
        first.result(SECONDS)
        group.results.put(None)
        assert other.result(SECONDS) is True


def test_problems_of_reading_are_raised_at_once(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 raises them, though other ranks still read."""

    changed = Mock(side_effect=UserError("the text has changed"))
    monkeypatch.setattr(ranks, "reload_data", changed)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(ranks._read_meanwhile, FOLDER, group)
        with pytest.raises(UserError, match="the text has changed"):
            ranks._wait_for_readers(group)
        group.results.put(None)
        assert other.exception(SECONDS)


def test_an_end_is_received_while_a_rank_reads(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    has_read = threading.Event()
    monkeypatch.setattr(ranks, "reload_data", lambda *_: has_read.wait(SECONDS))
    group.wait_for_first = Mock(side_effect=EndedError("full", ["UserError"], None))
    with pytest.raises(EndedError, match="full"):
        ranks._read_meanwhile(FOLDER, group)
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
        with ranks._signals_shared(Group.__new__(Group)):
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

    def ended(error: Exception) -> None:
        def follow(callbacks: Callbacks) -> None:
            raise error

        monkeypatch.setattr(train_room, "follow", follow)
        archwright.resume("run")

    with pytest.raises(UserError):
        ended(UserError("disk: full"))
    monkeypatch.setattr(Group, "is_stuck", True)
    with pytest.raises(SystemExit, match=r"archwright: disk: full; .* so all end"):
        ended(UserError("disk: full"))
    with pytest.raises(SystemExit, match=r"^1$"):
        ended(LostError("has ended", is_first=False))
