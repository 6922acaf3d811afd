"""The bar is seen on a terminal when work takes long, and nowhere else."""

import io

import pytest

from archwright import progress as module
from archwright.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, patience: float) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(module, "PATIENCE", patience)
    with Progress("Tokenizing", 100) as progress:
        for part in ("some", "text"):
            assert progress.counted(part, len) is part
    return stream.getvalue()


def test_a_terminal_sees_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Tokenizing" in run(Terminal(), monkeypatch, patience=-1)


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(Terminal(), monkeypatch, patience=60) == ""


def test_a_file_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(io.StringIO(), monkeypatch, patience=-1) == ""


def test_shares_are_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(module, "PATIENCE", -1)
    with Progress("Measuring", 1.0) as progress:
        progress.reached(0.5)
    assert "50%" in stream.getvalue()
