import io
import sys
import time

import pytest
from rich.console import Console

from archwright.training.progress import Bar, CellBar, Lines, Silent, progress, speaker
from tests.fake_notebook import FakeNotebook


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_shown_where(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(progress(10, 0, quiet=True)) is Silent
    assert type(progress(10, 0, quiet=False)) is Lines  # captured, so no terminal
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert type(progress(10, 0, quiet=False)) is Bar
    assert type(progress(10, 0, quiet=True)) is Silent
    assert type(speaker(quiet=False)) is Lines


def shown(bar: Bar) -> str:
    console = Console(file=io.StringIO(), width=150, force_terminal=True, color_system=None)
    console.print(bar.live.get_renderable())
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_bar_shows_loss_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock = {"now": 100.0}
    bar = Bar(1000, 200)
    assert "loss - " in shown(bar)  # not nan, which looks like a run that diverged
    monkeypatch.setattr(bar.live, "get_time", lambda: clock["now"])
    bar.live.reset(bar._task, completed=200)
    for i in range(1, 5):  # ten steps a second
        clock["now"] += 5
        bar.update(200 + 50 * i, 2.5, 12345.6)
    text = shown(bar)
    assert "training" in text
    assert "400/1000" in text
    assert "loss 2.500" in text
    assert "12,346 tokens/s" in text
    assert "0:01:00 left" in text
    with bar.doing("evaluating"):
        assert "evaluating" in shown(bar)
    assert "training" in shown(bar)


def test_the_bar_counts_pauses_as_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time goes to evaluation, so what is left takes twice as long."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock = {"now": 0.0}
    bar = Bar(100, 0)
    monkeypatch.setattr(bar.live, "get_time", lambda: clock["now"])
    bar.live.reset(bar._task)
    for i in range(1, 11):
        clock["now"] += 1
        bar.update(i, 2.5, 1000.0)
        with bar.doing("evaluating"):
            clock["now"] += 1
    left = bar.live.tasks[0].time_remaining
    assert left == pytest.approx(180, rel=0.15)


def test_a_bar_without_a_terminals_width_does_not_break(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with Bar(3, 0) as bar:
        bar.say("[bold]a text[/bold] with brackets")
        bar.update(1, float("nan"), 0.0)
    assert "[bold]a text[/bold] with brackets" in stderr.getvalue()


def test_lines_come_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = {"now": 1000.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    lines = Lines(100, start=20)
    for step in range(21, 101):
        clock["now"] += 1
        lines.update(step, 3.25, 1999.6)
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in said] == ["21", "36", "51", "66", "81", "96", "100"]
    assert said[1] == "step 36 of 100  loss 3.250  2,000 tokens/s  1 min 4 s left"
    assert said[-1] == "step 100 of 100  loss 3.250  2,000 tokens/s"


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with Silent() as silent, silent.doing("evaluating"):
        silent.say("x")
        silent.update(1, 1.0, 1.0)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_gets_one_bar_that_moves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook, clock = FakeNotebook(monkeypatch), {"now": 1000.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    assert type(progress(10, 0, quiet=True)) is Silent
    bar = progress(100, 20, quiet=False)
    assert type(bar) is CellBar
    with bar:
        for step in range(21, 101):
            clock["now"] += 0.1
            bar.update(step, 3.25, 1999.6)
            if step == 60:
                with bar.doing("evaluating"):
                    pass
        bar.expect(100)
    (shown_there,) = notebook.places  # one place below the cell, and no line
    assert capsys.readouterr() == ("", "")
    assert 10 < len(shown_there) < 25  # not at each of the eighty steps
    steps = [int(html.split('value="')[1].split('"')[0]) for html in shown_there]
    assert steps == sorted(steps)
    assert shown_there[0] == '<progress value="20" max="100"></progress> training, step 20 of 100'
    assert any(
        html.endswith("evaluating, step 60 of 100, loss 3.250, 2,000 tokens/s, 4.0 s left")
        for html in shown_there
    )
    assert shown_there[-1] == (
        '<progress value="100" max="100"></progress> trained, step 100 of 100, loss 3.250, 2,000 tokens/s'
    )


def test_a_bar_whose_run_ends_early_has_nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a budget in time ends, or a callback asks for it, behind the last step that was shown."""
    notebook, clock = FakeNotebook(monkeypatch), {"now": 1000.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    with progress(100, 0, quiet=False) as bar:
        for step in range(1, 10):
            clock["now"] += 1
            bar.update(step, 3.25, 1999.6)
        bar.expect(9)
    assert notebook.places[0][-2].endswith(
        "training, step 9 of 100, loss 3.250, 2,000 tokens/s, 1 min 31 s left"
    )
    assert notebook.places[0][-1].endswith("trained, step 9 of 9, loss 3.250, 2,000 tokens/s")


def test_an_estimated_number_of_steps_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    lines = progress(10, 0, quiet=False, estimated=True)
    lines.expect(12.4)
    lines.update(1, 3.25, 1999.6)
    lines.expect(9)
    lines.update(9, 3.25, 1999.6)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1 of about 12  loss 3.250  2,000 tokens/s")
    assert last == "step 9 of 9  loss 3.250  2,000 tokens/s"
