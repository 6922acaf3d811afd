"""What notebooks show, in one that is faked."""

import re
import sys
from html import unescape
from pathlib import Path

import pytest

import archwright
from archwright.notebook import Cell, Report, html_table, in_notebook
from archwright.spec.errors import UserError
from tests.fake_notebook import FakeNotebook


def test_a_notebook_is_a_shell_with_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    FakeNotebook(monkeypatch)
    assert in_notebook()
    FakeNotebook(monkeypatch, kernel=None)  # IPython in a terminal
    assert not in_notebook()


def test_a_cell_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNotebook(monkeypatch)
    cell = Cell()
    for html in ("a", "b", "c"):
        cell.show(html)
    assert fake.places == [["a", "b", "c"]]


def test_a_page_is_a_frame_in_a_notebook_and_a_path_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    page = '<!doctype html><p title="a &amp; b">it\'s</p><script>if (1 < 2) {}</script>'
    file.write_text(page, "utf-8")
    report = Report(file, inline=True)
    assert Path(report) == file
    assert str(report) == str(file)
    assert repr(report) == f"Report({str(file)!r})"
    html = report._repr_html_()
    (source,) = re.findall(r'srcdoc="([^"]*)"', html)
    assert unescape(source) == page
    assert html.count('"') == html.replace(source, "").count('"')  # none inside ends the attribute
    assert "<p" not in html


def test_a_notebook_does_not_store_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    file = tmp_path / "a run" / 'report".html'
    file.parent.mkdir()
    file.write_text("page " * 100_000, "utf-8")
    html = Report(file)._repr_html_()
    assert len(html) < 1000
    assert {*re.findall(r'(?:src|href)="([^"]*)"', html)} == {"../a%20run/report%22.html"}


def test_a_table_shows_texts_as_they_are() -> None:
    html = html_table("a < b", ("key",), [("<script>",), ('"',)])
    assert "a &lt; b" in html
    assert "&lt;script&gt;" in html
    assert html.count("<tr>") == 3
    assert html_table("none", ("key",), []) == "<div><p>none</p></div>"


def test_a_mistake_is_shown_in_a_line_and_not_as_a_traceback() -> None:
    with pytest.raises(UserError) as caught:
        archwright.load("modern").override("dmi=256", "norm.kind=layr")
    shown = caught.value._render_traceback_()  # by which IPython asks
    assert shown == [f"archwright: {line}" for line in caught.value.lines]
    assert len(shown) == 2
