"""`archwright report`: the page of one run in its folder, that of several where the user wants it."""

import os
from pathlib import Path

import pytest

from archwright.cli import main
from archwright.runs import RunFolder
from tests.cli.typing_commands import error_lines
from tests.reporting.conftest import RunMaker


@pytest.fixture
def made(place: Path) -> list[RunFolder]:
    """Two runs, and one of another objective."""
    maker = RunMaker(Path("runs"))
    return [
        maker.finished(20, name="one"),
        maker.finished(20, "seed=3", name="two"),
        maker.finished(20, "objective.kind=masked_tokens", name="masked"),
    ]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["report", *words]) == 0
    return capsys.readouterr().out.strip()


def test_the_page_of_one_run_is_in_its_folder(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(Path("runs/one/report.html"))
    assert printed(capsys, "runs/one") == path
    assert "archwright run one" in Path(path).read_text()
    assert printed(capsys, "runs/one", "--out", "page.html") == "page.html"
    assert Path("page.html").read_text() == Path(path).read_text()


def test_several_runs_have_one_page(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "runs/one", "runs/two") == "overlay.html"
    html = Path("overlay.html").read_text()
    assert "archwright report of 2 runs" in html
    assert printed(capsys, "runs/one", "--out", "both.html", "runs/two") == "both.html"
    assert Path("both.html").read_text() == html
    assert not list(Path("runs").rglob("report.html"))


def test_what_cannot_be_compared_is_one_line(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = error_lines(capsys, "report", "runs/one", "runs/masked")
    assert line.startswith("runs/masked: its losses are nats per predicted token of")
    assert not Path("overlay.html").exists()


def test_every_folder_that_is_no_run_is_named(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = error_lines(capsys, "report", "runs/on", "runs/one", "elsewhere")
    assert lines == [
        'runs/on: there is no such run. Did you mean "runs/one"?',
        "elsewhere: there is no such run.",
    ]


def test_a_study_and_a_folder_of_runs_are_called_so(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("studies/one").mkdir(parents=True)
    Path("studies/one/study.toml").touch()
    (line,) = error_lines(capsys, "report", "studies/one")
    assert line.startswith("studies/one: found no results.json; expected the folder of a study")
    line, *_ = error_lines(capsys, "report", "studies/one", "runs/one")
    assert line == "studies/one is a study, not a run; its page is studies/one/report.html"
    (line,) = error_lines(capsys, "report", "runs")
    assert line == "runs is a folder of runs, not a run: name one of them, such as runs/masked"


def test_other_files_are_not_written_over(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("notes.txt").write_text("mine")
    (line,) = error_lines(capsys, "report", "runs/one", "runs/two", "--out", "notes.txt")
    assert line == (
        "notes.txt cannot be written: found a file that archwright did not write, or that was changed since. "
        "Move it away, or name another."
    )
    assert Path("notes.txt").read_text() == "mine"


def test_nothing_is_replaced_but_a_page_as_it_was_written(
    made: list[RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a text that quotes a page's last line, nor a page with notes, nor what is no file."""
    page = Path(printed(capsys, "runs/one", "--out", "page.html"))
    html = page.read_text()
    assert printed(capsys, "runs/two", "--out", "page.html") == "page.html"
    quoted = f"Made by archwright. {html.splitlines()[-1]}\n"
    for text in (quoted, html.replace("<h1>", "<h1>Mine: "), html + "mine"):
        page.write_text(text)
        for words in (["report", "runs/one", "--out"], ["plan", "modern", "--html"]):
            (line,) = error_lines(capsys, *words, "page.html")
            assert line.startswith(
                "page.html cannot be written: found a file that archwright did not"
            )
        assert page.read_text() == text
    Path("link").symlink_to(page)
    for name, kind in {"/": "folder", ".": "folder", "link": "link", os.devnull: "device"}.items():
        for words in (["report", "runs/one", "--out"], ["plan", "modern", "--html"]):
            (line,) = error_lines(capsys, *words, name)
            assert line == f"{name} cannot be written: found a {kind}; expected a file or nothing."
