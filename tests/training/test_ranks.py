"""What the first of several processes does alone, and what it hears of the others."""

import threading
from pathlib import Path

import pytest

from archwright.scale.group import Group
from archwright.training.ranks import _undisturbed
from tests.scale.together import SHORT, left_of, played
from tests.tiny import tiny_words


@pytest.mark.slow
def test_others_wait_while_the_first_works_alone(text: Path, tmp_path: Path) -> None:
    """In a callback, in compressors, and until the file of the weights is on the disk, longer than in a step."""
    done = played("slow", tmp_path, 2, *tiny_words(text, "budget=3steps", *SHORT))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "True"]


@pytest.mark.slow
def test_a_report_of_a_checkpoint_that_is_lost_ends_the_run(text: Path, tmp_path: Path) -> None:
    """Long before the end, to which the first process would wait for it."""
    words = tiny_words(text, "budget=100000steps", "checkpoint.every=1000000", *SHORT)
    words = [word.replace("checkpoint.every=1000000", "checkpoint.every=3") for word in words]
    done = played("unheard", tmp_path, 2, *words, "--out", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "LookupError: mine" in done.stderr
    assert left_of(tmp_path / "run") == []


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    """A notebook, or a server, may train in another one, where Python allows no handlers."""
    entered = []

    def follow() -> None:
        with _undisturbed(Group.__new__(Group)):
            entered.append(True)

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join()
    assert entered
