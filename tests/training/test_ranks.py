"""What the first of several processes does alone, and what it hears of the others."""

import threading
from pathlib import Path

import pytest

from archwright.scale.group import Group
from archwright.scale.launch import VARIABLES, LostError
from archwright.spec.errors import UserError
from archwright.training.ranks import _undisturbed
from archwright.training.train import _for_scripts
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
        with _undisturbed(Group.__new__(Group)):
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
        monkeypatch.setenv(name, "2")
    with pytest.raises(UserError), _for_scripts():
        raise UserError("disk: full")
    monkeypatch.setattr(Group, "is_stuck", True)
    with pytest.raises(SystemExit, match=r"archwright: disk: full; .* so all end"), _for_scripts():
        raise UserError("disk: full")
    with pytest.raises(SystemExit, match=r"^1$"), _for_scripts():
        raise LostError("has ended", is_first=False)
